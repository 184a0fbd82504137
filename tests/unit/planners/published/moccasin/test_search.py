"""The two phases over chances to recompute that grow."""

from __future__ import annotations

from remat_cli.core.problem import Budget, Observer, PlanResult, Problem, Scope, Status
from remat_cli.core.schedule import plain_run
from remat_cli.core.solve import baseline_of
from remat_cli.planners.published.moccasin.options import FirstRuns
from remat_cli.planners.published.moccasin.planner import Moccasin
from remat_cli.planners.published.moccasin.search import MoccasinSearch
from tests.graphs import graph_of, op, training_chain, training_unet
from tests.plans import RecordingObserver

GRAPH = training_unet(3)
PLAIN = baseline_of(GRAPH).peak_bytes


def searched(budget: int, observe: Observer, **options: object) -> PlanResult:
    return MoccasinSearch(Problem(GRAPH, Budget(budget)), Moccasin(**options), observe).run()  # type: ignore[arg-type]


def test_a_plan_comes_first_and_then_a_faster_one() -> None:
    told = RecordingObserver()
    result = searched(PLAIN - 4, told)
    assert list(dict.fromkeys(told.phases)) == ["finding a plan that fits", "looking for a faster plan"]
    assert (result.status, result.bound and result.bound.scope) == (Status.OPTIMAL, Scope.PLANNER)
    assert result.stats["models"] >= 2


def test_in_one_phase_both_are_one() -> None:
    told = RecordingObserver()
    one = searched(PLAIN - 4, told, phases=1)
    assert set(told.phases) == {"looking for a faster plan"}
    assert one.bounds == searched(PLAIN - 4, Observer()).bounds


def test_a_plain_run_that_fits_needs_no_model() -> None:
    result = searched(PLAIN, Observer())
    assert (result.status, result.schedule, result.stats["models"]) == (Status.OPTIMAL, plain_run(GRAPH), 0)


def test_what_no_plan_can_free_settles_it_in_any_order() -> None:
    graph = graph_of(op("a", "in", "x"), sizes={"in": 9})
    result = MoccasinSearch(Problem(graph, Budget(8)), Moccasin(), Observer()).run()
    assert (result.status, result.scope) == (Status.INFEASIBLE, Scope.ANY_ORDER)


def test_work_is_counted_so_that_the_clock_does_not_matter() -> None:
    planner = Moccasin(order=FirstRuns.FREE, work_limit=0.1, time_limit=600.0)
    problem = Problem(training_chain(12), Budget(8))
    first, second = (MoccasinSearch(problem, planner, Observer()).run() for _ in range(2))
    assert first == second
