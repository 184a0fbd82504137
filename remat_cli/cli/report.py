"""`remat report`: a schedule as a page, or for another viewer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remat_cli.checks.schedule_file import broken_claims, budget_bytes, replay, taken_from_file
from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_argument, graph_options, merge_config, output_options, setting_option
from remat_cli.cli.output import STDOUT, Output, force_option
from remat_cli.cli.pipeline import report_pipeline_call
from remat_cli.cli.stdin import READ
from remat_cli.config import Request
from remat_cli.errors import UsageError
from remat_cli.formats.schedule_json import holds_schedule, read_schedule
from remat_cli.pipelines.file import holds_pipeline

if TYPE_CHECKING:
    from remat_cli.core.simulate import Trace
    from remat_cli.formats.schedule_json import ScheduleFile
    from remat_cli.prepare import Prepared
    from remat_cli.reports.viewers import Form


@click.command("report", cls=Verb)
@graph_argument
@click.argument("schedule", type=READ, metavar="SCHEDULE")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Write the report here; - is stdout."
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["html", "trace", "snapshot", "nodes", "onnx", "pytorch-csv"]),
    help="The form of the report. [default: that of FILE's name, else html]",
)
@setting_option(Request, "budget", help="Hold the peak against this budget. [default: the one in SCHEDULE]")
@graph_options
@output_options
@force_option
def command(
    graph: Path, schedule: Path, output: Path, form: str | None, as_json: bool, quiet: bool, **given: Any
) -> None:
    """Write SCHEDULE, replayed on GRAPH, as a page to look at, or for another viewer.

    html (any name) is one file that needs no network: memory over time with and without the plan, the lifetime of every
    tensor, when and why it was evicted and recomputed, and what that costs. trace (.trace.json, .json.gz) is for
    Perfetto and chrome://tracing, snapshot (.pickle) for pytorch.org/memory_viz, nodes (.nodes.json) for Model
    Explorer; onnx (.onnx) is the model itself, with the plan in the properties of its nodes, for Netron. A pipeline is
    written as html, with jobs and memory of each rank, as a trace, one track a rank, or as pytorch-csv: the order of
    jobs as torch's pipelining reads it.

    GRAPH is the file that was planned, or what convert wrote of it. SCHEDULE records the options with which GRAPH was
    read; they need not be given again. SCHEDULE may come from any tool: it is replayed. The two may be given in either
    order.

    \b
    Examples:
      remat report model.onnx schedule.json -o report.html
      remat report train.py:step schedule.json -o plan.trace.json
      remat report train.py:step schedule.json -o plan.pickle
      remat report model.onnx schedule.json -o planned.onnx
      remat plan model.onnx --dim batch=8 --budget 8GB --html report.html
    """
    from remat_cli.reports.summary import verify_summary
    from remat_cli.reports.terminal.plan import verify_report
    from remat_cli.reports.viewers import Form, form_of
    from remat_cli.runtime.onnx.annotated import check_can_annotate

    if holds_schedule(graph) and not holds_schedule(schedule):
        graph, schedule = schedule, graph
    config = merge_config(given)
    streams = Output(as_json=as_json, quiet=quiet, writes={"-o": output}, reads=(schedule, graph, *config.files))
    written_as = form_of(output) if form is None else Form(form)
    if holds_pipeline(schedule):
        report_pipeline_call(graph, schedule, config.said, output, written_as, streams)
        return
    if written_as is Form.ONNX:
        check_can_annotate(graph)
    file = read_schedule(schedule)
    prepared, trace = replay(graph, config.said, file, schedule)
    taken = taken_from_file(config.said, prepared.options)
    budget = budget_bytes(config.request.budget, file, prepared)
    streams.write(output, _content(written_as, graph, output, prepared, file, trace, budget))
    streams.report(
        lambda: verify_report(
            prepared,
            file.schedule,
            trace,
            budget_bytes=budget,
            taken=taken,
            link_taken=file.link is not None,
            file=file,
        ),
        lambda: verify_summary(prepared, trace, budget_bytes=budget, taken=taken, file=file) | {"report": str(output)},
    )
    # The report serves to find the fault.
    if (broken := broken_claims(file, prepared, trace, budget)) is not None:
        raise broken


def _content(
    form: Form, graph: Path, output: Path, prepared: Prepared, file: ScheduleFile, trace: Trace, budget: int | None
) -> bytes:
    from remat_cli.reports.timeline import Run
    from remat_cli.reports.viewers import Form

    run = Run(prepared.graph, file.schedule, trace)
    match form:
        case Form.HTML:
            from remat_cli.reports.html.page import schedule_page

            return schedule_page(prepared, file, trace, budget_bytes=budget)
        case Form.TRACE:
            from remat_cli.reports.viewers.trace import trace_bytes

            return trace_bytes(run, budget_bytes=budget, compressed=output.name.endswith(".gz"))
        case Form.SNAPSHOT:
            from remat_cli.allocation.snapshot import snapshot_bytes

            return snapshot_bytes(prepared.graph, file.schedule, trace.times, file.arena)
        case Form.NODES:
            from remat_cli.reports.viewers.nodes import nodes_bytes

            return nodes_bytes(run)
        case Form.ONNX:
            from remat_cli.reports.viewers.nodes import node_facts
            from remat_cli.runtime.onnx.annotated import annotated_model

            return annotated_model(graph, None if output == STDOUT else output, node_facts(run))
        case Form.PYTORCH_CSV:
            raise UsageError(
                "pytorch-csv is a form of pipelines", hint="plan one with --stages, or choose another form"
            )
