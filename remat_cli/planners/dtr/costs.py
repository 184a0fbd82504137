"""Costs of recomputing evicted tensors: the numerators of DTR's heuristics.

A tensor is *lost* while it is evicted and may be needed again. Its recomputation includes that of its lost sources, and
is part of that of tensors computed from it. Each class below counts these costs in its own way; all keep a value for
each tensor, and receive every tensor that is lost or found.

Source: Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021, sections 2 and 4.1 and appendix C.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

Neighbours = Sequence[Sequence[int]]

# The factor by which a value is raised, at least, before another tensor gets its turn.
_RAISE = 4
# If more neighbourhoods than this became cheaper, resetting all values is faster than finding these.
_MOST_RESET = 100


class EvictionCosts:
    """Constant costs of tensors: that of the own op, or 1.

    Attributes:
        values: [T] float64.
    """

    def __init__(self, own: NDArray[np.float64]) -> None:
        self.values = own.copy()

    def lost(self, tensor: int) -> None:
        """`tensor` was evicted and may be needed again."""

    def found(self, tensor: int) -> None:
        """`tensor`, which was lost, is in memory again, or no longer needed."""

    def settle(self, tensor: int) -> bool:
        """Bring the value of `tensor` closer to the exact one; False if it is exact."""
        del tensor
        return False


class NeighbourhoodCosts(EvictionCosts):
    """The cost of a tensor's op and of lost tensors in its neighbourhood.

    Values are lower bounds until they are settled. The search for the least value needs few exact values: for most, a
    bound above the least is enough. So a value is raised only to a multiple of its old value.
    """

    def __init__(self, own: NDArray[np.float64]) -> None:
        super().__init__(own)
        self._own = own
        self._is_exact = bytearray(len(own))

    def lost(self, tensor: int) -> None:
        """Treat exact values as lower bounds: no neighbourhood becomes cheaper."""
        del tensor
        self._doubt()

    def found(self, tensor: int) -> None:
        """Reset all values: neighbourhoods may have become cheaper."""
        del tensor
        self._doubt()
        self.values[:] = self._own

    def _doubt(self) -> None:
        self._is_exact = bytearray(len(self._own))

    def settle(self, tensor: int) -> bool:
        """Raise the value of `tensor` towards the exact value.

        It is raised to a multiple at most. False if it is exact already.
        """
        if self._is_exact[tensor]:
            return False
        enough = _RAISE * self.values[tensor]
        total = self._own[tensor]
        for cost in self._neighbour_costs(tensor):
            total += cost
            if total > enough:
                break
        else:
            self._is_exact[tensor] = True
        self.values[tensor] = total
        return True

    @abstractmethod
    def _neighbour_costs(self, tensor: int) -> Iterator[float]:
        """Yield the costs of the neighbourhood of `tensor`."""


class RegionCosts(NeighbourhoodCosts):
    """Costs of all tensors reached through lost tensors only.

    Walking in both directions gives e* of h_DTR; walking only from a tensor to its sources gives that of MSPS.
    """

    def __init__(
        self, own: NDArray[np.float64], walks: Sequence[Neighbours], opposite_walks: Sequence[Neighbours]
    ) -> None:
        """Take the costs of ops, and neighbours by direction.

        `walks` has the directions of the walks, `opposite_walks` their opposites.
        """
        super().__init__(own)
        self._costs: list[float] = own.tolist()
        self._walks = walks
        self._opposite_walks = opposite_walks
        self._is_lost = bytearray(len(own))

    def lost(self, tensor: int) -> None:
        """Let walks pass through `tensor`."""
        super().lost(tensor)
        self._is_lost[tensor] = True

    def found(self, tensor: int) -> None:
        """Reset the values of neighbourhoods that contained `tensor`.

        All values are reset if these are many.
        """
        self._is_lost[tensor] = False
        cheaper = []
        for neighbours in self._opposite_walks:
            cheaper += list(islice(self._reached(tensor, neighbours), _MOST_RESET))
            if len(cheaper) >= _MOST_RESET:
                super().found(tensor)
                return
        self._doubt()
        self.values[cheaper] = self._own[cheaper]

    def _neighbour_costs(self, tensor: int) -> Iterator[float]:
        for neighbours in self._walks:
            yield from (self._costs[near] for near in self._reached(tensor, neighbours) if self._is_lost[near])

    def _reached(self, tensor: int, neighbours: Neighbours) -> Iterator[int]:
        """Yield the tensors reached from `tensor` through lost tensors."""
        seen: set[int] = set()
        stack = [tensor]
        while stack:
            for near in neighbours[stack.pop()]:
                if near not in seen:
                    seen.add(near)
                    yield near
                    if self._is_lost[near]:
                        stack.append(near)


class ClassCosts(NeighbourhoodCosts):
    """Costs of all adjacent classes of lost tensors: h_DTR^eq.

    Lost neighbours are in one class. Classes are never split: a tensor that is found leaves its class, and tensors that
    were connected only through it stay in one class, so the cost is an overestimate.
    """

    def __init__(self, own: NDArray[np.float64], neighbours: Neighbours) -> None:
        """Take the costs of ops, and the sources and readers of tensors."""
        super().__init__(own)
        self._neighbours = neighbours
        self._node: dict[int, int] = {}  # node of each lost tensor: a new one each time, as the old one may hold others
        self._parent: list[int] = []  # union-find
        self._cost: list[float] = []  # cost of the class, at its root

    def lost(self, tensor: int) -> None:
        """Unite `tensor` and its neighbouring classes."""
        super().lost(tensor)
        classes = self._neighbour_classes(tensor)
        node = len(self._parent)
        self._node[tensor] = node
        self._parent.append(node)
        self._cost.append(self._own[tensor] + sum(self._cost[root] for root in classes))
        for root in classes:
            self._parent[root] = node

    def found(self, tensor: int) -> None:
        """Remove `tensor` from its class."""
        super().found(tensor)
        self._cost[self._root(self._node.pop(tensor))] -= self._own[tensor]

    def _neighbour_costs(self, tensor: int) -> Iterator[float]:
        return (self._cost[root] for root in self._neighbour_classes(tensor))

    def _neighbour_classes(self, tensor: int) -> set[int]:
        return {self._root(self._node[near]) for near in self._neighbours[tensor] if near in self._node}

    def _root(self, node: int) -> int:
        parent = self._parent
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node
