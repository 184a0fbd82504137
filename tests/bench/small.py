"""Small random graphs under tight budgets: what `auto` leaves open that an exhaustive search settles, and the seconds.

A budget is drawn between the largest working set and the plain run's peak. `open` counts plans further from the bound
than `auto` is content with; `unknown` what ends without a plan and without a proof, though a plan fits, or none does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import process_time

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Problem, Status
from remat_cli.core.solve import Solution, baseline_of, solve
from remat_cli.planners.auto.planner import Auto
from remat_cli.planners.shortest_path.planner import ShortestPath
from tests.graphs import small_graphs, training_graphs
from tests.hunt.problems import problems, tangled

SIZES = ((2, 6), (7, 9), (10, 12), (13, 16), (17, 20))
DRAWN = 200
GRAPHS = (
    small_graphs(max_ops=12),
    training_graphs(max_forward_ops=6),
    st.builds(tangled, st.integers(0, 2**32), st.integers(8, 20)),
)


@dataclass(frozen=True)
class Asked:
    """What two planners make of one problem, and the seconds of the CPU that each takes."""

    auto: Solution
    truth: Solution
    auto_seconds: float
    truth_seconds: float

    @property
    def is_open(self) -> bool:
        """Whether `auto` has a plan, but not one that is proven to be good enough."""
        overhead, bound = self.auto.overhead, self.auto.bound_overhead
        return overhead is not None and (bound is None or overhead - bound > Auto().gap)


def small(console: Console) -> None:
    """Print the table."""
    table = Table(title="Small graphs that the plain run does not settle; seconds of the CPU", title_justify="left")
    table.add_column("ops")
    columns = ("graphs", "plan fits", "auto: open", "unknown", "none fits", "auto: unknown", "auto s", "worst")
    for column in (*columns, "shortest_path s", "worst", "not settled"):
        table.add_column(column, justify="right")
    every = [problem for graphs in GRAPHS for problem in drawn(graphs)]
    for least, most in SIZES:
        of_size = [problem for problem in every if least <= len(problem.graph.ops) <= most]
        table.add_row(f"{least} to {most}", *_cells([_asked(problem) for problem in of_size]))
    console.print(table)


def drawn(graphs: st.SearchStrategy[Graph]) -> Sequence[Problem]:
    """Return problems under budgets that the plain run does not keep to."""
    found: list[Problem] = []

    @seed(0)
    @settings(max_examples=DRAWN, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(problem=problems(graphs))
    def draw(problem: Problem) -> None:
        if not _plain_fits(problem):
            found.append(problem)

    draw()
    return found


def _plain_fits(problem: Problem) -> bool:
    return baseline_of(problem.graph).peak_bytes <= problem.budget.device_bytes


def _asked(problem: Problem) -> Asked:
    start = process_time()
    auto = solve(problem, Auto())
    middle = process_time()
    truth = solve(problem, ShortestPath(max_ops=20))
    return Asked(auto, truth, middle - start, process_time() - middle)


def _cells(asked: Sequence[Asked]) -> Iterator[str]:
    fits = [one for one in asked if one.auto.trace is not None or one.truth.trace is not None]
    none = [one for one in asked if one.truth.status is Status.INFEASIBLE]
    yield str(len(asked))
    yield str(len(fits))
    yield str(sum(one.is_open for one in fits))
    yield str(sum(one.auto.status is Status.UNKNOWN for one in fits))
    yield str(len(none))
    yield str(sum(one.auto.status is Status.UNKNOWN for one in none))
    for seconds in ([one.auto_seconds for one in asked], [one.truth_seconds for one in asked]):
        yield f"{sum(seconds) / max(len(seconds), 1):.2f}"
        yield f"{max(seconds, default=0):.2f}"
    yield str(sum(one.truth.status is Status.UNKNOWN for one in asked))
