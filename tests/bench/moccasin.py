"""Table 3 of the MOCCASIN paper (Bartan et al. 2023) with our columns beside it: overhead in %, bound, and seconds.

Budgets are shares of the plain peak, as in the paper, whose machine had 16 cores. Each plan is made in a process of
its own; seconds are of the clock, with the time limit as the most. A star stands for a proof that no plan is better, a
figure in brackets for a proven bound: with the input order of plans in it, otherwise of any plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from remat_cli.core.problem import Planner
from remat_cli.planners.published.checkmate.planner import Checkmate
from remat_cli.planners.published.moccasin.planner import Moccasin
from remat_cli.planners.retention.options import OrderChoice
from remat_cli.planners.retention.planner import Retention
from tests.bench.scale import PlanningRun, measure

# Ours are run up to this many ops: the published models grow with the square of the number of ops.
_MOST_FOR_CHECKMATE = 400
_MOST_FOR_MOCCASIN = 600


@dataclass(frozen=True)
class Published:
    """A row of the paper: overhead in % and seconds of the Checkmate MILP and of MOCCASIN; None: no plan in an hour.

    Attributes:
        title: the paper's name of the graph.
        file: name of its file in the public data.
        ops: its size.
        share: the budget.
        checkmate: overhead and seconds.
        moccasin: overhead and seconds.
    """

    title: str
    file: str
    ops: int
    share: float
    checkmate: tuple[float, float] | None
    moccasin: tuple[float, float] | None


PAPER = (
    Published("RL G1", "rl_n100", 100, 0.9, (0.8, 18.5), (0.8, 9.3)),
    Published("RL G1", "rl_n100", 100, 0.8, (2.3, 22.7), (2.3, 9.5)),
    Published("RL G2", "rl_n250", 250, 0.9, (0.9, 685.1), (0.9, 55.0)),
    Published("RL G2", "rl_n250", 250, 0.8, None, (4.9, 639.5)),
    Published("RL G3", "rl_n500", 500, 0.9, None, (0.7, 1803.3)),
    Published("RL G3", "rl_n500", 500, 0.8, None, (3.4, 1804.8)),
    Published("RL G4", "rl_n1000", 1000, 0.9, None, (0.7, 3612.9)),
    Published("RL G4", "rl_n1000", 1000, 0.8, None, (3.4, 3611.8)),
    Published("CM 1", "cm_fcn8_train", 73, 0.9, (0.0, 6.3), (0.0, 3.1)),
    Published("CM 1", "cm_fcn8_train", 73, 0.8, (0.1, 5.6), (0.1, 3.1)),
    Published("CM 2", "cm_resnet50_train", 353, 0.9, (0.1, 434.1), (0.2, 65.2)),
    Published("CM 2", "cm_resnet50_train", 353, 0.8, (0.3, 485.3), (0.3, 69.3)),
)


def planners(seconds: float, ops: int) -> Iterator[tuple[str, Planner | None]]:
    """Yield the planners of the columns; None where the graph is too large for one."""
    yield "checkmate", Checkmate(time_limit=seconds) if ops <= _MOST_FOR_CHECKMATE else None
    yield "moccasin", Moccasin(time_limit=seconds) if ops <= _MOST_FOR_MOCCASIN else None
    yield "retention, input order", Retention(order=OrderChoice.INPUT, time_limit=seconds)
    yield "retention, free order", Retention(time_limit=seconds)


def moccasin(console: Console, data: Path, seconds: float = 60.0) -> None:
    """Print the table, from the files in the public data."""
    table = Table(title=f"MOCCASIN, Table 3; ours within {seconds:g} s: overhead %, seconds", title_justify="left")
    for column in ("graph", "budget", "paper: Checkmate", "paper: MOCCASIN", *(name for name, _ in planners(0, 1))):
        table.add_column(column, justify="left" if column == "graph" else "right")
    for row in PAPER:
        ours = [_cell(data / f"{row.file}.json", planner, row.share) for _, planner in planners(seconds, row.ops)]
        paper = (_paper(row.checkmate), _paper(row.moccasin))
        table.add_row(f"{row.title} ({row.file})", f"{row.share:.0%}", *paper, *ours)
    console.print(table)


def _paper(figures: tuple[float, float] | None) -> str:
    return "-" if figures is None else f"{figures[0]:.1f}  {figures[1]:,.0f} s"


def _cell(path: Path, planner: Planner | None, share: float) -> str:
    if planner is None:
        return ""
    result: PlanningRun = measure(path, planner, share)
    overhead = "-" if result.overhead is None else f"{100 * result.overhead:.2f}"
    return f"{overhead}{'*' if result.status == 'optimal' else _bound(result)}  {result.seconds:.0f} s"


def _bound(result: PlanningRun) -> str:
    """Return the proven bound on the overhead, where there is one worth telling."""
    if result.overhead is None or result.gap is None or result.overhead - result.gap < 5e-5:
        return ""
    return f" (>{100 * (result.overhead - result.gap):.2f})"
