"""`python -m remat_cli.testing NAME...`: hold planners to the contract."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import click

from remat_cli.errors import ExitCode, RematError


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="PLANNER...")
@click.option("--keep", type=click.Path(path_type=Path), metavar="FOLDER", help="Write graphs that fail here, as JSON.")
@click.option("--print-plans", is_flag=True, hidden=True)
def command(names: tuple[str, ...], keep: Path | None, print_plans: bool) -> None:
    """Hold planners, named as in `remat planners`, to the contract of planners.

    Ends with 0 where all checks hold, with 3 where one fails.
    """
    if find_spec("hypothesis") is None:
        raise click.UsageError("the checks draw random graphs with hypothesis: pip install 'remat[testing]'")
    from remat_cli.config import named_planner

    try:
        for name in names:
            named_planner(name, "PLANNER")
    except RematError as error:
        raise click.UsageError(f"{error.message}\nHint: {error.hint}") from None
    if print_plans:
        import json

        from remat_cli.testing.contract import plans_of

        click.echo(f"\n{json.dumps(plans_of(names))}")
        return
    failed = sum(_failures(name, keep) for name in names)
    sys.exit(ExitCode.NO_FIT if failed else ExitCode.DONE)


def _failures(name: str, keep: Path | None) -> int:
    """Run all checks on a planner, print a line for each, and return how many fail."""
    from hypothesis import settings

    from remat_cli.testing.contract import ALL_CHECKS

    # The same problems every time: what fails today fails tomorrow.
    settings.register_profile("remat", derandomize=True)
    settings.load_profile("remat")
    click.echo(name)
    failures = 0
    for title, check in ALL_CHECKS.items():
        try:
            tried_on = check(name)
        except Exception as error:
            failures += 1
            said = str(error) if isinstance(error, AssertionError | RematError) else f"{type(error).__name__}: {error}"
            click.echo(f"  {click.style('FAILS', fg='red', bold=True)}  {title}: {said}")
            _show_problem(error, keep, f"{name}-{failures}.json")
        else:
            click.echo(f"  {'ok   ' if tried_on else '-    '}  {title}{f' ({tried_on})' if tried_on else ''}")
    click.echo(f"  {failures} of {len(ALL_CHECKS)} checks fail" if failures else f"  all {len(ALL_CHECKS)} checks hold")
    return failures


def _show_problem(error: Exception, keep: Path | None, file: str) -> None:
    """Tell of the smallest problem on which a check fails, and write its graph where that is asked for."""
    from remat_cli.core.problem import Problem
    from remat_cli.formats.native import graph_bytes
    from remat_cli.formats.writing import write_file

    problem = getattr(error, "problem", None)
    if not isinstance(problem, Problem):
        return
    link = "" if problem.link is None else f", link {problem.link.bytes_per_time} bytes a unit, {problem.link.duplex}"
    asked = f"{len(problem.graph.ops)} ops, budget {problem.budget.device_bytes} bytes{link}"
    if keep is None:
        click.echo(f"         on a graph of {asked}; --keep FOLDER writes it")
        return
    keep.mkdir(parents=True, exist_ok=True)
    write_file(keep / file, graph_bytes(problem.graph))
    click.echo(f"         on {keep / file}: {asked}")


if __name__ == "__main__":
    command()
