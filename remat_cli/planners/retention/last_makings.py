"""Proofs that nothing fits: how the inputs of a large op can have come into memory, told backwards.

All that an op reads is in memory together when it runs. One of these tensors was made last, and while that was done,
all the others were there, and so was what that op reads. Before it, these were in memory together, and one of them was
made last, and so on, back to the empty device. If every such story takes more than the room at some point, no plan
fits, whatever is recomputed and in whichever order. Where a story is told to its end, or there are too many, nothing is
said.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest

from remat_cli.core.graph import Graph
from remat_cli.planners.shared.limits import Limits

# Ops are asked about that need at least this share of the room, so many at most, the largest first.
_SHARE_OF_ROOM = 0.5
_MOST_OPS = 8
# Sets of tensors that are looked at for one op: proofs are short, or hopeless.
_MOST_STATES = 300

_Tensors = frozenset[int]


def nothing_fits(graph: Graph, room: int, limits: Limits) -> bool:
    """Tell whether it is proven that no plan that moves nothing to the host fits.

    Args:
        graph: what is planned.
        room: bytes for what ops make: the budget without the graph's fixed bytes.
        limits: their seconds end the search.
    """
    stories = _Stories(graph, room)
    return any(stories.all_end_early(op, limits) for op in stories.large_ops())


class _Stories:
    """What was in memory together, from an op backwards."""

    def __init__(self, graph: Graph, room: int) -> None:
        arrays = graph.arrays
        self._room = room
        self._producer: list[int] = arrays.producer.tolist()
        self._size: list[int] = arrays.tensor_bytes.tolist()
        # Graph inputs are part of the fixed bytes.
        self._reads = [frozenset(t for t in row if self._producer[t] >= 0) for row in arrays.inputs]
        self._makes = [frozenset(row) for row in arrays.outputs]
        # An op that works in place takes less, if its input ends with it: it is taken to do so.
        saved = zip(arrays.workspace_bytes.tolist(), arrays.inplace_bytes.tolist(), arrays.outputs, strict=True)
        self._own = [workspace - inplace + sum(self._size[t] for t in made) for workspace, inplace, made in saved]

    def large_ops(self) -> list[int]:
        """Return the ops that need a large part of the room, the largest first."""
        needs = [self._bytes(reads) + own for reads, own in zip(self._reads, self._own, strict=True)]
        large = (op for op, need in enumerate(needs) if need >= _SHARE_OF_ROOM * self._room)
        return nlargest(_MOST_OPS, large, key=lambda op: (needs[op], -op))

    def all_end_early(self, op: int, limits: Limits) -> bool:
        """Tell whether every story of how an op's inputs came into memory takes more than the room."""
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
            # Those of the least bytes first: where a story can be told to its end, that is found soon.
            waiting += sorted(new, key=lambda each: (-self._bytes(each), sorted(each)))
        return False

    def _before(self, together: _Tensors) -> Iterator[_Tensors]:
        """Yield what can have been in memory together before the last of some tensors was made."""
        size = self._bytes(together)
        choices = []
        for maker in sorted({self._producer[tensor] for tensor in together}):
            others = together - self._makes[maker]
            more = self._reads[maker] - others
            if size - self._bytes(together & self._makes[maker]) + self._bytes(more) + self._own[maker] > self._room:
                continue
            if not more:
                # Fewer were there before: if these cannot have been, the whole cannot, so no other maker matters.
                yield others
                return
            choices.append(others | more)
        yield from choices

    def _bytes(self, tensors: _Tensors) -> int:
        return sum(map(self._size.__getitem__, tensors))
