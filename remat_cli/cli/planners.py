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
    """Compile functions that are called too often for plain Python.

    Their compilation would not fit a time limit.
    """
    from remat_cli.allocation.portfolio import compile_searches
    from remat_cli.generate.layered import Layered
    from remat_cli.machine.compiled import can_compile, trouble
    from remat_cli.planners.annealing.flat import compile_for, is_ready
    from remat_cli.synthesis import synthesize

    was_ready = is_ready()
    were_ready = False
    if can_compile() and trouble() is None:
        compile_for(synthesize(Layered(), ops=40).graph)
        were_ready = compile_searches()
    if reason := trouble():
        raise UsageError(reason.reason, hint=reason.remedy)
    done = {True: "was compiled before", False: "compiled, and kept for later runs"}
    click.echo(f"arenas: {done[were_ready]}")
    click.echo(f"annealing: {done[was_ready]}")
