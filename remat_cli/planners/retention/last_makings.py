"""Proofs that nothing fits, from the histories of a large op's inputs.

All inputs of an op are in memory together when it runs. One of these tensors was produced last; at that moment all the
others were in memory, and so were the inputs of its producer. These were in memory together before, and one of them was
produced last, and so on, back to the empty device. If every such history exceeds the room at some point, no plan fits,
whatever is recomputed and in whichever order. If one history reaches its start, or if there are too many, nothing is
proven.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest

from remat_cli.core.graph import Graph
from remat_cli.planners.shared.limits import Limits

# Ask about ops that need at least this share of the room: the largest ones, up to this number.
_SHARE_OF_ROOM = 0.5
_MOST_OPS = 8
# The largest number of sets of tensors to look at for one op: proofs are short, or hopeless.
_MOST_STATES = 300

_Tensors = frozenset[int]


def nothing_fits(graph: Graph, room: int, limits: Limits) -> bool:
    """Tell whether it is proven that no plan without transfers fits.

    Args:
        graph: the graph to plan.
        room: bytes for outputs of ops: the budget without the graph's fixed bytes.
        limits: limits whose seconds end the search.
    """
    stories = _Stories(graph, room)
    return any(stories.all_end_early(op, limits) for op in stories.large_ops())


class _Stories:
    """The sets of tensors in memory together, from an op backwards."""

    def __init__(self, graph: Graph, room: int) -> None:
        arrays = graph.arrays
        self._room = room
        self._producer: list[int] = arrays.producer.tolist()
        self._size: list[int] = arrays.tensor_bytes.tolist()
        # Graph inputs are part of the fixed bytes.
        self._reads = [frozenset(t for t in row if self._producer[t] >= 0) for row in arrays.inputs]
        self._makes = [frozenset(row) for row in arrays.outputs]
        # Assume the best of an op that works in place: that its input ends with it.
        saved = zip(arrays.workspace_bytes.tolist(), arrays.inplace_bytes.tolist(), arrays.outputs, strict=True)
        self._own = [workspace - inplace + sum(self._size[t] for t in written) for workspace, inplace, written in saved]

    def large_ops(self) -> list[int]:
        """Return the ops that need a large part of the room, largest first."""
        needs = [self._bytes(reads) + own for reads, own in zip(self._reads, self._own, strict=True)]
        large = (op for op, need in enumerate(needs) if need >= _SHARE_OF_ROOM * self._room)
        return nlargest(_MOST_OPS, large, key=lambda op: (needs[op], -op))

    def all_end_early(self, op: int, limits: Limits) -> bool:
        """Tell whether every history of an op's inputs exceeds the room."""
        together = self._reads[op]
        if self._bytes(together) + self._own[op] > self._room:
            return True
        waiting, seen = [together], {together}
        for _ in range(_MOST_STATES):
            if not waiting:
                return True
            together = waiting.pop()
            if not together or limits.is_over:
                return False
            new = [each for each in self._before(together) if each not in seen]
            seen.update(new)
            # Sets of few bytes first: if a history reaches its start, this finds it soon.
            waiting += sorted(new, key=lambda each: (-self._bytes(each), sorted(each)))
        return False

    def _before(self, together: _Tensors) -> Iterator[_Tensors]:
        """Yield the possible sets in memory before the last of these tensors was produced."""
        size = self._bytes(together)
        choices = []
        for maker in sorted({self._producer[tensor] for tensor in together}):
            others = together - self._makes[maker]
            more = self._reads[maker] - others
            if size - self._bytes(together & self._makes[maker]) + self._bytes(more) + self._own[maker] > self._room:
                continue
            if not more:
                # This set is a subset of the tensors. If the subset is impossible, so is the whole, so no other
                # producer matters.
                yield others
                return
            choices.append(others | more)
        yield from choices

    def _bytes(self, tensors: _Tensors) -> int:
        return sum(map(self._size.__getitem__, tensors))
