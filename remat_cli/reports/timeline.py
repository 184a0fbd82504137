"""A verified schedule laid out step by step and in time, for charts and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from remat_cli.graph import Graph, Phase
from remat_cli.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule, plain_run
from remat_cli.simulate import Trace
from remat_cli.solve import baseline_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One stay of a tensor in device memory.

    Attributes:
        start: index of the step that brought it there.
        end: index of the step that took it away; the number of steps where it stayed to the end.
        fetched: brought back from the host instead of computed.
    """

    start: int
    end: int
    fetched: bool = False


@dataclass(frozen=True, eq=False)
class Run:
    """A schedule that the simulator has passed, and what it measured.

    Attributes:
        graph: what was run.
        schedule: how.
        trace: what the simulator measured.
    """

    graph: Graph
    schedule: Schedule
    trace: Trace

    @classmethod
    def plain(cls, graph: Graph) -> Run:
        """Return the plain run of `graph`, which every other run is compared with."""
        return cls(graph, plain_run(graph), baseline_of(graph))

    @cached_property
    def durations(self) -> NDArray[np.int64]:
        """[steps + 1] time that the compute stream spends in each step, 0 for the start; 1 a step if `counts_steps`."""
        import numpy as np

        if self.counts_steps:
            return np.array([0] + [1] * len(self.schedule.steps), dtype=np.int64)
        times = np.array([0, *self.trace.times], dtype=np.int64)
        return times[1:] - times[:-1]

    @cached_property
    def counts_steps(self) -> bool:
        """Whether nothing takes any time, so that there are only steps to count."""
        return self.trace.time == 0

    @property
    def total(self) -> int:
        """The sum of `durations`."""
        return int(self.durations.sum())

    @cached_property
    def computes(self) -> tuple[tuple[int, str], ...]:
        """The steps that run an op, in place or not: index and op."""
        return tuple((i, step.op) for i, step in enumerate(self.schedule.steps) if isinstance(step, (Compute, Inplace)))

    @cached_property
    def recomputing(self) -> tuple[int, ...]:
        """Indices of the steps that run an op again."""
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
    def copies(self) -> int:
        """Number of transfers between device and host."""
        return sum(1 for step in self.schedule.steps if isinstance(step, Offload | Prefetch))

    @cached_property
    def copied_bytes(self) -> int:
        """Bytes that go to the host and back."""
        tensors = self.graph.tensors
        return sum(tensors[step.tensor].bytes for step in self.schedule.steps if isinstance(step, Offload | Prefetch))

    @cached_property
    def lifetimes(self) -> Mapping[str, tuple[Lifetime, ...]]:
        """The stays of each tensor in memory, graph inputs left out: those never leave."""
        stays: dict[str, list[Lifetime]] = {}
        present: dict[str, tuple[int, bool]] = {}

        def leave(name: str, index: int) -> None:
            start, fetched = present.pop(name)
            stays.setdefault(name, []).append(Lifetime(start, index, fetched))

        for index, step in enumerate(self.schedule.steps):
            match step:
                case Free(tensor=name):
                    leave(name, index)
                case Prefetch(tensor=name):
                    present[name] = (index, True)
                case Compute(op=name) | Inplace(op=name):
                    op = self.graph.op[name]
                    if isinstance(step, Inplace) and op.inplace is not None:
                        leave(op.inplace, index)
                    for output in op.outputs:
                        present.setdefault(output, (index, False))
        for name in list(present):
            leave(name, len(self.schedule.steps))
        return {name: tuple(lifetimes) for name, lifetimes in stays.items()}

    @cached_property
    def peak_op(self) -> str | None:
        """The op that runs at the peak; None where the peak is at the start."""
        return next((op for index, op in reversed(self.computes) if index <= self.trace.peak_step), None)

    def live_at(self, index: int) -> tuple[str, ...]:
        """Return the tensors that are in memory while step `index` runs; graph inputs left out."""
        return tuple(name for name, stays in self.lifetimes.items() for stay in stays if stay.start <= index < stay.end)


def recomputed_ops(trace: Trace) -> int:
    """Return the number of ops that run more than once."""
    return sum(1 for runs in trace.runs.values() if runs > 1)
