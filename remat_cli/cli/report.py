"""`remat report`: a schedule as a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from remat_cli.checks.schedule_file import broken_claims, budget_bytes, replay, taken_from_file
from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_argument, graph_options, merge_config, output_options, setting_option
from remat_cli.cli.output import Output, force_option
from remat_cli.cli.stdin import READ
from remat_cli.config import Request
from remat_cli.formats.schedule_json import holds_schedule, read_schedule


@click.command("report", cls=Verb)
@graph_argument
@click.argument("schedule", type=READ, metavar="SCHEDULE")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Write the page here; - is stdout."
)
@setting_option(Request, "budget", help="Hold the peak against this budget. [default: the one in SCHEDULE]")
@graph_options
@output_options
@force_option
def command(graph: Path, schedule: Path, output: Path, as_json: bool, quiet: bool, **given: Any) -> None:
    """Write SCHEDULE, replayed on GRAPH, as one HTML file that needs no network.

    The page shows memory over time with and without the plan, the lifetime of every tensor, when and why it was evicted
    and recomputed, which ops run again, and what that costs. GRAPH is the file that was planned, or what convert wrote
    of it. SCHEDULE records the options with which GRAPH was read; they need not be given again. SCHEDULE may come from
    any tool: it is replayed, never believed. The two may be given in either order.

    \b
    Examples:
      remat report model.onnx schedule.json -o report.html
      remat plan model.onnx --dim batch=8 --budget 8GB --html report.html
    """
    from remat_cli.reports.html.page import schedule_page
    from remat_cli.reports.summary import verify_summary
    from remat_cli.reports.terminal.plan import verify_report

    if holds_schedule(graph) and not holds_schedule(schedule):
        graph, schedule = schedule, graph
    config = merge_config(given)
    streams = Output(as_json=as_json, quiet=quiet, writes={"-o": output}, reads=(schedule, graph, *config.files))
    file = read_schedule(schedule)
    prepared, trace = replay(graph, config.said, file, schedule)
    taken = taken_from_file(config.said, prepared.options)
    budget = budget_bytes(config.request.budget, file, prepared)
    page = schedule_page(prepared, file, trace, budget_bytes=budget)
    streams.write(output, page)
    streams.report(
        lambda: verify_report(
            prepared, file.schedule, trace, budget_bytes=budget, taken=taken, link_taken=file.link is not None
        ),
        lambda: verify_summary(prepared, trace, budget_bytes=budget, taken=taken) | {"report": str(output)},
    )
    # The page is there to see what is wrong.
    if (broken := broken_claims(file, prepared, trace, budget)) is not None:
        raise broken
