"""The any-order bound: the least recomputation in any order of first runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.planners.min_cut.priced_cut import CutPoint
from remat_cli.planners.retention.cover_bound import NO_BOUND, CoverGaps, RerunBound, cheapest_cover
from remat_cli.planners.retention.last_makings import nothing_fits
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Bools, GraphReads, Ints
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Stages

# The largest number of moments for the cut bound; fewer if moments times ops would exceed the second number.
_MOST_MOMENTS = 8
_OPS_FOR_ALL_MOMENTS = 200_000
# The largest number of ops for the path, whose time and memory grow with the square.
_MOST_OPS = 3_000


def any_order_bound(graph: Graph, room: int, limits: Limits) -> RerunBound:
    """Return a lower bound on the recomputation of any plan.

    The ops of a path through the graph run for the first time in the order of the path, whatever the plan. The chosen
    path is the one whose ops together lack most memory. Two bounds are taken along it.

    *Cover.* At the first run of an op of the path, every tensor that an ancestor produces and a descendant reads must
    be in memory, unless it is recomputed before that reader. So the cover bound holds for the path's ops as stages,
    with these tensors alone.

    *Cut.* After an op's first run all its descendants have yet to run, on tensors that are in memory then or recomputed
    from these. Reruns of its ancestors cost time; the first runs of other ops are free.

    Before both, `last_makings` tries to prove that nothing fits.

    Args:
        graph: the graph to plan.
        room: bytes for outputs of ops: the budget without the graph's fixed bytes.
        limits: limits of the search for the cheapest cover.
    """
    ancestry = Ancestry(Stages.of(graph), room)
    if ancestry.is_small and nothing_fits(graph, room, limits):
        return RerunBound(None)
    moments = ancestry.worst_moments()
    if not len(moments):
        return NO_BOUND
    cut = _worst(graph, room, moments, limits)
    if cut.extra is None or not ancestry.is_small:
        return cut
    path = ancestry.path
    gaps = _PathRows(ancestry, path).gaps()
    return cut.stronger(cheapest_cover(ancestry.stages, gaps, ancestry.lacking[path], limits, known=cut.extra))


def _worst(graph: Graph, room: int, ops: Ints, limits: Limits) -> RerunBound:
    """Return the largest cut bound of these ops, as time permits."""
    reads = GraphReads.of(graph)
    cut = 0
    for op in ops.tolist():
        if limits.is_over:
            break
        cut = max(cut, _cut_bound(reads, room, op, limits))
    # Recomputing everything takes no longer, so the tensors needed at one moment do not fit.
    return RerunBound(None if cut > graph.total_time else cut)


def _cut_bound(reads: GraphReads, room: int, op: int, limits: Limits) -> int:
    """Return the least reruns that make the first run of `op` fit."""
    cut_point = cut_point_of(reads, op, *ancestors_and_descendants(reads.graph, op))
    return cut_point.bound(room + reads.graph.fixed_bytes - cut_point.least_own_bytes, limits)


def cut_point_of(reads: GraphReads, op: int, is_before: Bools, is_after: Bools) -> CutPoint:
    """Return the moment of an op's first run in any order.

    Ops that are neither ancestors nor descendants may run on either side of the moment.

    Args:
        reads: the graph's reads.
        op: number of the op.
        is_before: [N] whether each op must run before this op.
        is_after: [N] whether each op can only run after this op.
    """
    is_free = ~(is_before | is_after)
    is_free[op] = False
    # The first run of an op after the moment is free, even for an op that runs only once.
    reads = replace(reads, recomputable=reads.recomputable | is_free)
    before = np.flatnonzero(is_before | is_free)
    sequence = _FreeSequence(reads, np.concatenate([before, [op], np.flatnonzero(is_after)]), is_free)
    return CutPoint(sequence, len(before))


def ancestors_and_descendants(graph: Graph, op: int) -> tuple[Bools, Bools]:
    """Return the ancestors and the descendants of an op, each as [N] bool."""
    arrays = graph.arrays
    producer = arrays.producer.tolist()
    is_before, is_after = np.zeros(len(graph.ops), dtype=np.bool_), np.zeros(len(graph.ops), dtype=np.bool_)
    stack = [op]
    while stack:
        for tensor in arrays.inputs[stack.pop()]:
            maker = producer[tensor]
            if maker >= 0 and not is_before[maker]:
                is_before[maker] = True
                stack.append(maker)
    reached = bytearray(len(producer))
    for tensor in arrays.outputs[op]:
        reached[tensor] = True
    for later in range(op + 1, len(graph.ops)):
        if any(reached[tensor] for tensor in arrays.inputs[later]):
            is_after[later] = True
            for tensor in arrays.outputs[later]:
                reached[tensor] = True
    return is_before, is_after


@dataclass(frozen=True, eq=False)
class _FreeSequence(RematSequence):
    """A sequence in which some ops cost nothing.

    Attributes:
        is_free: [N] whether each op is free.
    """

    is_free: Bools

    @cached_property
    def run_time(self) -> Ints:
        """[M] time of each run."""
        return np.where(self.is_free[self.ops], 0, self.reads.graph.arrays.op_time[self.ops])


@dataclass(frozen=True, eq=False)
class _PathRows:
    """A path, whose ops are the rows of the cover."""

    ancestry: Ancestry
    path: Ints

    def gaps(self) -> CoverGaps:
        """Return the gaps in which tensors can be absent along the path."""
        first, last = self._brackets()
        gaps = [
            (tensor, begin + 1, end, self._shared(tensor, begin))
            for tensor in range(len(self.ancestry.stages.bytes))
            for begin, end in self._gaps_of(tensor, first, last)
        ]
        return CoverGaps(*np.array(gaps, dtype=np.int64).reshape(-1, 4).T)

    def _brackets(self) -> tuple[list[int], list[int]]:
        """Bracket the first run of each op, and the end, between rows.

        The first list has the first row that runs no earlier, the second the last row that runs no later.
        """
        ancestry, path = self.ancestry, self.path
        first = np.full(len(ancestry.stages) + 1, len(path))
        last = np.full(len(ancestry.stages) + 1, -1)
        last[-1] = len(path)
        for row in range(len(path)):
            op = int(path[row])
            last[:-1][ancestry.members(ancestry.descendants[op] | 1 << op)] = row
        for row in range(len(path) - 1, -1, -1):
            op = int(path[row])
            first[:-1][ancestry.members(ancestry.ancestors[op] | 1 << op)] = row
        return first.tolist(), last.tolist()

    def _gaps_of(self, tensor: int, first: list[int], last: list[int]) -> Iterator[tuple[int, int]]:
        """Yield the first and last row around each gap of a tensor.

        An absence starts after a certain read and ends before the next one, inside one gap.
        """
        maker = int(self.ancestry.stages.produced_at[tensor])
        # The tensor certainly exists from its producer on, or from the first row that runs after its producer.
        begin = first[maker] - (first[maker] != last[maker])
        readers = self.ancestry.readers[tensor]
        for reader in sorted(readers, key=lambda each: (first[each], last[each])):
            yield begin, first[reader]
            begin = max(begin, last[reader])
        # A reader that certainly runs after a row, even if no later row is certain to follow the reader.
        end = max((last[reader] + (last[reader] != first[reader]) for reader in readers), default=0)
        if end > begin:
            yield begin, end

    def _shared(self, tensor: int, row: int) -> int:
        """Return the bytes that a row's op saves by taking over the tensor's storage."""
        stages, path = self.ancestry.stages, self.path
        if 0 <= row < len(path) and stages.shared_input[path[row]] == tensor:
            return int(stages.shared_bytes[path[row]])
        return 0


@dataclass(frozen=True, eq=False)
class Ancestry:
    """The ancestors and descendants of every op.

    A set of ops is a whole number with bit n for op n.

    Attributes:
        stages: the graph in the input order.
        room: bytes for outputs of ops: the budget without the graph's fixed bytes.
    """

    stages: Stages
    room: int

    @property
    def is_small(self) -> bool:
        """Whether the graph is small enough to compute these sets."""
        return len(self.stages) <= _MOST_OPS

    def worst_moments(self) -> Ints:
        """Return the op that lacks most memory in each part of the path.

        The worst op comes first. In a large graph, the input order replaces the path.
        """
        ops = self.path if self.is_small else np.arange(len(self.stages))
        lacking = self.lacking[ops] if self.is_small else self.stages.plain_bytes - self.room
        count = max(1, min(_MOST_MOMENTS, _OPS_FOR_ALL_MOMENTS // len(ops)))
        ops, lacking = ops[lacking > 0], lacking[lacking > 0]
        parts = np.array_split(np.arange(len(ops)), min(count, len(ops))) if len(ops) else []
        worst = sorted((part[lacking[part].argmax()] for part in parts), key=lambda place: -lacking[place])
        return ops[np.array(worst, dtype=np.int64)]

    @cached_property
    def _makers(self) -> list[list[int]]:
        """For each op, the producers of its inputs."""
        arrays = self.stages.graph.arrays
        producer = arrays.producer.tolist()
        return [sorted({producer[t] for t in inputs if producer[t] >= 0}) for inputs in arrays.inputs]

    @cached_property
    def ancestors(self) -> list[int]:
        """For each op, the ops that must run earlier."""
        sets: list[int] = []
        for makers in self._makers:
            union = 0
            for maker in makers:
                union |= sets[maker] | 1 << maker
            sets.append(union)
        return sets

    @cached_property
    def descendants(self) -> list[int]:
        """For each op, the ops that can only run later."""
        sets = [0] * len(self._makers)
        for op in range(len(sets) - 1, -1, -1):
            own = sets[op] | 1 << op
            for maker in self._makers[op]:
                sets[maker] |= own
        return sets

    def members(self, ops: int) -> Bools:
        """Unpack a set of ops to [N] bool."""
        count = len(self.stages)
        packed = np.frombuffer(ops.to_bytes(count // 8 + 1, "little"), dtype=np.uint8)
        return np.unpackbits(packed, bitorder="little", count=count).astype(np.bool_)

    @cached_property
    def readers(self) -> list[list[int]]:
        """For each tensor, its readers; N stands for the end."""
        stages = self.stages
        starts = np.searchsorted(stages.read_tensor, np.arange(1, len(stages.bytes)))
        return [part.tolist() for part in np.split(stages.read_stage, starts)]

    @cached_property
    def lacking(self) -> Ints:
        """[N] bytes that each op's first run lacks without recomputation.

        They hold in any order. Negative: bytes are left.
        """
        stages = self.stages
        needed = stages.own_bytes.copy()
        for tensor, (maker, size) in enumerate(zip(stages.produced_at.tolist(), stages.bytes.tolist(), strict=True)):
            before = 0
            for reader in self.readers[tensor]:
                before |= self.ancestors[reader] if reader < len(stages) else -1
            needed_later = self.members(self.descendants[maker] & before)
            readers = [reader for reader in self.readers[tensor] if reader < len(stages)]
            for reader in readers:
                if stages.shared_input[reader] == tensor and not needed_later[reader]:
                    needed[reader] -= stages.shared_bytes[reader]
            needed_later[readers] = False  # already counted among their own bytes
            needed[needed_later] += size
        return needed - self.room

    @cached_property
    def path(self) -> Ints:
        """The path whose ops together lack most memory."""
        lacking = np.maximum(self.lacking, 0).tolist()
        best = list(lacking)
        before = [-1] * len(best)
        for op, makers in enumerate(self._makers):
            for maker in makers:
                if best[maker] + lacking[op] > best[op]:
                    best[op], before[op] = best[maker] + lacking[op], maker
        path = [int(np.argmax(best))]
        while before[path[-1]] >= 0:
            path.append(before[path[-1]])
        return np.array(path[::-1])
