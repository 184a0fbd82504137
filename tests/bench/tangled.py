"""Graphs without a backward pass: what `auto` finds at tight budgets, and `annealing` alone, in CPU seconds.

`-`: no plan was found. Budgets are shares of the plain peak.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from time import process_time

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Planner, Problem
from remat_cli.core.solve import baseline_of, solve
from remat_cli.formats import read_graph
from remat_cli.generate.layered import Layered
from remat_cli.planners.annealing.planner import Annealing
from remat_cli.planners.auto.planner import Auto
from remat_cli.synthesis import synthesize
from tests.bench.portfolio import percent

SHARES = (0.8, 0.6)
OPS = (500, 1_000, 2_000)
SECONDS = 10.0


def tangled(console: Console, files: Iterable[Path]) -> None:
    """Print the table, for generated graphs and those in these files."""
    table = Table(title=f"Tangled graphs within {SECONDS:g} s: overhead in %", title_justify="left", box=MARKDOWN)
    for column in ("graph", "budget", "auto", "bound", "found by", "CPU s", "annealing", "CPU s"):
        table.add_column(column, justify="left" if column in ("graph", "found by") else "right")
    graphs = [(path.stem, read_graph(path).graph) for path in files]
    graphs += [(f"layered, {ops:,} ops", synthesize(Layered(), ops=ops).graph) for ops in OPS]
    for name, graph in graphs:
        for share in SHARES:
            auto, annealing = (_cells(graph, share, each) for each in (Auto(SECONDS), Annealing(SECONDS)))
            table.add_row(name, f"{share:.0%}", *auto, annealing[0], annealing[-1])
    console.print(table)


def _cells(graph: Graph, share: float, planner: Planner) -> tuple[str, str, str, str]:
    problem = Problem(graph, Budget(int(share * baseline_of(graph).peak_bytes)))
    began = process_time()
    solution = solve(problem, planner)
    seconds = process_time() - began
    overhead, bound = percent(solution.overhead, solution, 2), percent(solution.bound_overhead, solution, 2)
    return overhead, bound, solution.result.found_by or "", f"{seconds:.1f}"
