"""Transfers in a sequence of runs: which instances can be on the host meanwhile, and the schedule that moves them.

Between two uses an instance may be away. Its way out begins when it is made, its way back ends before the next use; on
each way the link takes one after the other. An instance that has been on the host once need not go there again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Bools, Ints
from remat_cli.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule, Step, Wait, with_frees


@dataclass(frozen=True, slots=True)
class Absence:
    """While an instance is away. Times are positions in a sequence.

    Attributes:
        name: of the tensor.
        bytes: its size.
        made_at: when it is made, and its way to the host begins.
        left_after: the use after which it may be away.
        wanted_at: the next use.
        freed_before: the run for which its memory is needed.
        back_before: the run before which its way back begins, and its memory is taken again.
    """

    name: str
    bytes: int
    made_at: int
    left_after: int
    wanted_at: int
    freed_before: int = -1
    back_before: int = -1


@dataclass(frozen=True, eq=False)
class Gaps:
    """Stretches of a sequence in which nobody uses an instance that may move, in the order of the instances.

    Attributes:
        instance: [G] number of the instance.
        left_after: [G] position of the use before.
        wanted_at: [G] position of the use after; M for the end.
    """

    instance: Ints
    left_after: Ints
    wanted_at: Ints

    @classmethod
    def of(cls, sequence: RematSequence, may_move: Bools) -> Gaps:
        """Return the gaps of the tensors that may move.

        Args:
            sequence: of runs.
            may_move: [T] tensors of the graph.
        """
        made_at, tensor = sequence.made
        read_at, read = sequence.read
        moves = may_move[tensor]
        inside = moves[read]
        instance = np.concatenate([np.flatnonzero(moves), read[inside]])
        used_at = np.concatenate([made_at[moves], read_at[inside]])
        order = np.lexsort((used_at, instance))
        instance, used_at = instance[order], used_at[order]
        is_gap = (instance[1:] == instance[:-1]) & (used_at[1:] > used_at[:-1] + 1)
        return cls(instance[:-1][is_gap], used_at[:-1][is_gap], used_at[1:][is_gap])


@dataclass(frozen=True, eq=False)
class OffloadSequence(RematSequence):
    """A sequence of runs in which some tensors may be on the host between their uses.

    Its memory is that of each run while all of them are away that can be without anybody's waiting for the link.

    Attributes:
        may_move: [T] tensors of the graph.
        time_per_byte: of the link.
    """

    may_move: Bools
    time_per_byte: float

    @cached_property
    def gaps(self) -> Gaps:
        """In which instances that may move could be away."""
        return Gaps.of(self, self.may_move)

    @cached_property
    def _start(self) -> NDArray[np.float64]:
        """[M + 1] when each run starts, if nobody waits for the link; last, the end."""
        return np.concatenate([[0.0], np.cumsum(self.run_time, dtype=np.float64)])

    @cached_property
    def _away(self) -> tuple[Ints, Ints, Ints]:
        """Instances, the first run during which each is away, and the run before which its way back begins."""
        gaps, start, made_at = self.gaps, self._start, self.made[0]
        instance, left, wanted = gaps.instance, gaps.left_after, gaps.wanted_at
        for queued in (False, True):
            duration = self.bytes[instance] * self.time_per_byte
            out = _ends(start[made_at[instance] + 1], _once(instance, duration) if queued else duration, queued)
            back = -_ends_by_order(-start[wanted], duration, np.lexsort((-instance, -wanted)), queued)
            leaves = np.maximum(left + 1, np.searchsorted(start, out))
            returns = np.minimum(np.searchsorted(start, back, side="right") - 1, wanted)
            pays = returns > leaves
            instance, left, wanted = instance[pays], left[pays], wanted[pays]
        return instance, leaves[pays], returns[pays]

    @cached_property
    def memory(self) -> Ints:
        """[M] bytes while each run is carried out, with all that can be away on the host."""
        instance, leaves, returns = self._away
        change = np.zeros(len(self) + 2, dtype=np.int64)
        np.subtract.at(change, leaves, self.bytes[instance])
        np.add.at(change, returns, self.bytes[instance])
        return self.memory_without_transfers + np.cumsum(change)[: len(self)]

    @cached_property
    def memory_without_transfers(self) -> Ints:
        """[M] bytes while each run is carried out, with everything on the device."""
        return RematSequence(self.reads, self.ops).memory

    def away_at(self, at: int) -> Ints:
        """Return the instances that can be on the host while a run is carried out."""
        instance, leaves, returns = self._away
        return instance[(leaves <= at) & (at < returns)]

    @property
    def without_transfers(self) -> RematSequence:
        """The same runs, with everything on the device."""
        return RematSequence(self.reads, self.ops)

    def schedule_within(self, budget_bytes: int, early: bool = True) -> Schedule | None:
        """Return a schedule within a budget, in which nothing leaves that can stay; None where that does not fit.

        Args:
            budget_bytes: device memory.
            early: what was away comes back as soon as there is memory for it; else just in time.
        """
        end = self.reads.graph.fixed_bytes + int(self.bytes[self.inputs[len(self)]].sum())
        memory = np.append(self.memory_without_transfers, end)
        gaps = self.gaps
        made_at, tensor = self.made
        names = self.graph.arrays.tensor_names
        possible = [
            Absence(names[tensor[each]], int(self.bytes[each]), int(made_at[each]), left, wanted)
            for each, left, wanted in zip(
                gaps.instance.tolist(), gaps.left_after.tolist(), gaps.wanted_at.tolist(), strict=True
            )
        ]
        absent = _leave(possible, self._ready.tolist(), memory, budget_bytes)
        if absent is None:
            return None
        latest = None if early else self._latest
        return _woven(with_frees(self.graph, self.names), _come_back(absent, memory, budget_bytes, latest))

    @property
    def _ready(self) -> Ints:
        """[G] the first run before which the copy of each gap's instance is on the host."""
        instance = self.gaps.instance
        duration = _once(instance, self.bytes[instance] * self.time_per_byte)
        out = _ends(self._start[self.made[0][instance] + 1], duration, queued=True)
        return np.maximum(self.gaps.left_after + 1, np.searchsorted(self._start, out))

    def _latest(self, absent: Sequence[Absence]) -> Ints:
        """Return before which run each must begin its way back, so that nobody waits."""
        wanted = np.array([absence.wanted_at for absence in absent], dtype=np.int64)
        duration = np.array([absence.bytes for absence in absent]) * self.time_per_byte
        back = -_ends_by_order(-self._start[wanted], duration, np.arange(len(absent))[::-1], queued=True)
        latest: Ints = np.searchsorted(self._start, back, side="right") - 1
        return np.maximum(latest, 0)


def _once(instance: Ints, duration: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the durations, 0 where an instance has been named before: it is on the host already."""
    first = np.ones(len(instance), dtype=np.bool_)
    first[1:] = instance[1:] != instance[:-1]
    return np.where(first, duration, 0.0)


def _ends(ready: NDArray[np.float64], duration: NDArray[np.float64], queued: bool) -> NDArray[np.float64]:
    """Return when each of some transfers ends: each as soon as it is ready, and, if queued, the one before has ended."""
    if not queued:
        return ready + duration
    total = np.cumsum(duration)
    ends: NDArray[np.float64] = total + np.maximum.accumulate(ready - (total - duration))
    return ends


def _ends_by_order(
    ready: NDArray[np.float64], duration: NDArray[np.float64], order: Ints, queued: bool
) -> NDArray[np.float64]:
    ends = np.empty(len(ready))
    ends[order] = _ends(ready[order], duration[order], queued)
    return ends


def _leave(
    possible: Sequence[Absence], ready: Sequence[int], memory: Ints, budget_bytes: int
) -> list[Absence] | None:
    """Return which instances leave, and for which run; None where even with all of them away it does not fit.

    Of those whose copies are on the host by then the one leaves that is wanted last; where there is none, the one
    leaves whose copy is there first.

    Args:
        possible: in the order in which the link takes them.
        ready: for each the first run before which it can be away and nobody waits.
        memory: bytes while each run is carried out, and at the end; what leaves is taken off, as if it came back just
            when it is wanted.
        budget_bytes: device memory.
    """
    by_ready = sorted(range(len(possible)), key=lambda number: ready[number], reverse=True)
    by_last_use = sorted(range(len(possible)), key=lambda number: possible[number].left_after, reverse=True)
    copied: list[tuple[int, int]] = []  # heaps: wanted last first,
    out_of_use: list[int] = []  # and the oldest first
    is_gone = bytearray(len(possible))
    absent: list[Absence] = []
    for position in np.flatnonzero(memory > budget_bytes).tolist():
        while by_ready and ready[by_ready[-1]] <= position:
            number = by_ready.pop()
            heappush(copied, (-possible[number].wanted_at, number))
        while by_last_use and possible[by_last_use[-1]].left_after < position:
            heappush(out_of_use, by_last_use.pop())
        while memory[position] > budget_bytes:
            if copied:
                number = heappop(copied)[1]
            elif out_of_use:
                number = heappop(out_of_use)
            else:
                return None
            absence = possible[number]
            if absence.wanted_at > position and not is_gone[number]:
                is_gone[number] = True
                memory[position : absence.wanted_at] -= absence.bytes
                absent.append(replace(absence, freed_before=position))
    return _without_needless(absent, memory, budget_bytes)


def _without_needless(absent: Sequence[Absence], memory: Ints, budget_bytes: int) -> list[Absence]:
    """Leave out those that could stay as well, since larger ones left after them; add them to `memory`."""
    needed = []
    for absence in reversed(absent):
        away = memory[absence.freed_before : absence.wanted_at]
        if away.max() + absence.bytes <= budget_bytes:
            away += absence.bytes
        else:
            needed.append(absence)
    return needed


def _come_back(absent: Sequence[Absence], memory: Ints, budget_bytes: int, latest_of: object) -> list[Absence]:
    """Return the same, with the run before which each comes back, in that order; arguments as in `_leave`."""
    in_order = sorted(absent, key=lambda absence: (absence.wanted_at, -absence.made_at))
    latest = latest_of(in_order).tolist() if latest_of is not None else [0] * len(in_order)
    earliest = 0
    returning = []
    for absence, begin in zip(in_order, latest, strict=True):
        begin = max(earliest, absence.freed_before, begin)
        begin = min(begin, absence.wanted_at)
        too_full = np.flatnonzero(memory[begin : absence.wanted_at] > budget_bytes - absence.bytes)
        earliest = begin + int(too_full[-1]) + 1 if too_full.size else begin
        memory[earliest : absence.wanted_at] += absence.bytes
        returning.append(replace(absence, back_before=earliest))
    return returning


def _woven(plain: Schedule, absent: Sequence[Absence]) -> Schedule:
    """Return a schedule without transfers with those of `absent`, which are in the order in which they come back."""
    before: dict[int, list[Step]] = defaultdict(list)
    after: dict[int, list[Step]] = defaultdict(list)
    moved: set[tuple[str, int]] = set()
    for absence in sorted(absent, key=lambda absence: absence.freed_before):
        if (absence.name, absence.made_at) not in moved:
            moved.add((absence.name, absence.made_at))
            after[absence.made_at].append(Offload(absence.name))
        before[absence.freed_before] += (Wait(absence.name), Free(absence.name))
    for absence in absent:
        before[absence.back_before].append(Prefetch(absence.name))
    for absence in absent:
        before[absence.wanted_at].append(Wait(absence.name))
    steps: list[Step] = []
    position = -1
    for step in plain.steps:
        if isinstance(step, Compute | Inplace):
            position += 1
            steps += (*before[position], step, *after[position])
        else:
            steps.append(step)
    return Schedule((*steps, *before[position + 1]))
