"""The search over neighbourhoods: what it reaches on graphs whose best plans are known, limits, and processes."""

from __future__ import annotations

import pytest

from remat_cli.core.problem import Budget, Observer, Problem, Scope, Status
from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import solve
from remat_cli.errors import UsageError
from remat_cli.generate.chain import Chain
from remat_cli.generate.layered import Layered
from remat_cli.generate.transformer import Transformer
from remat_cli.generate.unet import UNet
from remat_cli.planners.min_cut import search
from remat_cli.planners.min_cut.planner import MinCut
from remat_cli.planners.min_cut.search import MinCutSearch
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.synthesis import synthesize
from tests.graphs import graph_of, op, training_chain
from tests.plans import RecordingObserver, at_share

UNET = synthesize(UNet(), ops=150).graph


@pytest.mark.parametrize(
    ("generator", "share", "most_gap"),
    [
        (Transformer(), 0.5, 0.008),
        (UNet(), 0.5, 0.004),
        (Chain(), 0.5, 0.004),
        (Chain(), 0.3, 0.01),
        (Layered(), 0.9, 0.02),
    ],
    ids=["transformer", "unet", "chain", "tight-chain", "layered"],
)
def test_comes_near_to_its_bound(
    generator: Transformer | UNet | Chain | Layered, share: float, most_gap: float
) -> None:
    graph = synthesize(generator, ops=600).graph
    solution = solve(at_share(graph, share), MinCut(work_limit=0.25))
    assert solution.scope is Scope.FIXED_ORDER
    assert solution.gap is not None
    assert 0 <= solution.gap <= most_gap


def test_plain_run_that_fits_is_proven_the_best() -> None:
    graph = training_chain(5)
    solution = solve(at_share(graph, 1.0), MinCut())
    assert (solution.status, solution.scope) == (Status.OPTIMAL, Scope.ANY_PLAN)
    assert solution.result.schedule == plain_run(graph)


def test_how_many_processes_search_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_WORTH_PROCESSES", 0.0)
    problem = at_share(UNET, 0.35)
    alone, together = (MinCut(work_limit=0.15, cores=jobs).plan(problem, Observer()) for jobs in (1, 2))
    assert alone.stats["rounds"] > 1
    assert alone == together


def test_other_seeds_find_other_plans() -> None:
    problem = at_share(UNET, 0.35)
    plans = {MinCut(work_limit=0.3, seed=seed).plan(problem, Observer()).schedule for seed in range(2)}
    assert len(plans) > 1


def test_a_search_that_begins_anew_may_find_more_and_keeps_the_best_plan() -> None:
    search = MinCutSearch(Incumbent(at_share(UNET, 0.35), Observer()), Limits(work=1e5))
    search.run()
    times = []
    for work in (0, 2e5, 0):
        assert search.current is not None
        times.append(search.current.time)
        search.limits = Limits(work=work)
        search.restart()
    assert times[0] == times[1] > times[2]


def test_more_work_is_never_worse() -> None:
    problem = at_share(UNET, 0.35)
    times = []
    for work in (0.02, 0.1, 0.3):
        trace = solve(problem, MinCut(work_limit=work)).trace
        assert trace is not None
        times.append(trace.time)
    assert times == sorted(times, reverse=True)


def test_plans_in_the_order_of_what_it_starts_from() -> None:
    graph = graph_of(
        op("a", "", "ta"),
        op("b", "", "tb"),
        op("use_a", "ta", "x"),
        op("use_b", "tb x", "y"),
        op("end", "ta y", "z"),
        sizes={"ta": 5, "tb": 5, "x": 1, "y": 1, "z": 1},
    )

    other = RematSequence.of_names(graph, ("a", "use_a", "b", "use_b", "end"))
    incumbent = Incumbent(Problem(graph, Budget(8)), Observer(), Scope.FIXED_ORDER)
    MinCutSearch(incumbent, Limits.of(10), start=other).run()
    assert incumbent.best is not None
    found = incumbent.best.schedule
    assert tuple(dict.fromkeys(found.computes)) == other.names
    assert len(found.computes) == 6
    assert simulate(graph, found).peak_bytes <= 8
    # What is proven is proven of that order, not of the input order.
    assert incumbent.bound.time == graph.total_time


def test_tells_of_each_better_plan_and_of_its_bound() -> None:
    told = RecordingObserver()
    result = MinCut(work_limit=0.3).plan(at_share(UNET, 0.35), told)
    found = [plan.time for plan in told.plans]
    assert len(found) > 1
    assert found == sorted(found, reverse=True)
    times = [bound.time for bound in told.bounds]
    assert times == sorted(set(times))
    assert told.bounds[-1] == result.bound
    assert told.bounds[-1].scope is Scope.FIXED_ORDER


def test_real_sizes_that_need_one_choice_are_proven_optimal() -> None:
    # Twelve layers of which some are run again: a knapsack that prices alone do not fill.
    solution = solve(at_share(synthesize(Transformer(), ops=600).graph, 0.7), MinCut(gap=0))
    assert solution.status is Status.OPTIMAL
    assert solution.overhead is not None
    assert solution.overhead > 0


def test_moment_at_which_nothing_fits_is_a_proof_for_the_order() -> None:
    # f3 needs 5, which is the budget; but a1, which must not be made again, waits for f4.
    graph = graph_of(
        op("f1", "", "a1", recomputable=False),
        op("f2", "", "a2"),
        op("f3", "a2", "a3"),
        op("f4", "a1 a3", "a4"),
        sizes={"a1": 2, "a2": 3, "a3": 2, "a4": 1},
    )
    solution = solve(Problem(graph, Budget(6)), MinCut())
    assert (solution.status, solution.scope) == (Status.INFEASIBLE, Scope.FIXED_ORDER)
    assert solve(Problem(graph, Budget(7)), MinCut()).status is Status.OPTIMAL


@pytest.mark.parametrize("option", ["time_limit", "work_limit", "gap", "seed", "cores"])
def test_option_below_what_makes_sense_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=option):
        MinCut(**{option: -1})
