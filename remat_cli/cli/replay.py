"""A schedule replayed on the graph that it was made for: what `verify`, `apply` and `report` begin with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from remat_cli.config import GraphOptions
from remat_cli.errors import GraphError, InvalidSchedule, UsageError
from remat_cli.formats.native import graph_sha256
from remat_cli.formats.schedule_json import ScheduleFile
from remat_cli.prepare import Prepared, prepare
from remat_cli.simulate import Trace, simulate
from remat_cli.solve import baseline_of
from remat_cli.units import BudgetSpec, format_bytes


def with_mode(options: GraphOptions, mode: str | None) -> GraphOptions:
    """Return the options with this mode where none was given."""
    return replace(options, mode=mode) if options.mode is None else options


def replay(graph: Path, options: GraphOptions, file: ScheduleFile, schedule: Path) -> tuple[Prepared, Trace]:
    """Return the graph, and what the simulator measured of the schedule on it.

    Args:
        graph: the file that was planned.
        options: how it is read.
        file: what the schedule file says.
        schedule: its path, for messages.

    Raises:
        GraphError: the graph cannot be read, or is another one than the schedule was made for.
        InvalidSchedule: a step breaks a rule.
    """
    prepared = prepare(graph, options)
    if file.sha256 is not None and file.sha256 != graph_sha256(prepared.graph):
        raise GraphError(
            f"{schedule} was made for another graph than {prepared.graph.name!r} with these options (sha256 differs)",
            hint="give the options that it was planned with (--dim, --mode, --optimizer, --cost-model, --device, ...), "
            "or the file that 'remat convert' wrote with them",
        )
    return prepared, simulate(prepared.graph, file.schedule, bytes_per_time=prepared.bytes_per_time)


def budget_bytes(spec: BudgetSpec | None, file: ScheduleFile, prepared: Prepared) -> int | None:
    """Return what the peak is held against: what was asked for or else what the file names; None without either.

    Raises:
        UsageError: "min" was asked for.
    """
    if spec is None:
        return file.budget_bytes
    if spec.smallest:
        raise UsageError(
            "a schedule that is there cannot be held against --budget min", hint="give a size, such as 8GB or 80%"
        )
    return spec.bytes_of(baseline_of(prepared.graph).peak_bytes)


def broken_claim(file: ScheduleFile, trace: Trace, budget: int | None) -> InvalidSchedule | None:
    """Hold what the file says of itself, and the budget, against the replay; None where all of it is so."""
    if budget is not None and trace.peak_bytes > budget:
        return InvalidSchedule(
            f"step {trace.peak_step}: the peak, {format_bytes(trace.peak_bytes)} ({trace.peak_bytes} bytes), is above "
            f"the budget of {format_bytes(budget)} ({budget} bytes)",
            step=trace.peak_step,
            hint="plan again with this budget",
        )
    for what, claimed, measured in (
        ("peak_bytes", file.peak_bytes, trace.peak_bytes),
        ("time", file.time, trace.time),
    ):
        if claimed is not None and claimed != measured:
            return InvalidSchedule(
                f"the file says {what} {claimed}, but the replay comes to {measured}",
                hint="the steps or the graph were changed after it was planned; plan again",
            )
    return None
