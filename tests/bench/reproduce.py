"""`make reproduce`: Tables 1 and 2 of Kusumoto et al. 2019 beside what comes out here.

What the simulation counts is an option (see `executor.Executor`, also for how each was chosen), printed above the
tables. B is the least budget of equation 2, to the byte, for each family of lower sets, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from statistics import mean
from time import perf_counter

import click
from rich.console import Console
from rich.table import Table

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Observer, Problem
from remat_cli.formats import read_graph
from remat_cli.planners.published.lower_sets.chain_plans import ChainPlans
from remat_cli.planners.published.lower_sets.chen import prefixes_at_cuts, segments
from remat_cli.planners.published.lower_sets.dp import LowerSetDP
from remat_cli.planners.published.lower_sets.dp_planners import ApproxDP
from remat_cli.planners.published.lower_sets.families import LowerSets, all_lower_sets, pruned_family
from remat_cli.planners.published.lower_sets.options import Strategy
from remat_cli.planners.shared.forward_part import ForwardPart
from remat_cli.planning import plan
from remat_cli.training import training_graph
from remat_cli.units import BudgetSpec
from tests.bench.executor import Executor, vanilla_peak
from tests.bench.paper import PUBLISHED, Published
from tests.places import GRAPHS
from tests.plans import asking, prepared

GRAPHS = GRAPHS / "table1"
COLUMNS = ("approx MC", "approx TC", "exact MC", "exact TC")
GB = 10**9
# The paper's times (10 for a convolution, 1 for anything else) stay exact.
_SLOTS = 10**4
_MOST_LOWER_SETS = 40_000


@dataclass(frozen=True)
class Reproduced:
    """One network's figures, in GB; in the order of COLUMNS where there are four.

    Attributes:
        vanilla: peak of the plain run.
        budgets: least B of the approximate and of the exact family.
        table1: with liveness.
        table2: without liveness.
        chen: with and without liveness.
        smallest_simulated: what `remat budget` finds.
        seconds: of everything.
    """

    vanilla: float
    budgets: tuple[float, float]
    table1: tuple[float, ...]
    table2: tuple[float, ...]
    chen: tuple[float, float]
    smallest_simulated: float
    seconds: float


def reproduce(forward: Graph, executor: Executor) -> Reproduced:
    """Compute one network's figures."""
    start = perf_counter()
    training, executed = training_graph(forward), executor.training_graph(forward)
    vertices = ForwardPart.of(training, "the reproduction")
    pruned = pruned_family(vertices)
    everything = all_lower_sets(vertices, _MOST_LOWER_SETS)
    approximate, exact = _Family.of(pruned, None), _Family.of(everything, LowerSetDP(pruned, _SLOTS).smallest_budget())
    chains = [(family.sets, chain) for family in (approximate, exact) for chain in family.chains]
    segmented = prefixes_at_cuts(vertices)
    ends = [int(size) for size in segmented.bytes]
    chen = (segmented, segments(ends, ends[-1] // isqrt(len(vertices))))
    smallest = plan(prepared(training), asking(ApproxDP(), budget=BudgetSpec(smallest=True))).trace
    assert smallest is not None
    return Reproduced(
        vanilla=vanilla_peak(replace(executor, needs="by-op").training_graph(forward)) / GB,
        budgets=(approximate.budget / GB, exact.budget / GB),
        table1=tuple(_peak(executed, *chain, liveness=True) for chain in chains),
        table2=tuple(_peak(executed, *chain, liveness=False) for chain in chains),
        chen=(_peak(executed, *chen, liveness=True), _peak(executed, *chen, liveness=False)),
        smallest_simulated=smallest.peak_bytes / GB,
        seconds=perf_counter() - start,
    )


@dataclass(frozen=True)
class _Family:
    """The chains that the paper takes from one family: MC and TC at the least B."""

    sets: LowerSets
    budget: int
    chains: tuple[list[int], ...]

    @classmethod
    def of(cls, sets: LowerSets, known: int | None) -> _Family:
        dp = LowerSetDP(sets, _SLOTS)
        budget = dp.smallest_budget(known)
        found = [dp.chain(budget, strategy) for strategy in (Strategy.MEMORY, Strategy.TIME)]
        return cls(sets, budget, tuple(chain for chain in found if chain is not None))


def _peak(executed: Graph, sets: LowerSets, chain: Sequence[int], *, liveness: bool) -> float:
    """Return the peak in GB of a chain's plan where it is executed: the same sets of a graph with more buffers."""
    there = LowerSets.of(ForwardPart.of(executed, "the reproduction"), sets.members[[0, *chain]])
    plans = ChainPlans(Problem(executed, Budget(0)), there, liveness, Observer())
    return float(plans.measure(range(1, len(chain) + 1)).plan.peak_bytes / GB)


def _beside(ours: float, theirs: float | None, digits: int = 2) -> str:
    return f"{ours:.{digits}f} ({'> 11.4' if theirs is None else f'{theirs:.{1 if digits == 2 else digits}f}'})"


def _table(
    title: str,
    columns: Sequence[str],
    row: Callable[[Published, Reproduced], list[str]],
    found: Mapping[str, Reproduced],
) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("", *columns):
        table.add_column(column, justify="right" if column else "left")
    for name, figures in found.items():
        table.add_row(PUBLISHED[name].title, *row(PUBLISHED[name], figures))
    return table


def _figures(published: Published, ours: Reproduced, table: str) -> list[str]:
    theirs: tuple[float, ...] = getattr(published, table)
    pairs = zip(getattr(ours, table), theirs, strict=True)
    chen = 0 if table == "table1" else 1
    return [*(_beside(*pair) for pair in pairs), _beside(ours.chen[chen], published.chen[chen])]


def _budgets(published: Published, ours: Reproduced) -> list[str]:
    return [
        f"{_beside(ours.vanilla, published.vanilla)} {ours.vanilla / published.vanilla - 1:+.1%}",
        *(_beside(*pair, digits=3) for pair in zip(ours.budgets, published.smallest_budget, strict=True)),
        _beside(ours.smallest_simulated, published.smallest_simulated, digits=3),
        f"{ours.seconds:.0f}",
    ]


def mean_deviation(found: Mapping[str, Reproduced], table: str) -> float:
    """Return the mean of |ours / theirs - 1| over the four columns of all networks in a table."""
    return mean(
        float(abs(ours / theirs - 1))
        for name, figures in found.items()
        for ours, theirs in zip(getattr(figures, table), getattr(PUBLISHED[name], table), strict=True)
    )


@click.command()
@click.option("--network", "networks", multiple=True, type=click.Choice(list(PUBLISHED)), help="Only these.")
@click.option("--needs", type=click.Choice(["inputs", "by-op"]), default="inputs", show_default=True)
@click.option("--private-buffers/--no-private-buffers", default=True, show_default=True)
@click.option("--temporaries/--no-temporaries", default=True, show_default=True)
@click.option("--workspace-mib", type=int, default=8, show_default=True)
@click.option("--accumulate-in-place/--accumulate-new", default=False, show_default=True)
@click.option("--share-gradients/--copy-gradients", default=False, show_default=True)
def main(
    networks: tuple[str, ...],
    needs: str,
    private_buffers: bool,
    temporaries: bool,
    workspace_mib: int,
    accumulate_in_place: bool,
    share_gradients: bool,
) -> None:
    """Print Tables 1 and 2 of Kusumoto et al. 2019 beside ours; options change what the simulation counts."""
    executor = Executor(
        needs, private_buffers, workspace_mib * 2**20, temporaries, accumulate_in_place, share_gradients
    )
    console = Console(width=max(110, Console().width), highlight=False)
    console.print(f"The simulation: {executor}.")
    console.print(
        "The plain run is Chainer's: what its functions retain stays to the end, the rest goes at its last use."
    )
    console.print("Figures in GB (10^9 bytes), ours (theirs).\n")
    found: dict[str, Reproduced] = {}
    for name in networks or PUBLISHED:
        console.print(f"{PUBLISHED[name].title} ...", style="dim")
        found[name] = reproduce(read_graph(GRAPHS / f"{name}.json").graph, executor)
    columns = (*COLUMNS, "Chen")
    console.print(_table("Table 1, with liveness", columns, lambda p, r: _figures(p, r, "table1"), found))
    console.print(_table("Table 2, without liveness", columns, lambda p, r: _figures(p, r, "table2"), found))
    for number in (1, 2):
        deviation = mean_deviation(found, f"table{number}")
        console.print(f"Table {number}: mean deviation from the paper, Chen apart: {deviation:.1%}")
    console.print(
        _table(
            "Beside it: the plain run, the least B of equation 2 (reference implementation in brackets: the paper "
            "prints none), and the smallest simulated peak that `remat budget` finds",
            ("Vanilla", "B approx", "B exact", "smallest simulated", "s"),
            _budgets,
            found,
        )
    )


if __name__ == "__main__":
    main()
