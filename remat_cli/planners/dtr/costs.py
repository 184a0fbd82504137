"""Costs of bringing an evicted tensor back: the numerators of DTR's heuristics.

A tensor is *lost* while it is evicted and may be needed again. Recomputing it includes recomputing the lost tensors
that it is made from, and is part of recomputing those made from it. Each class below counts these costs in its own way;
all keep one value for each tensor, and are told of every tensor that is lost or found.

Source: Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021, sections 2 and 4.1 and appendix C.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

Neighbours = Sequence[Sequence[int]]

# A value is raised at least this many times before another tensor gets its turn.
_RAISE = 4
# If more neighbourhoods than this became cheaper, it is quicker to reset all values than to find these.
_MOST_RESET = 100


class EvictionCosts:
    """A cost of each tensor that does not change: that of its own op, or 1.

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
    """Own cost and that of lost tensors around.

    Values are lower bounds until they are settled. The search for the least value needs few of them exactly; for most
    it is enough that they are not the least. So a value is raised only to a multiple of what it was before.
    """

    def __init__(self, own: NDArray[np.float64]) -> None:
        super().__init__(own)
        self._own = own
        self._is_exact = bytearray(len(own))

    def lost(self, tensor: int) -> None:
        """Take exact values for lower bounds: no neighbourhood becomes cheaper."""
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
        """Raise the value of `tensor` to the exact one, or to a multiple; False if it is exact."""
        if self._is_exact[tensor]:
            return False
        enough = _RAISE * self.values[tensor]
        total = self._own[tensor]
        for cost in self._costs_around(tensor):
            total += cost
            if total > enough:
                break
        else:
            self._is_exact[tensor] = True
        self.values[tensor] = total
        return True

    @abstractmethod
    def _costs_around(self, tensor: int) -> Iterator[float]:
        """Yield what adds to the cost of `tensor`."""


class RegionCosts(NeighbourhoodCosts):
    """The neighbourhood is all tensors that are reached through lost tensors only.

    Walking in both directions gives e* of h_DTR; walking only from a tensor to its sources gives that of MSPS.
    """

    def __init__(self, own: NDArray[np.float64], ways: Sequence[Neighbours], ways_back: Sequence[Neighbours]) -> None:
        """Take the costs of ops, the neighbours of each tensor in each direction that is walked, and the opposite."""
        super().__init__(own)
        self._costs: list[float] = own.tolist()
        self._ways = ways
        self._ways_back = ways_back
        self._is_lost = bytearray(len(own))

    def lost(self, tensor: int) -> None:
        """Let walks pass through `tensor`."""
        super().lost(tensor)
        self._is_lost[tensor] = True

    def found(self, tensor: int) -> None:
        """Reset the values of the neighbourhoods that contained `tensor`; all values if these are many."""
        self._is_lost[tensor] = False
        cheaper = []
        for neighbours in self._ways_back:
            cheaper += list(islice(self._reached(tensor, neighbours), _MOST_RESET))
            if len(cheaper) >= _MOST_RESET:
                super().found(tensor)
                return
        self._doubt()
        self.values[cheaper] = self._own[cheaper]

    def _costs_around(self, tensor: int) -> Iterator[float]:
        for neighbours in self._ways:
            yield from (self._costs[near] for near in self._reached(tensor, neighbours) if self._is_lost[near])

    def _reached(self, tensor: int, neighbours: Neighbours) -> Iterator[int]:
        """Yield the tensors that are reached from this one through lost ones."""
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
    """The neighbourhood is all classes of lost tensors next to it: h_DTR^eq.

    Lost neighbours are in one class. Classes are never split: a tensor that is found leaves its class, and tensors that
    were connected only through it stay in one class, so the cost is an overestimate.
    """

    def __init__(self, own: NDArray[np.float64], neighbours: Neighbours) -> None:
        """Take the costs of ops, and what each tensor is made from and used for."""
        super().__init__(own)
        self._neighbours = neighbours
        self._node: dict[int, int] = {}  # of each lost tensor: a new node each time, as the old one may hold others
        self._parent: list[int] = []  # union-find
        self._cost: list[float] = []  # of the class, at its root

    def lost(self, tensor: int) -> None:
        """Unite `tensor` and the classes around it."""
        super().lost(tensor)
        classes = self._classes_around(tensor)
        node = len(self._parent)
        self._node[tensor] = node
        self._parent.append(node)
        self._cost.append(self._own[tensor] + sum(self._cost[root] for root in classes))
        for root in classes:
            self._parent[root] = node

    def found(self, tensor: int) -> None:
        """Take `tensor` out of its class."""
        super().found(tensor)
        self._cost[self._root(self._node.pop(tensor))] -= self._own[tensor]

    def _costs_around(self, tensor: int) -> Iterator[float]:
        return (self._cost[root] for root in self._classes_around(tensor))

    def _classes_around(self, tensor: int) -> set[int]:
        return {self._root(self._node[near]) for near in self._neighbours[tensor] if near in self._node}

    def _root(self, node: int) -> int:
        parent = self._parent
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node
