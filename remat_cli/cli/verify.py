"""`remat verify`: replay a schedule on its graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remat_cli.checks.schedule_file import as_planned, broken_claims, budget_bytes, replay, taken_from_file
from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_argument, graph_options, merge_config, output_options
from remat_cli.cli.output import Output
from remat_cli.config import GraphOptions
from remat_cli.errors import InvalidSchedule
from remat_cli.formats.schedule_json import ScheduleFile, read_schedule
from remat_cli.prepare import Prepared
from remat_cli.units import format_bytes, parse_duration

if TYPE_CHECKING:
    from remat_cli.problem import Observer
    from remat_cli.runtime.onnx.execution import Execution


@click.command("verify", cls=Verb)
@graph_argument
@click.argument("schedule", type=click.Path(path_type=Path), metavar="SCHEDULE")
@click.option("--budget", metavar="SIZE", help="Hold the peak against this budget. [default: the one in SCHEDULE]")
@click.option("--execute", is_flag=True, help="Run an ONNX model in onnxruntime too, as it is and as planned.")
@click.option("--time-limit", default="10m", show_default=True, metavar="30s", help="Of each run, with --execute.")
@click.option("--seed", default=0, show_default=True, help="Of the random inputs, with --execute.")
@graph_options
@output_options
def command(
    graph: Path,
    schedule: Path,
    execute: bool,
    time_limit: str,
    seed: int,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Replay SCHEDULE on GRAPH, step by step; name the first broken step, or say what it really costs.

    GRAPH is the file that was planned, or what convert wrote of it. Options that are not given are those that SCHEDULE
    says it was planned with; only files (--device FILE, --measurements) have to be given again. SCHEDULE may come from
    any tool; what it says of graph, budget, peak, time, overhead, bound and status is checked, not believed, and each
    difference is named.

    With --execute the model is run by onnxruntime (pip install 'remat[run]') as it is and as 'remat apply' writes it,
    on the same random inputs, and random weights where the file has none: the outputs must be the same bit by bit, the
    order that of the schedule, and the measured peak the predicted one, to within 2 MiB or 3 %, and not above that of
    the model as it is.

    \b
    Examples:
      remat verify model.onnx schedule.json
      remat verify graph.json schedule.json --budget 8GB
      remat verify model.onnx schedule.json --execute
    """
    from remat_cli.reports.summary import verify_summary
    from remat_cli.reports.terminal.execution import executed_report, execution_summary
    from remat_cli.reports.terminal.plan import verify_report

    file = read_schedule(schedule)
    config = merge_config(given)
    options = as_planned(config.graph, file)
    limit = parse_duration(time_limit)
    if execute:
        _check_can_execute(graph, options, file)
    prepared, trace = replay(graph, config.graph, file, schedule)
    taken = taken_from_file(config.graph, prepared.options)
    budget = budget_bytes(config.budget, file, prepared)
    broken = broken_claims(file, prepared, trace, budget)
    streams = Output(as_json=as_json, quiet=quiet)
    execution = None
    if execute and broken is None:
        with streams.progress() as observe:
            execution = _execution(graph, options, prepared, file, seed, limit, observe)
    streams.report(
        lambda: executed_report(
            verify_report(prepared, file.schedule, trace, budget_bytes=budget, taken=taken), execution
        ),
        lambda: verify_summary(prepared, trace, budget_bytes=budget, taken=taken) | execution_summary(execution),
    )
    if execution is not None:
        broken = _broken_promise(execution, prepared)
    if broken is not None:
        raise broken


def _check_can_execute(model: Path, options: GraphOptions, file: ScheduleFile) -> None:
    from remat_cli.runtime.onnx.apply import check_can_apply
    from remat_cli.runtime.onnx.execution import check_can_measure

    check_can_apply(model, options, file.schedule)
    check_can_measure()


def _execution(
    model: Path,
    options: GraphOptions,
    prepared: Prepared,
    file: ScheduleFile,
    seed: int,
    time_limit: float,
    observe: Observer,
) -> Execution:
    from remat_cli.runtime.onnx.apply import apply_schedule, read_for
    from remat_cli.runtime.onnx.execution import execute

    rewritten = apply_schedule(model, options, prepared.graph, file.schedule, {})
    return execute(
        model,
        read_for(model, options, keep_data=False),
        rewritten,
        prepared.graph,
        file.schedule.computes,
        seed=seed,
        time_limit=time_limit,
        observe=observe,
    )


def _broken_promise(execution: Execution, prepared: Prepared) -> InvalidSchedule | None:
    """Hold what onnxruntime did against what was planned."""
    if execution.changed:
        random = [op.name for op in prepared.graph.ops if not op.recomputable]
        return InvalidSchedule(
            f"the rewritten model gives other bits at its outputs: {', '.join(map(repr, execution.changed))}",
            hint=f"it may draw random numbers: {', '.join(map(repr, random[:4]))}"
            if random
            else "a kernel of this onnxruntime does not repeat itself; compare the two models' outputs",
        )
    if execution.out_of_order is not None:
        place, planned, ran = execution.out_of_order
        return InvalidSchedule(
            f"at place {place} of the executed order ran {ran!r}, where the schedule has {planned!r}",
            hint="onnxruntime runs an op as several nodes, not one: it has no kernel for it or its type "
            "(float16 on the CPU); export the model without it",
        )
    peak = execution.plan
    if peak.agrees and execution.takes_more:
        return InvalidSchedule(
            f"the plan raises memory: it was measured at {format_bytes(peak.measured)}, and the model as it is at "
            f"{format_bytes(execution.plain.measured)}",
            hint="run the model as it is; the plan's saving is less than what cannot be predicted",
        )
    if peak.agrees:
        return None
    at = "no single op" if execution.parted_at is None else f"op {execution.parted_at!r}"
    return InvalidSchedule(
        f"the measured peak, {format_bytes(peak.measured)}, is not the predicted one, {format_bytes(peak.predicted)}; "
        f"they part at {at}",
        hint="its kernel takes memory that is not known to remat, or shares it in another way; please report it",
    )
