"""`remat budget`: the smallest budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import INTERRUPTED
from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_argument, graph_options, output_options, planner_options, read_call
from remat_cli.cli.output import Output
from remat_cli.cli.plan import EXIT_CODE
from remat_cli.prepare import prepare
from remat_cli.problem import Budget, Problem


@click.command("budget", cls=Verb)
@graph_argument
@click.option("--max-overhead", metavar="SHARE", help="Take only plans of at most this overhead, such as 10%.")
@graph_options
@planner_options
@output_options
def command(graph: Path, as_json: bool, quiet: bool, **given: Any) -> int:
    """Search the smallest budget for GRAPH: no plan fits less (proven), and a plan fits this (found).

    \b
    Examples:
      remat budget model.onnx --dim batch=8
      remat budget graph.json --max-overhead 10%
    """
    from remat_cli.reports.summary import budget_summary
    from remat_cli.reports.terminal.plan import budget_report
    from remat_cli.studies.budget_search import smallest_budget

    call = read_call(given)
    streams = Output(as_json=as_json, quiet=quiet)
    with streams.progress() as observe:
        observe.phase("reading the graph")
        prepared = prepare(graph, call.config.graph)
        problem = Problem(prepared.graph, Budget(0), prepared.bytes_per_time)
        search = smallest_budget(problem, call.planner, observe, max_overhead=call.config.max_overhead)
    streams.report(
        lambda: budget_report(search, prepared, planner=call.planner_name, options=call.config.options),
        lambda: budget_summary(search, prepared, planner=call.planner_name),
    )
    return INTERRUPTED if search.solution.interrupted else EXIT_CODE[search.solution.status]
