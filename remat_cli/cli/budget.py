"""`remat budget`: the smallest budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

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
from remat_cli.cli.output import Output
from remat_cli.config import Request
from remat_cli.errors import ExitCode
from remat_cli.prepare import prepare
from remat_cli.units import BudgetSpec


@click.command("budget", cls=Verb)
@graph_argument
@setting_option(Request, "max_overhead")
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
    from remat_cli.planning import plan
    from remat_cli.reports.summary import budget_summary
    from remat_cli.reports.terminal.plan import budget_report

    config = read_call(given)
    streams = Output(as_json=as_json, quiet=quiet)
    with streams.progress() as observe:
        observe.phase("reading the graph")
        prepared = prepare(graph, config.graph, split=config.request.split)
        planning = plan(prepared, replace(config.request, budget=BudgetSpec(smallest=True)), observe)
    streams.report(lambda: budget_report(planning), lambda: budget_summary(planning))
    return ExitCode.INTERRUPTED if planning.solution.interrupted else planning.status.exit_code
