"""What was planned for a model, and what ran: kept while it trains, and shown by `plan_of`."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import Trace, simulate
from remat_cli.core.solve import baseline_of, share_over
from remat_cli.errors import UsageError
from remat_cli.formats.writing import write_file
from remat_cli.units import format_bytes, format_count, format_share, format_time

_LOG = logging.getLogger("remat")

_VISIBLE = 0.03  # of a predicted peak; what is measured is otherwise at most so far from it


@dataclass(eq=False)
class PlannedGraph:
    """The plan that a captured graph runs by, and what was seen of its runs.

    Attributes:
        graph: what is planned.
        schedule: what runs.
        budget_bytes: total device memory that the plan keeps within; None where the schedule came from a file.
        fixed_bytes: always in memory: parameters, buffers, inputs, optimizer state.
        predicted_peak_bytes: of the plan, with what is always there.
        plain_peak_bytes: of the same graph unplanned.
        overhead: more time than the plain run takes, as a share of it.
        inputs: shapes of the tensors that the call is given, by name.
        calls: how often it ran.
        carried: the same plan at other sizes, as the judge finds it there.
        measured_peak_bytes: of each of the first steps that was measured, in the terms of the predicted peak.
        kernels: what was compiled for it; empty where eager's kernels run.
    """

    graph: Graph
    schedule: Schedule
    budget_bytes: int | None
    fixed_bytes: int
    predicted_peak_bytes: int
    plain_peak_bytes: int
    overhead: float
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    calls: int = 0
    carried: list[PlannedGraph] = field(default_factory=list)
    measured_peak_bytes: list[int] = field(default_factory=list)
    kernels: str = ""

    @classmethod
    def of(cls, graph: Graph, schedule: Schedule, trace: Trace, budget_bytes: int | None = None) -> PlannedGraph:
        """Return what is known of a plan before it runs.

        Args:
            graph: what is planned.
            schedule: the plan.
            trace: what the judge makes of it.
            budget_bytes: that it was made for; None where it came from a file.
        """
        plain = baseline_of(graph)
        return cls(
            graph=graph,
            schedule=schedule,
            budget_bytes=budget_bytes,
            fixed_bytes=graph.fixed_bytes,
            predicted_peak_bytes=trace.peak_bytes,
            plain_peak_bytes=plain.peak_bytes,
            overhead=share_over(trace.time, plain.time),
        )

    def __str__(self) -> str:
        """Return one line for a report or a log."""
        within = "" if self.budget_bytes is None else f" within {format_bytes(self.budget_bytes)}"
        inputs = ", ".join(f"{name} {'x'.join(map(str, shape)) or '()'}" for name, shape in self.inputs.items())
        return (
            f"{format_count(len(self.graph.ops))} ops{f' ({inputs})' if inputs else ''}{within}: predicted peak "
            f"{format_bytes(self.predicted_peak_bytes)} ({format_bytes(self.plain_peak_bytes)} unplanned), "
            f"{format_share(self.overhead)} more time{f'; {self.kernels}' if self.kernels else ''}"
        )


@dataclass(eq=False)
class PlanRecord:
    """What was planned for a model, and how its calls ran; `print` of it is a small report.

    Attributes:
        budget: as it was asked for; the file's name where the schedule came from a file.
        graphs: what was planned, in the order in which it was captured.
        last: what the last planned call ran by; None before there was one.
        backward_passes: how many ran as planned.
        unplanned: how many calls ran unplanned, by the reason.
        refused: how many calls did not run, as no plan fits at their sizes.
        is_part: another planned model has it as a part, and is planned as a whole.
        gradients_unplanned: gradients of the model's parameters arrived that no planned backward pass had made.
        without: what measured peaks leave out, in words.
        waited_ns: time that calls waited before they ran as planned, by what it was for, in nanoseconds.
        around_run: entered while a planned call runs.
        at_backward: called where a planned backward pass begins.
    """

    budget: str
    graphs: list[PlannedGraph] = field(default_factory=list)
    last: PlannedGraph | None = None
    backward_passes: int = 0
    unplanned: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    gradients_unplanned: bool = False
    is_part: bool = False
    without: str = ""
    waited_ns: Counter[str] = field(default_factory=Counter)
    around_run: Callable[[], AbstractContextManager[None]] = nullcontext
    at_backward: Callable[[], None] = lambda: None

    @property
    def calls(self) -> int:
        """How many calls ran as planned."""
        return sum(plan.calls for graph in self.graphs for plan in (graph, *graph.carried))

    def add(self, planned: PlannedGraph) -> PlannedGraph:
        """Note a plan, and tell of the first in the log where it is read by default; return the record's own of it."""
        own = next((graph for graph in self.graphs if graph.schedule is planned.schedule), None)
        if own is None:
            own = replace(planned, calls=0, carried=[], measured_peak_bytes=[])
            told(logging.INFO if self.graphs else logging.WARNING, f"planned {own}")
            self.graphs.append(own)
        return own

    @contextmanager
    def runs(self, graph: PlannedGraph) -> Iterator[None]:
        """Note that a call runs by a plan, while it does."""
        graph.calls += 1
        self.last = graph
        with self.around_run():
            yield

    def runs_back(self) -> None:
        """Note that a backward pass runs by a plan."""
        self.backward_passes += 1
        self.at_backward()

    def snapshot(self, path: str | Path) -> None:
        """Write the plan of the last planned call as a memory snapshot, for pytorch.org/memory_viz.

        Args:
            path: such as "plan.pickle".

        Raises:
            UsageError: nothing was planned yet, or the file cannot be written.
        """
        from remat_cli.allocation.snapshot import snapshot_bytes  # loads OR-tools

        plan = self.last or next(reversed(self.graphs), None)
        if plan is None:
            raise UsageError("nothing is planned yet, which a snapshot could show", hint="call the model once before")
        times = simulate(plan.graph, plan.schedule).times
        write_file(Path(path), snapshot_bytes(plan.graph, plan.schedule, times))

    def __str__(self) -> str:
        """Return the report."""
        lines = [f"Planned for {self.budget}: {_calls(self.calls)} as planned, {_calls(self.unplanned.total())} not"]
        if self.waited_ns.total():
            lines.append(f"  calls waited {waited(self.waited_ns)}")
        for graph in self.graphs:
            lines.append(f"  {graph}; {_calls(graph.calls)}")
            if ran := [plan for plan in graph.carried if plan.calls]:
                largest = max(plan.predicted_peak_bytes for plan in ran)
                calls = _calls(sum(plan.calls for plan in ran))
                lines.append(
                    f"    carried over to {len(ran)} other sizes: predicted peak up to {format_bytes(largest)}; {calls}"
                )
            if graph.measured_peak_bytes:
                measured = ", ".join(map(format_bytes, graph.measured_peak_bytes))
                lines.append(f"    measured peak of the first steps{self.without}: {measured}")
                more = max(graph.measured_peak_bytes) - graph.predicted_peak_bytes
                lines += beyond(more, graph.predicted_peak_bytes)
        lines += [f"  unplanned, {reason}: {_calls(count)}" for reason, count in self.unplanned.items()]
        if self.refused:
            lines.append(f"  refused, as no plan fits: {_calls(self.refused)}")
        if self.gradients_unplanned:
            lines.append(
                "  gradients arrived that no planned backward pass had made, as of a call that goes past the plan: "
                "model.forward(...), or a part of the model"
            )
        return "\n".join(lines)


def waited(spent_ns: Counter[str]) -> str:
    """Return how long calls waited, all together and for each thing."""
    each = ", ".join(f"{name} {format_time(time, 'ns')}" for name, time in spent_ns.items() if time)
    return f"{format_time(spent_ns.total(), 'ns')}: {each}"


def beyond(more: int, predicted: int) -> list[str]:
    """Return a line where steps took visibly more than was predicted, by so many bytes; else none."""
    if more <= _VISIBLE * predicted:
        return []
    return [
        f"    up to {format_bytes(more)} beyond the predicted peak: the optimizer's step, or what the model does not "
        "see (a loss outside it, another model, several calls before a backward pass)"
    ]


def told(level: int, text: str) -> None:
    """Write a line to the log; a warning goes to stderr, too, if logging is not set up."""
    _LOG.log(level, text)
    listeners = [handler for handler in (*_LOG.handlers, *logging.root.handlers) if not _is_deaf(handler)]
    if not listeners and level >= logging.WARNING and _LOG.isEnabledFor(level):
        sys.stderr.write(f"remat: {text}\n")


def _is_deaf(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.NullHandler)


def _calls(count: int) -> str:
    return f"{format_count(count)} {'call' if count == 1 else 'calls'}"
