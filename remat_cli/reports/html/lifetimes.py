"""Lifetimes of tensors in a run, with their reads and returns.

They also say why a tensor is evicted and comes back. Time is counted in *moments*: the steps of a schedule without the
frees. A free takes no time; its tensor is gone from the next moment on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

from remat_cli.core.schedule import Compute, Free, Inplace, Offload, Prefetch, Step, Wait
from remat_cli.reports.timeline import Lifetime, Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Doing(IntEnum):
    """The device's activity in a moment."""

    FIRST_RUN = 0
    RERUN = 1
    OFFLOAD = 2
    PREFETCH = 3
    WAIT = 4


class Arrival(IntEnum):
    """The way in which a tensor came into memory."""

    MADE = 0
    RECOMPUTED = 1
    FETCHED = 2


@dataclass(frozen=True, slots=True)
class Stay:
    """A tensor's stay in device memory; all times are moments.

    Attributes:
        start: moment in which it comes into memory.
        end: moment from which on it is gone; the number of moments if it stays to the end.
        arrival: the way in which it came.
        first_read: moment of its first reader; None without one.
        last_read: moment of its last reader; None without one.
        offload: moment of its copy to the host; None without one.
        taken_over: whether the op of moment `end` works in place on its storage.
        fullest: moment of the largest memory until it comes back; None if it does not.
    """

    start: int
    end: int
    arrival: Arrival
    first_read: int | None = None
    last_read: int | None = None
    offload: int | None = None
    taken_over: bool = False
    fullest: int | None = None


@dataclass(frozen=True, eq=False)
class Story:
    """A run, divided into moments.

    Attributes:
        run: the run.
    """

    run: Run

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """[M] index of each moment's step."""
        return tuple(index for index, step in enumerate(self.run.schedule.steps) if not isinstance(step, Free))

    @cached_property
    def doing(self) -> tuple[Doing, ...]:
        """[M] activity of the device in each moment."""
        reruns = set(self.run.recomputing)
        return tuple(
            Doing.RERUN if index in reruns else _DOING[type(self.run.schedule.steps[index])] for index in self.steps
        )

    @cached_property
    def memory(self) -> NDArray[np.int64]:
        """[M] device memory during each moment, in bytes."""
        import numpy as np

        return np.array(self.run.trace.memory_bytes, dtype=np.int64)[np.array(self.steps, dtype=np.int64) + 1]

    @cached_property
    def durations(self) -> NDArray[np.int64]:
        """[M] time of the compute stream in each moment, without gaps."""
        import numpy as np

        times = np.array(self.run.trace.times, dtype=np.int64)
        return (times[1:] - times[:-1])[np.array(self.steps, dtype=np.int64)]

    @cached_property
    def stays(self) -> Mapping[str, tuple[Stay, ...]]:
        """The stays of each tensor that an op produces, in order."""
        touched = _Touched(self.run)
        return {
            name: tuple(self._stay(name, number, lifetimes, touched) for number in range(len(lifetimes)))
            for name, lifetimes in self.run.lifetimes.items()
        }

    @cached_property
    def served(self) -> Mapping[int, int]:
        """For each recomputing moment, the moment of its first read.

        If the reader is recomputed, too, this is the first run that the whole chain of recomputations serves.
        """
        wanted: dict[int, int] = {}
        for stays in self.stays.values():
            for stay in stays:
                if stay.arrival is Arrival.RECOMPUTED and stay.first_read is not None:
                    wanted[stay.start] = min(stay.first_read, wanted.get(stay.start, stay.first_read))
        served: dict[int, int] = {}
        for moment in sorted(wanted, reverse=True):
            reader = wanted[moment]
            served[moment] = served.get(reader, reader)
        return served

    def _moment(self, step: int) -> int:
        """Return the moment of a step; for a free, the next moment."""
        return bisect_left(self.steps, step)

    def _stay(self, name: str, number: int, lifetimes: Sequence[Lifetime], touched: _Touched) -> Stay:
        lifetime = lifetimes[number]
        steps = self.run.schedule.steps
        end = self._moment(lifetime.end)
        back = self._moment(lifetimes[number + 1].start) if number + 1 < len(lifetimes) else None
        key = (name, number)
        return Stay(
            start=self._moment(lifetime.start),
            end=end,
            arrival=Arrival.FETCHED if lifetime.fetched else Arrival.RECOMPUTED if number else Arrival.MADE,
            first_read=self._optional_moment(touched.first_read.get(key)),
            last_read=self._optional_moment(touched.last_read.get(key)),
            offload=self._optional_moment(touched.offload.get(key)),
            taken_over=lifetime.end < len(steps) and isinstance(steps[lifetime.end], Inplace),
            fullest=None if back is None else self._fullest(end, back),
        )

    def _optional_moment(self, step: int | None) -> int | None:
        return None if step is None else self._moment(step)

    def _fullest(self, start: int, end: int) -> int | None:
        """Return the moment of largest memory in [start, end), or None.

        None: the range is empty.
        """
        return start + int(self.memory[start:end].argmax()) if start < end else None


_DOING: Mapping[type[Step], Doing] = {
    Compute: Doing.FIRST_RUN,
    Inplace: Doing.FIRST_RUN,
    Offload: Doing.OFFLOAD,
    Prefetch: Doing.PREFETCH,
    Wait: Doing.WAIT,
}


class _Touched:
    """The steps that read or offload each stay.

    A stay is identified by its tensor and its number.
    """

    def __init__(self, run: Run) -> None:
        self.first_read: dict[tuple[str, int], int] = {}
        self.last_read: dict[tuple[str, int], int] = {}
        self.offload: dict[tuple[str, int], int] = {}
        starts = {name: [stay.start for stay in stays] for name, stays in run.lifetimes.items()}
        for index, step in enumerate(run.schedule.steps):
            match step:
                case Compute(op=op) | Inplace(op=op):
                    for name in run.graph.op[op].inputs:
                        if name in starts:
                            # An op's inputs are in memory before its step.
                            key = (name, bisect_left(starts[name], index) - 1)
                            self.first_read.setdefault(key, index)
                            self.last_read[key] = index
                case Offload(tensor=name) if name in starts:
                    self.offload[(name, bisect_left(starts[name], index) - 1)] = index


@dataclass(frozen=True, slots=True)
class Rerun:
    """An op, or all ops of a type, with reruns.

    Attributes:
        name: name of the op or type.
        ops: number of ops.
        runs: number of reruns.
        time: time of the reruns.
        bytes: bytes that the reruns recompute.
    """

    name: str
    ops: int
    runs: int
    time: int
    bytes: int


def reruns_by_op(run: Run) -> list[Rerun]:
    """Return the ops with reruns, most extra time first."""
    tensors = run.graph.tensors
    reruns = []
    for op in run.graph.ops:
        extra = run.trace.runs[op.name] - 1
        if extra > 0:
            output_bytes = sum(tensors[name].bytes for name in op.outputs)
            reruns.append(Rerun(op.name, 1, extra, extra * op.time, extra * output_bytes))
    return sorted(reruns, key=lambda rerun: -rerun.time)


def reruns_by_type(run: Run) -> list[Rerun]:
    """Return the types of the ops with reruns, most extra time first."""
    types: dict[str, list[Rerun]] = {}
    for rerun in reruns_by_op(run):
        types.setdefault(run.graph.op[rerun.name].type, []).append(rerun)
    summed = [
        Rerun(name, len(part), sum(r.runs for r in part), sum(r.time for r in part), sum(r.bytes for r in part))
        for name, part in types.items()
    ]
    return sorted(summed, key=lambda rerun: (-rerun.time, rerun.name))
