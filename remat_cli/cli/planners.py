"""`remat planners`: what there is to choose from."""

from __future__ import annotations

import click

from remat_cli.cli.help import Verb
from remat_cli.cli.output import Output


@click.command("planners", cls=Verb)
@click.option("--json", "as_json", is_flag=True, help="Print a machine-readable summary to stdout.")
@click.option("--schema", is_flag=True, help="Print a JSON Schema of every planner's options.")
def command(as_json: bool, schema: bool) -> None:
    """List the planners: what each takes, searches and proves, its options and defaults, and its source.

    \b
    Examples:
      remat planners
      remat planners --schema
    """
    from remat_cli.config import planner_schemas
    from remat_cli.reports.summary import planners_summary
    from remat_cli.reports.terminal.plan import planners_report

    Output(as_json=as_json or schema).report(planners_report, planner_schemas if schema else planners_summary)
