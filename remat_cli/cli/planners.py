"""`remat planners`: the planners and their options."""

from __future__ import annotations

import click

from remat_cli.cli.help import Verb
from remat_cli.cli.options import planner_names
from remat_cli.cli.output import Output
from remat_cli.errors import UsageError


@click.command("planners", cls=Verb)
@click.argument("names", nargs=-1, metavar="[PLANNER...]", shell_complete=planner_names)
@click.option("--json", "as_json", is_flag=True, help="Print a machine-readable summary to stdout.")
@click.option("--schema", is_flag=True, help="Print a JSON Schema of every planner's options.")
@click.option("--compile", "compiles", is_flag=True, help="Compile annealing's moves and the search for arenas, once.")
def command(names: tuple[str, ...], as_json: bool, schema: bool, compiles: bool) -> None:
    """List the planners, or the named ones: what each takes, searches and proves, its options and its source.

    \b
    Examples:
      remat planners
      remat planners rotor
      remat planners --schema
      remat planners --compile
    """
    if compiles:
        _compile()
        return
    from remat_cli.config import named_planner, planner_schemas
    from remat_cli.planners.plugins import all_planners
    from remat_cli.reports.summary import planners_summary
    from remat_cli.reports.terminal.plan import planners_report

    if names and schema:
        raise UsageError("--schema is that of all planners", hint="leave the names out")
    chosen = {name: named_planner(name).planner for name in names} or all_planners()
    Output(as_json=as_json or schema).report(
        lambda: planners_report(chosen), planner_schemas if schema else lambda: planners_summary(chosen)
    )


def _compile() -> None:
    """Compile, for example while an image is built, what a call would compile beside its work."""
    from remat_cli.allocation.compiled import SEARCHES
    from remat_cli.machine.compiled import trouble
    from remat_cli.planners.annealing.sweeps import MOVES

    done = {kernel.search: kernel.compile() for kernel in (SEARCHES, MOVES)}
    if reason := trouble():
        raise UsageError(reason.reason, hint=reason.remedy)
    for search, was_ready in done.items():
        click.echo(f"{search}: {'was compiled before' if was_ready else 'compiled, and kept for later runs'}")
