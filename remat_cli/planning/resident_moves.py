"""Moves of residents woven into a schedule: fetched before their use, and sent back after their update.

The schedule comes from a view of the step in which these residents are workspace of the ops that read them. So there is
room for each of them while such an op runs. Where there is more, a resident stays between two uses, is fetched ahead,
and is sent back while other ops run.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.graph import Graph
from remat_cli.core.link import Direction, Duplex, Link
from remat_cli.core.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule, Step, Wait
from remat_cli.core.simulate import Trace, simulate
from remat_cli.planning.step_views import runs_of, without_residents

Ints = NDArray[np.int64]
# The place before the first run.
_START = -1


@dataclass(frozen=True, slots=True)
class _Gap:
    """Runs between two uses of a resident, or before the first and after the last.

    Attributes:
        name: name of the resident.
        spans: the runs, as pairs of the first and the one after the last.
        transfers: transfers that a resident saves by staying.
    """

    name: str
    spans: tuple[tuple[int, int], ...]
    transfers: int


class _Leave(Enum):
    """What happens at the end of a stay."""

    DROPPED = "dropped"  # the host copy holds its value
    SENT = "sent"
    NEVER = "never"  # it stays to the end of the step


@dataclass(frozen=True, slots=True)
class _Stay:
    """A stay of a resident on the device.

    Attributes:
        name: name of the resident.
        first: first run that uses it; -1 for a resident that is there at the start.
        last: last run that uses it; -1 for a resident that leaves at the start.
        leave: what happens then.
    """

    name: str
    first: int
    last: int
    leave: _Leave


class ResidentMoves:
    """Weaves the moves of residents into one schedule.

    Args:
        graph: the step.
        schedule: a schedule of the view without the residents, whose peak fits the budget.
        away: names of the residents.
        budget_bytes: device memory.
        link: link to the host.
    """

    def __init__(self, graph: Graph, schedule: Schedule, away: Collection[str], budget_bytes: int, link: Link) -> None:
        self._graph, self._schedule, self._link = graph, schedule, link
        self._runs = runs_of(schedule)
        self._bytes = {name: graph.tensors[name].bytes for name in away}
        self._uses, self._written = self._uses_of(away)
        light = without_residents(graph, away, as_workspace=False)
        trace = simulate(light, schedule, link=link)
        starts = np.array(self._runs, dtype=np.int64)
        self._room: Ints = budget_bytes - np.maximum.reduceat(np.array(trace.memory_bytes[1:], dtype=np.int64), starts)
        for name, runs in self._uses.items():
            self._room[runs] -= self._bytes[name]
        self._ends = np.array([0, *(trace.times[index + 1] for index in self._runs)], dtype=np.int64)

    def _uses_of(self, away: Collection[str]) -> tuple[dict[str, list[int]], set[str]]:
        """Return the runs that use each resident, and the residents that are written."""
        uses: dict[str, list[int]] = {name: [] for name in away}
        written: set[str] = set()
        for place, index in enumerate(self._runs):
            step = self._schedule.steps[index]
            assert isinstance(step, Compute | Inplace)
            op = self._graph.op[step.op]
            for name in op.inputs:
                if name in uses:
                    uses[name].append(place)
            written.update(name for name in op.writes if name in uses)
        return uses, written

    def woven(self, reserve_bytes: int, *, cross: bool) -> Schedule:
        """Return the schedule with the moves.

        Args:
            reserve_bytes: memory left for fetching ahead and sending back, where it could keep residents instead.
            cross: whether residents may stay after their update, and leave in the next step.
        """
        room = self._room.copy()
        kept = self._kept_spans(room, reserve_bytes)
        crossing = frozenset(self._crossing(room, kept) if cross else ())
        stays: list[_Stay] = []
        on_host = []
        for name, runs in self._uses.items():
            of_name = self._stays(name, runs, kept, is_there=name in crossing)
            stays += of_name
            if not of_name or of_name[0].first >= 0:
                on_host.append(name)
        return _Weaver(self, room, stays, on_host).run()

    def _kept_spans(self, room: Ints, reserve_bytes: int) -> set[tuple[str, int]]:
        """Return the spans in which residents stay, and take their memory from the room.

        The gaps of the least time for each transfer saved come first.
        """
        kept: set[tuple[str, int]] = set()
        for gap in sorted(self._gaps(), key=self._time_for_a_transfer):
            spans = [span for span in gap.spans if (gap.name, span[0]) not in kept]
            size = self._bytes[gap.name]
            if all(
                room[max(0, begin) : end].min(initial=size + reserve_bytes) >= size + reserve_bytes
                for begin, end in spans
            ):
                for begin, end in spans:
                    room[max(0, begin) : end] -= size
                    kept.add((gap.name, begin))
        return kept

    def _gaps(self) -> Iterator[_Gap]:
        for name, runs in self._uses.items():
            if not runs:
                continue
            between = tuple((one + 1, other) for one, other in pairwise(runs))
            yield from (_Gap(name, (span,), 1) for span in between)
            around = ((_START, runs[0]), (runs[-1] + 1, len(self._runs)))
            if name in self._written:
                yield _Gap(name, around, 1)
            yield _Gap(name, (*between, *around), len(runs) + (name in self._written))

    def _time_for_a_transfer(self, gap: _Gap) -> tuple[float, str, int]:
        time = sum(int(self._ends[end] - self._ends[max(0, begin)]) for begin, end in gap.spans)
        return time / gap.transfers, gap.name, gap.transfers

    def _crossing(self, room: Ints, kept: Collection[tuple[str, int]]) -> list[str]:
        """Return residents that stay after their update, and leave as the next step begins.

        Their memory after the update is taken from the room. The link takes them away before there is too little.
        """
        crossing: list[str] = []
        leaving = 0
        candidates = (name for name in self._written if self._uses[name] and (name, _START) not in kept)
        for name in sorted(candidates, key=lambda name: (-self._uses[name][-1], name)):
            size, after = self._bytes[name], self._uses[name][-1] + 1
            full = np.flatnonzero(room[: self._uses[name][0]] < leaving + size)
            time = self._ends[full[0]] if full.size else self._ends[self._uses[name][0]]
            if room[after:].min(initial=size) >= size and self._link.transfer_time(leaving + size) <= time:
                room[after:] -= size
                leaving += size
                crossing.append(name)
        return crossing

    def _stays(
        self, name: str, runs: Sequence[int], kept: Collection[tuple[str, int]], *, is_there: bool
    ) -> list[_Stay]:
        """Return the stays of a resident; none for one that never leaves the device, or the host."""
        bounds: list[tuple[int, int]] = []
        for run in runs:
            if bounds and (name, bounds[-1][1] + 1) in kept:
                bounds[-1] = bounds[-1][0], run
            else:
                bounds.append((run, run))
        last = _Leave.SENT if name in self._written else _Leave.DROPPED
        stays = [_Stay(name, *bound, leave=last if bound is bounds[-1] else _Leave.DROPPED) for bound in bounds]
        wraps = (name, _START) in kept
        if stays and (wraps or is_there):
            stays[-1] = replace(stays[-1], leave=_Leave.NEVER)
            sent = replace(stays[0], first=_START, leave=stays[0].leave if len(stays) == 1 else _Leave.SENT)
            stays[:1] = [sent] if wraps else [_Stay(name, _START, _START, _Leave.SENT), stays[0]]
        return stays


class _Weaver:
    """Walks through a schedule in time, and issues transfers when the link gets free."""

    def __init__(self, moves: ResidentMoves, room: Ints, stays: Sequence[_Stay], on_host: Sequence[str]) -> None:
        self._moves, self._room, self._on_host = moves, room, on_host
        self._bytes, self._link = moves._bytes, moves._link
        self._to_fetch = deque(
            sorted((stay for stay in stays if stay.first >= 0), key=lambda stay: (stay.first, stay.last, stay.name))
        )
        self._present = {stay.name for stay in stays if stay.first < 0}
        self._arriving: dict[str, int] = {}  # end of each fetch that has not been waited for
        self._leaving: deque[tuple[str, int]] = deque()  # what is on its way back, with the end of the transfer
        self._leaving_bytes = 0
        self._ending: dict[int, list[_Stay]] = {}
        for stay in stays:
            self._ending.setdefault(stay.last, []).append(stay)
        self._queues: dict[Direction | None, int] = {}
        self._now = 0
        self._steps: list[Step] = []

    def run(self) -> Schedule:
        place_of = {index: place for place, index in enumerate(self._moves._runs)}
        own_ends: dict[str, int] = {}
        self._end_stays(_START)
        for index, step in enumerate(self._moves._schedule.steps):
            place = place_of.get(index)
            if place is not None:
                self._before(place, step)
            self._steps.append(step)
            if isinstance(step, Offload | Prefetch):
                own_ends[step.tensor] = self._transfer(step)
            elif isinstance(step, Wait):
                self._now = max(self._now, own_ends[step.tensor])
            if place is not None:
                self._after(place, step)
        while self._leaving:
            self._let_go()
        return Schedule(tuple(self._steps), tuple(sorted(self._on_host)))

    def _time_of(self, step: Step) -> int:
        assert isinstance(step, Compute | Inplace)
        return self._moves._graph.op[step.op].time

    def _before(self, place: int, step: Step) -> None:
        """Let go of what has left, fetch ahead, and wait for what the run uses."""
        while self._leaving and self._leaving[0][1] <= self._now:
            self._let_go()
        while self._leaving and self._leaving_bytes > self._room[place]:
            self._let_go()
        idle_until = self._now + self._time_of(step)
        while self._to_fetch and self._to_fetch[0].first <= place:
            self._fetch(place)
        while self._to_fetch and self._queues.get(self._queue(Direction.TO_DEVICE), 0) < idle_until:
            stay = self._to_fetch[0]
            size = self._bytes[stay.name]
            has_room = self._room[place : stay.first].min() >= size and self._room[place] >= size + self._leaving_bytes
            if stay.name in self._present or not has_room:
                break
            self._fetch(place)
        for name in self._moves._graph.op[_op_of(step)].inputs:
            if name in self._arriving:
                self._steps.append(Wait(name))
                self._now = max(self._now, self._arriving.pop(name))

    def _fetch(self, place: int) -> None:
        stay = self._to_fetch.popleft()
        while stay.name in self._present:
            self._let_go()
        self._room[place : stay.first] -= self._bytes[stay.name]
        self._present.add(stay.name)
        prefetch = Prefetch(stay.name)
        self._steps.append(prefetch)
        self._arriving[stay.name] = self._transfer(prefetch)

    def _after(self, place: int, step: Step) -> None:
        """Go on in time, and end the stays that end here."""
        self._now += self._time_of(step)
        self._end_stays(place)

    def _end_stays(self, place: int) -> None:
        """Free what is not used any more, or send it back."""
        for stay in self._ending.get(place, ()):
            if stay.leave is _Leave.SENT:
                offload = Offload(stay.name)
                self._steps.append(offload)
                self._leaving.append((stay.name, self._transfer(offload)))
                self._leaving_bytes += self._bytes[stay.name]
            elif stay.leave is _Leave.DROPPED:
                self._steps.append(Free(stay.name))
                self._present.remove(stay.name)

    def _let_go(self) -> None:
        name, end = self._leaving.popleft()
        self._leaving_bytes -= self._bytes[name]
        self._now = max(self._now, end)
        self._steps += (Wait(name), Free(name))
        self._present.remove(name)

    def _queue(self, direction: Direction) -> Direction | None:
        return direction if self._link.duplex is Duplex.FULL else None

    def _transfer(self, step: Offload | Prefetch) -> int:
        """Queue a transfer, and return its end."""
        queue = self._queue(Direction.TO_HOST if isinstance(step, Offload) else Direction.TO_DEVICE)
        size = self._moves._graph.tensors[step.tensor].bytes
        end = max(self._now, self._queues.get(queue, 0)) + self._link.transfer_time(size)
        self._queues[queue] = end
        return end


def _op_of(step: Step) -> str:
    assert isinstance(step, Compute | Inplace)
    return step.op


def with_moves(
    graph: Graph, schedule: Schedule, away: Collection[str], budget_bytes: int, link: Link
) -> tuple[Schedule, Trace]:
    """Return the fastest schedule found with moves of the residents, and its replay.

    Args:
        graph: the step.
        schedule: a schedule of the view without the residents, whose peak fits the budget.
        away: names of the residents.
        budget_bytes: device memory.
        link: link to the host.
    """
    moves = ResidentMoves(graph, schedule, away, budget_bytes, link)
    largest = max((graph.tensors[name].bytes for name in away), default=0)
    found = []
    # The last has each resident on the host but for its uses.
    for reserve, cross in ((0, True), (largest, True), (2 * largest, True), (0, False), (sys.maxsize // 2, False)):
        woven = moves.woven(reserve, cross=cross)
        found.append((woven, simulate(graph, woven, link=link)))
    return min(found, key=lambda each: each[1].time)
