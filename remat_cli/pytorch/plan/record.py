"""The record of a model's plans and runs.

It is kept while the model trains; `plan_of` returns it.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from remat_cli.core.graph import BOUNDARY_TYPE, Graph, Op
from remat_cli.core.schedule import Compute, Inplace, Schedule
from remat_cli.core.simulate import Trace, simulate
from remat_cli.core.solve import baseline_of, share_over
from remat_cli.errors import UsageError
from remat_cli.formats.writing import write_file
from remat_cli.pytorch.plan.sized_memory import ResizedGraph
from remat_cli.splitting import Split, cuts_in_words
from remat_cli.units import format_bytes, format_count, format_time, more_time

_LOG = logging.getLogger("remat")

_VISIBLE = 0.03  # share of a predicted peak; other measured peaks differ at most this much


@dataclass(eq=False)
class GraphRecord:
    """The plan of a captured graph, with figures of its runs.

    Attributes:
        planned_graph: the planned graph; at other sizes it is built at need.
        schedule: the schedule.
        budget_bytes: budget for total device memory; None for a schedule from a file.
        fixed_bytes: always in memory: parameters, buffers, inputs, optimizer state.
        predicted_peak_bytes: of the plan, with what is always there.
        plain_peak_bytes: of the same graph unplanned.
        overhead: more time than the plain run takes, as a share of it.
        inputs: shapes of the tensors that the call is given, by name.
        calls: how often it ran.
        carried: the same plan at other sizes, with its memory there.
        measured_peak_bytes: of each of the first steps that was measured, in the terms of the predicted peak.
        kernels: what was compiled for it; empty where eager's kernels run.
        cuts: regions in parts, by the name of an op.
        whole: the graph without parts; None where no region is in parts.
        update: where the optimizer's updates run, in words; empty where they are no part of the plan.
    """

    planned_graph: Graph | ResizedGraph
    schedule: Schedule
    budget_bytes: int | None
    fixed_bytes: int
    predicted_peak_bytes: int
    plain_peak_bytes: int
    overhead: float
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    calls: int = 0
    carried: list[GraphRecord] = field(default_factory=list)
    measured_peak_bytes: list[int] = field(default_factory=list)
    kernels: str = ""
    cuts: Mapping[str, Split] = field(default_factory=dict)
    whole: Graph | ResizedGraph | None = None
    update: str = ""

    @property
    def parts(self) -> str:
        """Regions in parts, in words; empty where there are none."""
        return cuts_in_words(self.cuts)

    def in_parts(self, cuts: Mapping[str, Split], whole: Graph) -> GraphRecord:
        """Return the plan as one of a step in parts, compared with the step without.

        Args:
            cuts: regions in parts, by the name of an op.
            whole: the graph without parts.
        """
        plain = baseline_of(whole)
        time = round(baseline_of(self.graph).time * (1 + self.overhead))
        overhead = share_over(time, plain.time)
        return replace(self, plain_peak_bytes=plain.peak_bytes, overhead=overhead, cuts=cuts, whole=whole)

    @classmethod
    def of(
        cls, graph: Graph, schedule: Schedule, trace: Trace | None = None, budget_bytes: int | None = None
    ) -> GraphRecord:
        """Return the record of a plan before it runs.

        Args:
            graph: the planned graph.
            schedule: the plan.
            trace: the judge's replay; None for a plan without transfers, which is replayed here.
            budget_bytes: budget of the plan; None for a schedule from a file.
        """
        trace = trace or simulate(graph, schedule)
        plain = baseline_of(graph)
        return cls(
            planned_graph=graph,
            schedule=schedule,
            budget_bytes=budget_bytes,
            fixed_bytes=graph.fixed_bytes,
            predicted_peak_bytes=trace.peak_bytes,
            plain_peak_bytes=plain.peak_bytes,
            overhead=share_over(trace.time, plain.time),
        )

    @property
    def graph(self) -> Graph:
        """The planned graph."""
        return self.planned_graph.graph if isinstance(self.planned_graph, ResizedGraph) else self.planned_graph

    def __str__(self) -> str:
        """Return one line for a report or a log."""
        within = "" if self.budget_bytes is None else f" within {format_bytes(self.budget_bytes)}"
        inputs = ", ".join(f"{name} {'x'.join(map(str, shape)) or '()'}" for name, shape in self.inputs.items())
        return (
            f"{format_count(len(self.graph.ops))} ops{f' ({inputs})' if inputs else ''}{within}: predicted peak "
            f"{format_bytes(self.predicted_peak_bytes)} ({format_bytes(self.plain_peak_bytes)} unplanned), "
            f"{more_time(self.overhead)}{f'; {self.parts}' if self.parts else ''}"
            f"{f'; {self.kernels}' if self.kernels else ''}{f'; {self.update}' if self.update else ''}"
        )


@dataclass(eq=False)
class PlanRecord:
    """The record of a model's plans and calls.

    `print` shows it as a small report.

    Attributes:
        budget: budget, as the user gave it; the file's name for a schedule from a file.
        graphs: planned graphs, in the order of their capture.
        last: plan of the last planned call; None before the first.
        backward_passes: number of planned backward passes.
        unplanned: number of unplanned calls, by reason.
        refused: number of refused calls, for which no plan fits.
        is_part: the model is part of another planned model.
        gradients_unplanned: gradients of the model's parameters arrived from unplanned backward passes.
        without: part that measured peaks leave out, in words.
        waited_ns: time that calls waited before they ran as planned, by cause, in nanoseconds.
        run_context: entered while a planned call runs.
        at_backward: called at the beginning of a planned backward pass.
    """

    budget: str
    graphs: list[GraphRecord] = field(default_factory=list)
    last: GraphRecord | None = None
    backward_passes: int = 0
    unplanned: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    gradients_unplanned: bool = False
    is_part: bool = False
    without: str = ""
    waited_ns: Counter[str] = field(default_factory=Counter)
    run_context: Callable[[], AbstractContextManager[None]] = nullcontext
    at_backward: Callable[[], None] = lambda: None

    @property
    def calls(self) -> int:
        """The number of calls that ran as planned."""
        return sum(plan.calls for graph in self.graphs for plan in (graph, *graph.carried))

    def add(self, planned: GraphRecord) -> GraphRecord:
        """Note a plan, log it if new, and return the record's own copy."""
        own = next((graph for graph in self.graphs if graph.schedule is planned.schedule), None)
        if own is None:
            own = replace(planned, calls=0, carried=[], measured_peak_bytes=[])
            notify(logging.INFO, f"planned {own}")
            self.graphs.append(own)
        return own

    @contextmanager
    def runs(self, graph: GraphRecord) -> Iterator[None]:
        """Note a call by a plan while it runs."""
        graph.calls += 1
        self.last = graph
        with self.run_context():
            yield

    def runs_back(self) -> None:
        """Note that a backward pass runs by a plan."""
        self.backward_passes += 1
        self.at_backward()

    def save(self, path: str | Path) -> None:
        """Refuse to write a plan of the whole step.

        Raises:
            UsageError: always; `remat plan` writes it.
        """
        del path
        hint = "remat plan FILE.py:NAME -o schedule.json writes it, for planned(model, 'schedule.json')"
        raise UsageError("plan_of(model).save writes plans of blocks, and this is one of the whole step", hint=hint)

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
        lines = self._lines_on_calls()
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
        return "\n".join([*lines, *self._lines_on_unplanned()])

    def _lines_on_calls(self) -> list[str]:
        lines = [f"Planned for {self.budget}: {_calls(self.calls)} as planned, {_calls(self.unplanned.total())} not"]
        if self.waited_ns.total():
            lines.append(f"  calls waited {waited(self.waited_ns)}")
        return lines

    def _lines_on_unplanned(self) -> list[str]:
        lines = [f"  unplanned, {reason}: {_calls(count)}" for reason, count in self.unplanned.items()]
        if self.refused:
            lines.append(f"  refused, as no plan fits: {_calls(self.refused)}")
        if self.gradients_unplanned:
            lines.append(
                "  gradients arrived that no planned backward pass had made, as of a call that goes past the plan: "
                "model.forward(...), or a part of the model"
            )
        return lines


def boundary_of(graph: Graph, schedule: Schedule) -> tuple[int, Op]:
    """Return the place and the op of a schedule between its two passes."""
    runs = ((at, graph.op[step.op]) for at, step in enumerate(schedule.steps) if isinstance(step, Compute | Inplace))
    return next((at, op) for at, op in runs if op.type == BOUNDARY_TYPE)


def kept_between(graph: Graph, schedule: Schedule) -> int:
    """Return the bytes of results and saved tensors between a plan's passes."""
    at, op = boundary_of(graph, schedule)
    tangents = sum(graph.tensors[name].bytes for name in op.outputs)
    return max(0, simulate(graph, schedule).memory_bytes[at + 1] - graph.fixed_bytes - tangents)


def waited(spent_ns: Counter[str]) -> str:
    """Return the times that calls waited, in all and by cause."""
    each = ", ".join(f"{name} {format_time(time, 'ns')}" for name, time in spent_ns.items() if time)
    return f"{format_time(spent_ns.total(), 'ns')}: {each}"


def beyond(more: int, predicted: int) -> list[str]:
    """Return a line if steps used visibly more memory than predicted.

    Otherwise there are no lines.
    """
    if more <= _VISIBLE * predicted:
        return []
    return [
        f"    up to {format_bytes(more)} beyond the predicted peak: the optimizer's step, or what the model does not "
        "see (a loss outside it, another model, several calls before a backward pass)"
    ]


def notify(level: int, text: str) -> None:
    """Write a line to the log.

    A warning goes to stderr, too, if logging is not set up.
    """
    _LOG.log(level, text)
    listeners = [handler for handler in (*_LOG.handlers, *logging.root.handlers) if not _is_deaf(handler)]
    if not listeners and level >= logging.WARNING and _LOG.isEnabledFor(level):
        sys.stderr.write(f"remat: {text}\n")


def _is_deaf(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.NullHandler)


def _calls(count: int) -> str:
    return f"{format_count(count)} {'call' if count == 1 else 'calls'}"
