"""`remat verify`: replay a schedule on its graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from remat_cli.cli.options import graph_argument, graph_options, merge_config, output_options
from remat_cli.cli.output import Output
from remat_cli.errors import GraphError, InvalidSchedule, UsageError
from remat_cli.prepare import Prepared, prepare
from remat_cli.readers.native import graph_sha256
from remat_cli.reports.schedule_json import ScheduleFile, read_schedule
from remat_cli.simulate import Trace, simulate
from remat_cli.solve import baseline_of
from remat_cli.units import BudgetSpec, format_bytes


@click.command("verify")
@graph_argument
@click.argument("schedule", type=click.Path(path_type=Path), metavar="SCHEDULE")
@click.option("--budget", metavar="SIZE", help="Hold the peak against this budget. [default: the one in SCHEDULE]")
@graph_options
@output_options
def command(graph: Path, schedule: Path, as_json: bool, quiet: bool, **given: Any) -> None:
    """Replay SCHEDULE on GRAPH, step by step; name the first broken step, or say what it really costs.

    GRAPH is the file that was planned, with the same options, or what convert wrote of it. SCHEDULE may come from any
    tool; what it says of its own peak, time and budget is checked, not believed.

    \b
    remat verify model.onnx schedule.json --dim batch=8
    remat verify graph.json schedule.json --budget 8GB
    """
    from remat_cli.reports.summary import verify_summary
    from remat_cli.reports.terminal import verify_report

    file = read_schedule(schedule)
    config = merge_config(given)
    options = config.graph
    prepared = prepare(graph, options if options.mode is not None else replace(options, mode=file.mode))
    _check_made_for(file, prepared, schedule)
    trace = simulate(prepared.graph, file.schedule, bytes_per_time=prepared.bytes_per_time)
    budget = _budget_bytes(config.budget, file, prepared)
    streams = Output(as_json=as_json, quiet=quiet)
    streams.report(
        lambda: verify_report(prepared, file.schedule, trace, budget_bytes=budget),
        lambda: verify_summary(prepared, trace, budget_bytes=budget),
    )
    _check_claims(file, trace, budget)


def _check_made_for(file: ScheduleFile, prepared: Prepared, path: Path) -> None:
    if file.sha256 is not None and file.sha256 != graph_sha256(prepared.graph):
        raise GraphError(
            f"{path} was made for another graph than {prepared.graph.name!r} with these options (sha256 differs)",
            hint="give the options that it was planned with (--dim, --mode, --optimizer, --cost-model, --device, ...), "
            "or the file that 'remat convert' wrote with them",
        )


def _budget_bytes(spec: BudgetSpec | None, file: ScheduleFile, prepared: Prepared) -> int | None:
    if spec is None:
        return file.budget_bytes
    if spec.smallest:
        raise UsageError("verify cannot hold a schedule against --budget min", hint="give a size, such as 8GB or 80%")
    return spec.bytes_of(baseline_of(prepared.graph).peak_bytes)


def _check_claims(file: ScheduleFile, trace: Trace, budget: int | None) -> None:
    """Hold what the file says of itself against the replay."""
    if budget is not None and trace.peak_bytes > budget:
        raise InvalidSchedule(
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
            raise InvalidSchedule(
                f"the file says {what} {claimed}, but the replay comes to {measured}",
                hint="the steps or the graph were changed after it was planned; plan again",
            )
