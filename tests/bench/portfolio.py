"""`auto` against each of its planners alone, given the same time: overheads in % of the plain run's time.

A `!` marks a row in which one of them is better by more than the gap at which `auto` is content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from remat_cli.config import GraphOptions
from remat_cli.core.problem import Budget, Planner, Problem
from remat_cli.core.solve import Solution, baseline_of, solve
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.auto.planner import Auto
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.min_cut.planner import MinCut
from remat_cli.planners.published.lower_sets.chen import Chen
from remat_cli.planners.published.lower_sets.dp_planners import ApproxDP
from remat_cli.planners.retention.planner import Retention
from remat_cli.planners.rotor.planner import Rotor
from remat_cli.prepare import prepare

SHARES = (0.8, 0.6)
SECONDS = (2.0, 10.0)
SINGLES: Mapping[str, Callable[[float], Planner]] = {
    "chen": lambda _: Chen(),
    "approx_dp": lambda seconds: ApproxDP(time_limit=seconds),
    "rotor": lambda seconds: Rotor(time_limit=seconds),
    "dtr": lambda seconds: DTR(time_limit=seconds),
    "min_cut": lambda seconds: MinCut(time_limit=seconds),
    "retention": lambda seconds: Retention(time_limit=seconds),
}


def portfolio(console: Console, files: Iterable[tuple[Path, GraphOptions]]) -> None:
    """Print the table for the graphs in these files."""
    table = Table(title="auto and single planners, given the same seconds: overhead %", title_justify="left")
    table.add_column("graph")
    for column in ("budget", "given s", "auto", "bound", "found by", *SINGLES):
        table.add_column(column, justify="right")
    for path, options in files:
        graph = prepare(path, options).graph
        for share in SHARES:
            problem = Problem(graph, Budget(int(share * baseline_of(graph).peak_bytes)))
            for seconds in SECONDS:
                table.add_row(path.stem, f"{share:.0%}", f"{seconds:g}", *_cells(problem, seconds))
    console.print(table)


def _cells(problem: Problem, seconds: float) -> list[str]:
    auto = Auto(time_limit=seconds)
    solution = solve(problem, auto)
    singles = {name: _overhead(problem, make(seconds)) for name, make in SINGLES.items()}
    least = min((overhead for overhead in singles.values() if overhead is not None), default=None)
    is_worse = least is not None and (solution.overhead is None or solution.overhead > least + auto.gap)
    return [
        percent(solution.overhead, solution) + ("!" if is_worse else ""),
        percent(solution.bound_overhead, solution),
        solution.result.found_by or "",
        *(percent(overhead, solution) for overhead in singles.values()),
    ]


def _overhead(problem: Problem, planner: Planner) -> float | None:
    try:
        return solve(problem, planner).overhead
    except PlannerRefuses:
        return None


def percent(overhead: float | None, solution: Solution, digits: int = 3) -> str:
    """Return an overhead; without one, whether none can be had."""
    if overhead is not None:
        return f"{100 * overhead:.{digits}f}"
    return "none fits" if solution.status == "infeasible" else "-"
