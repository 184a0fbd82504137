"""`remat verify`: replay a schedule on its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remat_cli.checks.schedule_file import as_planned, broken_claims, budget_bytes, replay, taken_from_file
from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_argument, graph_options, merge_config, output_options, setting_option
from remat_cli.cli.output import Output
from remat_cli.cli.pipeline import verify_pipeline_call
from remat_cli.cli.stdin import READ
from remat_cli.config import GraphOptions, Request
from remat_cli.errors import UsageError
from remat_cli.formats.input_values import parse_value
from remat_cli.formats.schedule_json import read_schedule
from remat_cli.pipelines.file import holds_pipeline
from remat_cli.units import parse_duration

if TYPE_CHECKING:
    from remat_cli.pytorch.run.execution import StepExecution
    from remat_cli.runtime.onnx.execution import ModelExecution


@click.command("verify", cls=Verb)
@graph_argument
@click.argument("schedule", type=READ, metavar="[SCHEDULE]", required=False)
@setting_option(Request, "budget", help="Hold the peak against this budget. [default: the one in SCHEDULE]")
@click.option("--execute", is_flag=True, help="Run the model too, as it is and as planned: ONNX or PyTorch.")
@click.option("--time-limit", default="10m", show_default=True, metavar="30s", help="Of each run of an ONNX model.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="X=5|X.npy",
    help="Value of an input that is not drawn at random, with --execute. Repeatable.",
)
@click.option("--seed", default=0, show_default=True, help="Of the random inputs, with --execute.")
@graph_options
@output_options
def command(
    graph: Path,
    schedule: Path | None,
    execute: bool,
    time_limit: str,
    inputs: tuple[str, ...],
    seed: int,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Replay SCHEDULE on GRAPH, step by step; name the first broken step, or say what it really costs.

    GRAPH is the file that was planned, or what convert wrote of it. Options default to those that SCHEDULE records;
    only files (--device FILE, --measurements) have to be given again. SCHEDULE may come from any tool: its graph,
    budget, peak, time, overhead, bound and status are checked, and each difference is named.

    With --execute, onnxruntime (pip install 'remat[run]') runs the model as it is and as 'remat apply' writes it, on
    the same random inputs (--input gives one its value), with random weights if the file has none. The outputs must
    agree bit for bit, the order must be the schedule's, and the measured peak must be the predicted one to within 2 MiB
    or 3 %, and no higher than that of the model as it is; it may be lower where branches and loops make the prediction
    an upper bound. The report also shows what onnxruntime takes with its own options.

    A PyTorch step is run by torch (pip install 'remat[torch]') as it is, by the plain schedule and by SCHEDULE.
    Results, gradients and buffers must agree bit for bit, and the peak as above; it must be within the budget with the
    workspace of kernels. Each kernel is run by itself first to learn that, unless --measurements tells it.

    Without SCHEDULE, --execute runs GRAPH as it is: an ONNX model for inference, in a session with
    remat_cli.session_options() and in one with onnxruntime's own options; a step by its plain schedule.

    \b
    Examples:
      remat verify model.onnx schedule.json
      remat verify graph.json schedule.json --budget 8GB
      remat verify model.onnx schedule.json --execute
      remat verify train.py:step schedule.json --execute
      remat verify model.onnx --execute
    """
    from remat_cli.reports.summary import verify_summary
    from remat_cli.reports.terminal.execution import executed_report, execution_summary
    from remat_cli.reports.terminal.plan import verify_report
    from remat_cli.runtime.execution import check_can_execute, check_is_predicted, execute_plan

    config, limit = merge_config(given), parse_duration(time_limit)
    fed = dict(map(parse_value, inputs))
    if fed and not execute:
        raise UsageError("--input goes with --execute", hint="give --execute, or leave it out")
    if schedule is None:
        if not execute:
            raise UsageError("SCHEDULE is missing", hint="name it, or run the model as it is: --execute")
        if config.request.budget is not None:
            raise UsageError("--budget needs SCHEDULE, which is missing", hint="name it, or leave --budget out")
        _execute_as_it_is(graph, config.graph, Output(as_json=as_json, quiet=quiet), fed, limit, seed)
        return
    if holds_pipeline(schedule):
        verify_pipeline_call(
            graph, schedule, config.said, Output(as_json=as_json, quiet=quiet), {"--execute": execute, "--input": fed}
        )
        return
    file = read_schedule(schedule)
    options = as_planned(config.said, file)
    if execute:
        check_can_execute(graph, options, file.schedule)
    prepared, trace = replay(graph, config.said, file, schedule)
    taken = taken_from_file(config.said, prepared.options)
    budget = budget_bytes(config.request.budget, file, prepared)
    broken = broken_claims(file, prepared, trace, budget)
    streams = Output(as_json=as_json, quiet=quiet)
    execution: ModelExecution | StepExecution | None = None
    if execute and broken is None:
        check_is_predicted(prepared)
        with streams.progress() as observe:
            execution = execute_plan(
                graph,
                options,
                prepared.graph,
                file.schedule,
                link=prepared.link,
                budget_bytes=budget,
                fed=fed,
                seed=seed,
                time_limit=limit,
                beside_usual=True,
                observe=observe,
            )
    streams.report(
        lambda: executed_report(
            verify_report(
                prepared,
                file.schedule,
                trace,
                budget_bytes=budget,
                taken=taken,
                link_taken=file.link is not None,
                file=file,
            ),
            execution,
        ),
        lambda: (
            verify_summary(prepared, trace, budget_bytes=budget, taken=taken, file=file) | execution_summary(execution)
        ),
    )
    if execution is not None:
        broken = execution.broken(prepared.graph)
    if broken is not None:
        raise broken


def _execute_as_it_is(
    graph: Path, given: GraphOptions, streams: Output, fed: Mapping[str, Any], time_limit: float, seed: int
) -> None:
    """Run a model or step without a schedule.

    An ONNX model is for inference unless an option says otherwise.
    """
    from remat_cli.formats.model_config import names_step
    from remat_cli.prepare import prepare
    from remat_cli.reports.terminal.execution import as_it_is_report, as_it_is_summary
    from remat_cli.runtime.execution import execute_as_it_is

    prepared = prepare(graph, given if names_step(graph) else replace(given, mode=given.mode or "inference"))
    with streams.progress() as observe:
        execution = execute_as_it_is(graph, prepared, fed=fed, seed=seed, time_limit=time_limit, observe=observe)
    streams.report(lambda: as_it_is_report(prepared, execution), lambda: as_it_is_summary(prepared, execution))
    broken = execution.broken(prepared.graph)
    if broken is not None:
        raise broken
