"""The best known plan and bound for every public graph and budget: who found it, in how long, and what papers give.

Budgets are shares of the plain peak. Seconds are those of the CPU, on one core, until the last gain of plan or bound,
and until `auto` ended. Papers' figures are those of MOCCASIN's Table 3, within an hour on 16 cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import process_time

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Problem
from remat_cli.core.solve import Solution, baseline_of, solve
from remat_cli.planners.auto.planner import Auto
from tests.bench.moccasin import PAPER
from tests.bench.portfolio import percent
from tests.bench.progress import Standings, wide

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
SECONDS = 30.0


def library(console: Console, graphs: Iterable[tuple[str, Graph]], shares: Sequence[float] = SHARES) -> None:
    """Print the table for these graphs, each down to the first budget in which nothing fits.

    Args:
        console: where to.
        graphs: each with its name.
        shares: the budgets, the largest first.
    """
    table = Table(title=f"auto within {SECONDS:g} s: overhead and bound in %", title_justify="left", box=MARKDOWN)
    for column in ("graph", "ops", "budget", "overhead", "bound", "found by", "last gain", "ended", "papers"):
        table.add_column(column, justify="left" if column in ("graph", "found by", "papers") else "right")
    for name, graph in graphs:
        first = (name, f"{len(graph.ops):,}")
        for share in shares:
            problem = Problem(graph, Budget(int(share * baseline_of(graph).peak_bytes)))
            seen = Standings()
            solution = solve(problem, Auto(time_limit=SECONDS), seen)
            cells = _cells(solution, seen, process_time() - seen.begun)
            table.add_row(*first, f"{share:.0%}", *cells, _published(name, share))
            first = ("", "")
            if solution.status == "infeasible":
                break
    wide(console).print(table)


def _cells(solution: Solution, seen: Standings, seconds: float) -> list[str]:
    return [
        percent(solution.overhead, solution),
        percent(solution.bound_overhead, solution),
        solution.result.found_by or "",
        f"{seen.noted[-1][0]:.1f} s" if seen.noted else "",
        f"{seconds:.1f} s",
    ]


def _published(name: str, share: float) -> str:
    rows = [row for row in PAPER if row.file == name and row.share == share]
    if not rows:
        return ""
    given = {"Checkmate": rows[0].checkmate, "MOCCASIN": rows[0].moccasin}
    return ", ".join(f"{planner} {'no plan' if cell is None else cell[0]}" for planner, cell in given.items())
