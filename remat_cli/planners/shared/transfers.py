"""Transfers in a sequence of runs, and their schedule.

Between two uses an instance may be on the host only. Its offload begins when it is produced, its prefetch ends before
the next use; in each direction the link moves one instance after the other. An instance is offloaded at most once,
because its host copy stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.link import Link
from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule, Step, Wait, with_frees
from remat_cli.core.simulate import Trace
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.shared.numbering import Bools, Ints
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.settings import Setting

Floats = NDArray[np.floating[Any]]


def known_link(problem: Problem, planner: str, instead: str) -> Link:
    """Return the link to the host.

    Args:
        problem: the problem to plan.
        planner: name of the planner that needs the link, for the message.
        instead: name of a planner that only recomputes, for the hint.

    Raises:
        PlannerRefuses: the link's bandwidth is unknown.
    """
    if problem.link is None:
        raise PlannerRefuses(
            f"{planner} moves tensors to the host and back, but the bandwidth of the link is not known",
            hint=(
                "give ",
                Setting("link_bandwidth"),
                " or ",
                Setting("device"),
                f"; or use {instead}, which only recomputes",
            ),
        )
    return problem.link


@dataclass(frozen=True, slots=True)
class Absence:
    """A span in which an instance is not on the device.

    All times are positions in a sequence.

    Attributes:
        name: name of the tensor.
        bytes: its size.
        produced_at: production of the instance, when its offload begins.
        left_after: the use after which it may leave.
        wanted_at: the next use.
        freed_before: the run that needs its memory.
        back_before: the run before which its prefetch begins, and takes its memory again.
    """

    name: str
    bytes: int
    produced_at: int
    left_after: int
    wanted_at: int
    freed_before: int = -1
    back_before: int = -1


@dataclass(frozen=True, eq=False)
class IdleGaps:
    """Gaps between two uses of instances that may move, in the order of the instances.

    Attributes:
        instance: [G] number of each instance.
        left_after: [G] position of the use before.
        wanted_at: [G] position of the use after; M for the end.
    """

    instance: Ints
    left_after: Ints
    wanted_at: Ints

    @classmethod
    def of(cls, sequence: RematSequence, may_move: Bools) -> IdleGaps:
        """Return the gaps of movable tensors.

        Args:
            sequence: the sequence of runs.
            may_move: [T] whether each tensor of the graph may move.
        """
        produced_at, tensor = sequence.instances
        read_at, read = sequence.read
        moves = may_move[tensor]
        inside = moves[read]
        instance = np.concatenate([np.flatnonzero(moves), read[inside]])
        used_at = np.concatenate([produced_at[moves], read_at[inside]])
        order = np.lexsort((used_at, instance))
        instance, used_at = instance[order], used_at[order]
        is_gap = (instance[1:] == instance[:-1]) & (used_at[1:] > used_at[:-1] + 1)
        return cls(instance[:-1][is_gap], used_at[:-1][is_gap], used_at[1:][is_gap])


@dataclass(frozen=True, eq=False)
class OffloadSequence(RematSequence):
    """A sequence in which some tensors may be on the host between uses.

    Its memory leaves out every instance that can be on the host without a wait for the link.

    Attributes:
        may_move: [T] whether each tensor of the graph may move.
        time_per_byte: time of the link per byte.
        waits: [N] the device's wait for the link before the first run of each op.
    """

    may_move: Bools
    time_per_byte: float
    waits: Floats

    @classmethod
    def moving(cls, sequence: RematSequence, may_move: Bools, time_per_byte: float) -> OffloadSequence:
        """Return a sequence with movable tensors and without waits.

        Args:
            sequence: the sequence of runs.
            may_move: [T] whether each tensor of the graph may move.
            time_per_byte: time of the link per byte.
        """
        may_leave = may_move & ~sequence.graph.arrays.is_held
        return cls(sequence.reads, sequence.ops, may_leave, time_per_byte, np.zeros(len(sequence.graph.ops)))

    @classmethod
    def moving_named(cls, sequence: RematSequence, names: Iterable[str], bytes_per_time: Fraction) -> OffloadSequence:
        """Return a sequence with movable tensors, given by name.

        Args:
            sequence: the sequence of runs.
            names: names of the movable tensors.
            bytes_per_time: rate of the link.
        """
        number = {name: index for index, name in enumerate(sequence.graph.arrays.tensor_names)}
        may_move = np.zeros(len(number), dtype=np.bool_)
        may_move[[number[name] for name in names]] = True
        return cls.moving(sequence, may_move, 1 / float(bytes_per_time))

    def waiting_as(self, schedule: Schedule, trace: Trace) -> OffloadSequence:
        """Return the sequence with the waits of a replay.

        Args:
            schedule: schedule of these runs.
            trace: its replay.
        """
        runs = [isinstance(step, Compute | Inplace) for step in schedule.steps]
        ends = np.array(trace.times[1:], dtype=np.int64)[runs]
        idle = np.diff(ends, prepend=0) - self.run_time
        first = np.flatnonzero(~self.is_rerun)
        # A wait before a rerun counts as a wait before the next first run.
        follows = np.searchsorted(first, np.arange(first[-1] + 1))
        waits = np.zeros(len(self.graph.ops))
        np.add.at(waits, self.ops[first[follows]], idle[: first[-1] + 1])
        return replace(self, waits=waits)

    @cached_property
    def gaps(self) -> IdleGaps:
        """The gaps in which movable instances could be on the host."""
        return IdleGaps.of(self, self.may_move)

    @cached_property
    def _end(self) -> Floats:
        """[M] end of each run."""
        return np.cumsum(self.run_time + np.where(self.is_rerun, 0.0, self.waits[self.ops]))

    @cached_property
    def _start(self) -> Floats:
        """[M + 1] start of each run, followed by the end."""
        return np.append(self._end - self.run_time, self._end[-1:])

    @cached_property
    def _away(self) -> tuple[Ints, Ints, Ints]:
        """Instances, the first run without each, and the run before its prefetch."""
        gaps, start, produced_at = self.gaps, self._start, self.instances[0]
        end = np.append(self._end, np.inf)
        instance, left, wanted = gaps.instance, gaps.left_after, gaps.wanted_at
        for queued in (False, True):
            duration = self.bytes[instance] * self.time_per_byte
            out = _ends(end[produced_at[instance]], _once(instance, duration) if queued else duration, queued)
            back = -_ends_by_order(-start[wanted], duration, np.lexsort((-instance, -wanted)), queued)
            leaves = np.maximum(left + 1, np.searchsorted(start, out))
            returns = np.minimum(np.searchsorted(end, back, side="right"), wanted)
            pays = returns > leaves
            instance, left, wanted = instance[pays], left[pays], wanted[pays]
        return instance, leaves[pays], returns[pays]

    @cached_property
    def memory(self) -> Ints:
        """[M] bytes during each run with as many instances on the host as can be.

        These are the instances that can leave and return without a wait.
        """
        return self._memory_without(*self._away)[:-1]

    def away_at(self, at: int) -> Ints:
        """Return the instances that can be on the host during a run."""
        instance, leaves, returns = self._away
        return instance[(leaves <= at) & (at < returns)]

    @cached_property
    def _held(self) -> Ints:
        """[M + 1] bytes during each run and at the end, all on the device."""
        end = self.reads.graph.fixed_bytes + int(self.bytes[self.inputs[len(self)]].sum())
        return np.append(RematSequence(self.reads, self.ops).memory, end)

    def _memory_without(self, instance: Ints, leaves: Ints, returns: Ints) -> Ints:
        """[M + 1] bytes as `_held`, without instances between two runs each."""
        change = np.zeros(len(self) + 2, dtype=np.int64)
        np.subtract.at(change, leaves, self.bytes[instance])
        np.add.at(change, returns, self.bytes[instance])
        return self._held + np.cumsum(change)[: len(self) + 1]

    @property
    def least_bytes(self) -> int:
        """The least budget: all movable instances away in all gaps.

        Waits for the link do not count.
        """
        gaps = self.gaps
        return int(self._memory_without(gaps.instance, gaps.left_after + 1, gaps.wanted_at).max())

    def schedule_within(self, budget_bytes: int, early: bool = True) -> Schedule:
        """Return a schedule within a budget, with needed transfers only.

        Args:
            budget_bytes: device memory, `least_bytes` or more.
            early: whether to prefetch as soon as there is memory; otherwise just in time.
        """
        memory = self._held.copy()
        gaps = self.gaps
        produced_at, tensor = self.instances
        names = self.graph.arrays.tensor_names
        possible = [
            Absence(names[tensor[each]], int(self.bytes[each]), int(produced_at[each]), left, wanted)
            for each, left, wanted in zip(
                gaps.instance.tolist(), gaps.left_after.tolist(), gaps.wanted_at.tolist(), strict=True
            )
        ]
        absent = _leave(possible, self._ready.tolist(), memory, budget_bytes)
        absent.sort(key=lambda absence: (absence.wanted_at, -absence.produced_at))
        latest = [0] * len(absent) if early else self._latest(absent)
        return _woven(with_frees(self.graph, self.names), _come_back(absent, latest, memory, budget_bytes))

    @property
    def _ready(self) -> Ints:
        """[G] the first run before which each instance's host copy is complete."""
        instance = self.gaps.instance
        duration = _once(instance, self.bytes[instance] * self.time_per_byte)
        out = _ends(self._end[self.instances[0][instance]], duration, queued=True)
        return np.maximum(self.gaps.left_after + 1, np.searchsorted(self._start, out))

    def _latest(self, absent: Sequence[Absence]) -> list[int]:
        """Return the latest run before each prefetch without a wait.

        They are in the order of return.
        """
        wanted = np.array([absence.wanted_at for absence in absent], dtype=np.int64)
        duration = np.array([absence.bytes for absence in absent]) * self.time_per_byte
        back = -_ends_by_order(-self._start[wanted], duration, np.arange(len(absent))[::-1], queued=True)
        latest: list[int] = np.searchsorted(self._end, back, side="right").tolist()
        return latest


def _once(instance: Ints, duration: Floats) -> Floats:
    """Return the durations, 0 for repeated instances.

    These have a host copy already.
    """
    first = np.ones(len(instance), dtype=np.bool_)
    first[1:] = instance[1:] != instance[:-1]
    return np.where(first, duration, 0.0)


def _ends(ready: Floats, duration: Floats, queued: bool) -> Floats:
    """Return the end of each transfer.

    A transfer starts when it is ready and, if queued, after the previous one.
    """
    if not queued:
        return ready + duration
    total = np.cumsum(duration)
    ends: Floats = total + np.maximum.accumulate(ready - (total - duration))
    return ends


def _ends_by_order(ready: Floats, duration: Floats, order: Ints, queued: bool) -> Floats:
    ends = np.empty(len(ready))
    ends[order] = _ends(ready[order], duration[order], queued)
    return ends


def _leave(possible: Sequence[Absence], ready: Sequence[int], memory: Ints, budget_bytes: int) -> list[Absence]:
    """Return the instances that leave, and the run for which each leaves.

    Of the instances with a finished copy on the host, the one wanted last leaves; if there is none, the one whose copy
    is finished first.

    Args:
        possible: absences in the order in which the link takes them.
        ready: for each absence, the first run before which the instance can leave without a wait.
        memory: bytes during each run, and at the end; each leaving instance is subtracted, as if it came back just
            before its next use.
        budget_bytes: device memory, enough if all instances are away.
    """
    by_ready = sorted(range(len(possible)), key=lambda number: ready[number], reverse=True)
    by_last_use = sorted(range(len(possible)), key=lambda number: possible[number].left_after, reverse=True)
    copied: list[tuple[int, int]] = []  # heaps: instances wanted last come first
    out_of_use: list[int] = []  # oldest first
    is_gone = bytearray(len(possible))
    absent: list[Absence] = []
    for position in np.flatnonzero(memory > budget_bytes).tolist():
        while by_ready and ready[by_ready[-1]] <= position:
            number = by_ready.pop()
            heappush(copied, (-possible[number].wanted_at, number))
        while by_last_use and possible[by_last_use[-1]].left_after < position:
            heappush(out_of_use, by_last_use.pop())
        while memory[position] > budget_bytes:
            number = heappop(copied)[1] if copied else heappop(out_of_use)
            absence = possible[number]
            if absence.wanted_at > position and not is_gone[number]:
                is_gone[number] = True
                memory[position : absence.wanted_at] -= absence.bytes
                absent.append(replace(absence, freed_before=position))
    return _without_needless(absent, memory, budget_bytes)


def _without_needless(absent: Sequence[Absence], memory: Ints, budget_bytes: int) -> list[Absence]:
    """Drop absences that later, larger ones make needless.

    Their bytes are added to `memory`.
    """
    needed = []
    for absence in reversed(absent):
        away = memory[absence.freed_before : absence.wanted_at]
        if away.max() + absence.bytes <= budget_bytes:
            away += absence.bytes
        else:
            needed.append(absence)
    return needed


def _come_back(absent: Sequence[Absence], latest: Sequence[int], memory: Ints, budget_bytes: int) -> list[Absence]:
    """Set the start of each prefetch as early as memory allows.

    It is the run before which the prefetch begins.

    Args:
        absent: absences in the order of return.
        latest: for each absence, the earliest run before which its prefetch may begin.
        memory: memory as left by `_leave`.
        budget_bytes: device memory.
    """
    earliest = 0
    returning = []
    for absence, not_before in zip(absent, latest, strict=True):
        begin = min(max(earliest, absence.freed_before, not_before), absence.wanted_at)
        too_full = np.flatnonzero(memory[begin : absence.wanted_at] > budget_bytes - absence.bytes)
        earliest = begin + int(too_full[-1]) + 1 if too_full.size else begin
        memory[earliest : absence.wanted_at] += absence.bytes
        returning.append(replace(absence, back_before=earliest))
    return returning


def _woven(plain: Schedule, absent: Sequence[Absence]) -> Schedule:
    """Return a schedule with the transfers of `absent`, in prefetch order."""
    before: dict[int, list[Step]] = defaultdict(list)
    after: dict[int, list[Step]] = defaultdict(list)
    moved: set[tuple[str, int]] = set()
    for absence in sorted(absent, key=lambda absence: absence.freed_before):
        if (absence.name, absence.produced_at) not in moved:
            moved.add((absence.name, absence.produced_at))
            after[absence.produced_at].append(Offload(absence.name))
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
