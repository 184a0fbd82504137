"""`remat plan`: the main job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remat_cli.cli.help import Verb
from remat_cli.cli.options import (
    graph_argument,
    graph_options,
    output_options,
    planner_options,
    read_call,
    setting_option,
)
from remat_cli.cli.output import STDOUT, Output, force_option
from remat_cli.cli.pipeline import PipelineOptions, check_goes_without, pipeline_options, plan_pipeline_call
from remat_cli.cli.stdin import in_a_call
from remat_cli.cli.stopwatch import Stopwatch, Timed
from remat_cli.config import Request, RunConfig
from remat_cli.core.schedule import Compute
from remat_cli.core.simulate import simulate
from remat_cli.errors import ExitCode, UsageError
from remat_cli.prepare import prepare

if TYPE_CHECKING:
    from remat_cli.planning import Planning
    from remat_cli.studies.eager import EagerReplay


@click.command("plan", cls=Verb)
@graph_argument
@setting_option(
    Request,
    "budget",
    help="Total device memory: 8GB (10^9), 8GiB (2^30), bytes, 80% of the plain run's peak, '60% of activations', "
    "or min.",
)
@setting_option(Request, "max_overhead", help="With --budget min: the smallest budget at this overhead.")
@click.option(
    "--as",
    "form",
    type=click.Choice(["checkpoints", "policy"]),
    metavar="checkpoints|policy",
    help="Which modules of a PyTorch step to wrap in torch.utils.checkpoint, as code and settings; or which blocks, "
    "with a policy of what they save.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write the schedule, or with --as policy the code, here; - is stdout.",
)
@pipeline_options
@click.option("--html", type=click.Path(path_type=Path), help="Write a report to look at here; - is stdout.")
@graph_options
@planner_options
@output_options
@force_option
def command(
    graph: Path,
    form: str | None,
    output: Path | None,
    html: Path | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> int:
    """Plan GRAPH under a budget, prove the plan by simulation, and write it.

    \b
    Examples:
      remat plan model.onnx --dim batch=8 --budget 8GB -o schedule.json
      remat plan model.onnx --dim batch=8 --budget '60% of activations'
      remat plan graph.json --budget 80% --planner approx_dp --option strategy=time
      remat plan graph.json --budget min -c approx_dp
      remat plan model.onnx --dim batch=8 --budget 8GB -o schedule.json --html report.html
      remat plan model.onnx --mode inference --budget 256KiB --addresses -o schedule.json
      remat plan train.py:step --budget 8GB --as checkpoints
      remat plan train.py:step --budget 8GB --as policy -o policy.py
      remat plan train.py:step --budget 8GB --split -o schedule.json
      remat plan train.py:step --stages 4 --microbatches 8 --budget 40GB -o pipeline.json
    """
    from remat_cli.planning import LEAST_TRIAL, plan, try_split
    from remat_cli.planning.memory_need import notes_on_memory
    from remat_cli.reports.phrasing import next_steps
    from remat_cli.reports.summary import eager_figure
    from remat_cli.reports.terminal.plan import plan_report
    from remat_cli.studies.eager import known_eager_run

    pipeline = PipelineOptions.taken_from(given)
    config = read_call(given)
    request = config.request
    if pipeline.stages is not None:
        check_goes_without({"--as": form, "--split": request.split}, "--stages")
        writes = {"-o": output, "--html": html}
        streams = Output(as_json=as_json, quiet=quiet, writes=writes, reads=(graph, *config.files))
        return plan_pipeline_call(graph, pipeline, config, output, html, streams)
    _check(request, form)
    reads = (graph, *config.files)
    streams = Output(as_json=as_json, quiet=quiet, writes={"-o": output, "--html": html}, reads=reads)
    if form is not None:
        if html is not None:
            raise UsageError("--html has no meaning for checkpoints", hint="leave --html or --as out")
        return (_as_policy if form == "policy" else _as_checkpoints)(graph, config, output, streams)
    watch = Stopwatch()
    with streams.progress() as observe:
        observe.phase("reading the graph")
        with watch.stage("reading"):
            eager = known_eager_run(graph, config.graph)
            eager_peak = None if eager is None else eager.peak_bytes
            prepared = prepare(graph, config.graph, split=request.split)
        streams.check_user_files()
        streams.notes(notes_on_memory(prepared.graph))
        with watch.stage("planning"):
            planning = _with_note_on_workspace(plan(prepared, request, Timed(observe, watch)), eager)
        if config.graph.fused and planning.schedule is not None and planning.prepared.options.parts:
            from remat_cli.pytorch.plan.fused_parts import within_budget_once_compiled

            with watch.stage("compiling"):
                planning = within_budget_once_compiled(planning, request, observe)
        tried = None
        if not request.split and planning.schedule is None and not planning.solution.interrupted:
            observe.phase("trying --split")
            seconds = max(LEAST_TRIAL, sum(watch.seconds.values()))
            with watch.stage("trying --split"):
                tried = try_split(planning, graph, config.graph, seconds, observe)
    with watch.stage("writing"):
        if output is not None:
            streams.write(output, planning.schedule_file)
        if html is not None:
            from remat_cli.reports.html.page import plan_page

            streams.write(html, plan_page(planning))
    written = None if output == STDOUT else output
    steps = next_steps(
        planning.solution,
        in_a_call(graph),
        written,
        fused=config.graph.fused,
        in_parts=request.split or bool(config.graph.parts),
        split_tried="" if tried is None else tried.in_words("--split"),
    )
    streams.report(
        lambda: plan_report(
            planning, shown=config.report, next_steps=steps, seconds=watch.seconds, eager_peak_bytes=eager_peak
        ),
        lambda: {
            **planning.summary(),
            **eager_figure(eager_peak),
            **({} if tried is None else {"split": tried.summary()}),
            "seconds": watch.seconds,
        },
    )
    return ExitCode.INTERRUPTED if planning.solution.interrupted else planning.status.exit_code


def _check(request: Request, form: str | None) -> None:
    """Refuse a request that says too little, or what does not go together.

    Raises:
        UsageError: it does.
    """
    if request.budget is None and not request.banks:
        raise UsageError("plan needs a budget", hint="give --budget 8GB, --budget 80% (of the plain peak) or min")
    if request.max_overhead is not None and (request.budget is None or not request.budget.smallest):
        raise UsageError("--max-overhead goes with --budget min", hint="give --budget min, or leave it out")
    if request.split and form is not None:
        raise UsageError("checkpoints run whole modules again, and none in parts", hint="leave --as or --split out")


def _with_note_on_workspace(planning: Planning, eager: EagerReplay | None) -> Planning:
    """Return the planning with a note where kernels' workspace, which it does not count, raises its peak."""
    from remat_cli.reports.phrasing import notes_on_workspace_of_plan

    prepared, schedule = planning.prepared, planning.schedule
    if eager is None or schedule is None or planning.peak_bytes is None or prepared.options.measurements is not None:
        return planning
    trace = simulate(eager.with_workspace(prepared.graph), schedule, link=prepared.link)
    step = schedule.steps[trace.peak_step] if trace.peak_step >= 0 else None
    op = step.op if isinstance(step, Compute) else ""
    notes = notes_on_workspace_of_plan(planning.peak_bytes, trace.peak_bytes, planning.budget_bytes, op)
    return replace(planning, prepared=replace(prepared, notes=(*prepared.notes, *notes)))


def _as_checkpoints(graph: Path, config: RunConfig, output: Path | None, streams: Output) -> int:
    from remat_cli.formats.model_config import names_step
    from remat_cli.pytorch.capture import check_installed

    if names_step(graph):
        check_installed()
    from remat_cli.pytorch.checkpoints import plan_checkpoints
    from remat_cli.reports.terminal.checkpoints import checkpoints_report

    with streams.progress() as observe:
        planning = plan_checkpoints(graph, config.graph, config.request, observe)
    if output is not None and planning.wrapped is not None:
        streams.write(output, planning.schedule_file)
    streams.report(lambda: checkpoints_report(planning), planning.summary)
    return planning.exit_code


def _as_policy(graph: Path, config: RunConfig, output: Path | None, streams: Output) -> int:
    from remat_cli.formats.model_config import names_step
    from remat_cli.pytorch.capture import check_installed

    if names_step(graph):
        check_installed()
    from remat_cli.pytorch.checkpoints import plan_policy
    from remat_cli.reports.terminal.policy import policy_report

    with streams.progress() as observe:
        planning = plan_policy(graph, config.graph, config.request, observe)
    if output is not None and planning.code:
        streams.write(output, planning.code.encode())
    streams.report(lambda: policy_report(planning), planning.summary)
    return planning.exit_code
