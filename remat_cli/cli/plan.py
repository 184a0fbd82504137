"""`remat plan`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_argument, graph_options, output_options, planner_options, read_call
from remat_cli.cli.output import STDOUT, Output
from remat_cli.errors import ExitCode, UsageError
from remat_cli.formats.schedule_json import schedule_bytes
from remat_cli.prepare import prepare


@click.command("plan", cls=Verb)
@graph_argument
@click.option(
    "--budget",
    metavar="SIZE",
    help="Total device memory: 8GB (10^9), 8GiB (2^30), bytes, 80% of the plain run's peak, '60% of activations', "
    "or min.",
)
@click.option("--max-overhead", metavar="SHARE", help="With --budget min: the smallest budget at this overhead.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the schedule here; - is stdout.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a report to look at here; - is stdout.")
@graph_options
@planner_options
@output_options
def command(graph: Path, output: Path | None, html: Path | None, as_json: bool, quiet: bool, **given: Any) -> int:
    """Plan GRAPH under a budget, prove the plan by simulation, and write it.

    \b
    Examples:
      remat plan model.onnx --dim batch=8 --budget 8GB -o schedule.json
      remat plan model.onnx --dim batch=8 --budget '60% of activations'
      remat plan graph.json --budget 80% --planner approx_dp --option strategy=time
      remat plan graph.json --budget min -c approx_dp
      remat plan model.onnx --dim batch=8 --budget 8GB -o schedule.json --html report.html
    """
    from remat_cli.reports.phrasing import next_steps
    from remat_cli.reports.summary import plan_summary
    from remat_cli.reports.terminal.plan import plan_report
    from remat_cli.studies.budget_search import plan_at

    config, choice = read_call(given)
    budget = config.budget
    if budget is None:
        raise UsageError("plan needs a budget", hint="give --budget 8GB, --budget 80% (of the plain peak) or min")
    if config.max_overhead is not None and not budget.smallest:
        raise UsageError("--max-overhead goes with --budget min", hint="give --budget min, or leave it out")
    reads = (graph, *config.files)
    streams = Output(as_json=as_json, quiet=quiet, writes={"-o": output, "--html": html}, reads=reads)
    with streams.progress() as observe:
        observe.phase("reading the graph")
        prepared = prepare(graph, config.graph)
        solution = plan_at(
            prepared.graph,
            budget,
            choice.planner(),
            observe,
            link=prepared.link,
            offload=prepared.options.offload,
            max_overhead=config.max_overhead,
        )
    if output is not None:
        read_with = prepared.options.recorded
        streams.write(output, schedule_bytes(solution, prepared.mode, choice.name, choice.all_options(), read_with))
    if html is not None:
        from remat_cli.reports.html.page import plan_page

        streams.write(html, plan_page(solution, prepared, planner=choice.name, options=choice.options))
    steps = next_steps(solution, graph, None if output == STDOUT else output)
    streams.report(
        lambda: plan_report(
            solution, prepared, planner=choice.name, options=choice.options, shown=config.report, next_steps=steps
        ),
        lambda: plan_summary(solution, prepared, planner=choice.name, options=choice.all_options()),
    )
    return ExitCode.INTERRUPTED if solution.interrupted else solution.status.exit_code
