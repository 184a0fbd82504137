"""A verified schedule by step and in time, for charts and tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from remat_cli.core.graph import Graph, Phase
from remat_cli.core.schedule import Compute, Inplace, Prefetch, Schedule, changes, live_at, plain_run
from remat_cli.core.simulate import Trace
from remat_cli.core.solve import baseline_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One stay of a tensor in device memory.

    Attributes:
        start: index of the step that brings it into memory.
        end: index of the step that removes it; the number of steps if it stays to the end.
        fetched: whether it came back from the host instead of being computed.
    """

    start: int
    end: int
    fetched: bool = False


@dataclass(frozen=True, eq=False)
class Run:
    """A verified schedule with its measurement.

    Attributes:
        graph: the graph.
        schedule: the schedule.
        trace: the simulator's measurement.
    """

    graph: Graph
    schedule: Schedule
    trace: Trace

    @classmethod
    def plain(cls, graph: Graph) -> Run:
        """Return the plain run of `graph`, the reference for other runs."""
        return cls(graph, plain_run(graph), baseline_of(graph))

    @cached_property
    def durations(self) -> NDArray[np.int64]:
        """[steps + 1] time of the compute stream in each step, 0 for the start.

        If `counts_steps`, each step takes 1.
        """
        import numpy as np

        if self.counts_steps:
            return np.array([0] + [1] * len(self.schedule.steps), dtype=np.int64)
        times = np.array([0, *self.trace.times], dtype=np.int64)
        return times[1:] - times[:-1]

    @cached_property
    def counts_steps(self) -> bool:
        """Whether no step takes any time, so that steps are counted instead."""
        return self.trace.time == 0

    @property
    def total(self) -> int:
        """The sum of `durations`."""
        return int(self.durations.sum())

    @cached_property
    def computes(self) -> tuple[tuple[int, str], ...]:
        """Index and op of the steps that run an op, in place or not."""
        return tuple((i, step.op) for i, step in enumerate(self.schedule.steps) if isinstance(step, (Compute, Inplace)))

    @cached_property
    def recomputing(self) -> tuple[int, ...]:
        """Indices of the steps that rerun an op."""
        seen: set[str] = set()
        again = []
        for index, op in self.computes:
            if op in seen:
                again.append(index)
            seen.add(op)
        return tuple(again)

    @cached_property
    def first_backward(self) -> int | None:
        """Index of the first step that runs a backward op."""
        phases = ((index, self.graph.op[op].phase) for index, op in self.computes)
        return next((index for index, phase in phases if phase is Phase.BACKWARD), None)

    @cached_property
    def first_update(self) -> int | None:
        """Index of the first step of the updates that follow the backward pass."""
        first = None
        for index, op in reversed(self.computes):
            if self.graph.op[op].phase is not Phase.UPDATE:
                return first
            first = index
        return first

    @cached_property
    def moved_residents(self) -> frozenset[str]:
        """Residents that leave the device, or wait on the host."""
        moved = {step.tensor for step in self.schedule.steps if isinstance(step, Prefetch)}
        return frozenset(name for name in self.graph.residents if name in moved or name in self.schedule.on_host)

    @cached_property
    def lifetimes(self) -> Mapping[str, tuple[Lifetime, ...]]:
        """The stays of each tensor in memory, without graph inputs that stay."""
        return self.stays_of(self.graph.tensors)

    def stays_of(self, names: Collection[str]) -> dict[str, tuple[Lifetime, ...]]:
        """Return the stays of these tensors in memory; graph inputs that stay have none."""
        steps = self.schedule.steps
        residents = self.moved_residents.intersection(names)
        names = (self.graph.producer.keys() & names) | residents
        # Most steps do not concern any of a few tensors, which this shows at once.
        makers = {self.graph.producer[name].name for name in names - residents}
        makers.update(op.name for op in self.graph.ops if op.inplace in names)
        stays: dict[str, list[Lifetime]] = {}
        since = dict.fromkeys(residents.difference(self.schedule.on_host), -1)

        def leave(name: str, index: int) -> None:
            start = since.pop(name)
            fetched = start >= 0 and isinstance(steps[start], Prefetch)
            stays.setdefault(name, []).append(Lifetime(max(0, start), index, fetched=fetched))

        for index, step in enumerate(steps):
            if (step.op not in makers) if isinstance(step, (Compute, Inplace)) else (step.tensor not in names):
                continue
            arriving, leaving = changes(self.graph, step)
            for name in leaving:
                if name in names:
                    leave(name, index)
            for name in arriving:
                if name in names:
                    since.setdefault(name, index)
        for name in list(since):
            leave(name, len(steps))
        return {name: tuple(lifetimes) for name, lifetimes in stays.items()}

    @cached_property
    def peak_op(self) -> str | None:
        """The op that runs at the peak; None for a peak at the start."""
        return next((op for index, op in reversed(self.computes) if index <= self.trace.peak_step), None)

    def live_at(self, index: int) -> tuple[str, ...]:
        """Return the tensors in memory during step `index`.

        Graph inputs are left out.
        """
        return live_at(self.graph, self.schedule, index)
