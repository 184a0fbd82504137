"""The best plan so far: what is kept, what is told, and what becomes of it as a result."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.problem import Basis, Bound, Budget, ModelFigure, Observer, Plan, Problem, Scope, Status
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.sequence import RematSequence
from tests.graphs import chain, training_chain
from tests.plans import RecordingObserver

GRAPH = training_chain(4)  # the plain run takes 13 and needs 5 bytes
ANYTHING = Problem(GRAPH, Budget(100))


def plan_of(time: int, peak: int) -> Plan:
    return Plan(time, peak, lambda: plain_run(GRAPH))


COSTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12)


@given(costs=COSTS, budget=st.integers(0, 9))
def test_best_and_closest_are_the_best_of_all_that_came(costs: list[tuple[int, int]], budget: int) -> None:
    told = RecordingObserver()
    incumbent = Incumbent(Problem(chain(1), Budget(budget)), told)
    for time, peak in costs:
        incumbent.take(plan_of(time, peak))
    fitting = [(time, peak) for time, peak in costs if peak <= budget]
    others = [(peak, time) for time, peak in costs if peak > budget]
    best, closest = incumbent.best, incumbent.closest
    assert (best and (best.time, best.peak_bytes)) == min(fitting, default=None)
    assert (closest and (closest.peak_bytes, closest.time)) == min(others, default=None)
    # Whoever observes is told of each plan that was the best when it came, and of no other.
    ahead = [
        now
        for before, now in zip([None, *accumulate(fitting, min)], accumulate(fitting, min), strict=False)
        if now != before
    ]
    assert [(plan.time, plan.peak_bytes) for plan in told.plans] == ahead


@pytest.mark.parametrize("as_schedule", [False, True])
def test_what_is_offered_is_measured_as_the_judge_measures_it(as_schedule: bool) -> None:
    sequence = RematSequence.of_names(GRAPH, ("f1", "f2", "f3", "f4", "loss", "b4", "f1", "f2", "b3", "b2", "b1"))
    incumbent = Incumbent(ANYTHING, Observer())
    figures = (ModelFigure("stored", 3, "bytes"),)
    incumbent.finder = "rotor"
    plan = incumbent.offer(sequence.schedule() if as_schedule else sequence, figures)
    trace = simulate(GRAPH, sequence.schedule())
    assert (plan.time, plan.peak_bytes) == (trace.time, trace.peak_bytes)
    assert incumbent.best is plan
    result = incumbent.result()
    assert (result.status, result.model_figures, result.found_by) == (Status.FEASIBLE, figures, "rotor")
    assert result.schedule is not None
    assert result.schedule.steps == sequence.schedule().steps


def test_the_schedule_of_a_plan_is_written_when_it_is_asked_for() -> None:
    written = []

    def write() -> Schedule:
        written.append(1)
        return plain_run(GRAPH)

    incumbent = Incumbent(ANYTHING, Observer())
    incumbent.take(Plan(13, 5, write))
    assert not written
    assert incumbent.result().schedule == plain_run(GRAPH)
    assert written == [1]


def test_a_plan_as_fast_as_the_bound_is_optimal_and_settles_the_search() -> None:
    incumbent = Incumbent(ANYTHING, Observer(), Scope.FIXED_ORDER)
    incumbent.take(plan_of(15, 5))
    assert not incumbent.is_settled
    assert incumbent.gap == 2 / 13
    incumbent.prove(15, Scope.FIXED_ORDER, Basis.TWO_SOLVERS)
    assert incumbent.is_settled
    result = incumbent.result(stats={"steps": 3})
    assert (result.status, result.stats) == (Status.OPTIMAL, {"steps": 3})
    assert result.bounds == (Bound(15, Scope.FIXED_ORDER, Basis.TWO_SOLVERS),)


def test_bounds_grow_and_each_is_told_once() -> None:
    told = RecordingObserver()
    incumbent = Incumbent(ANYTHING, told)
    for time in (12, 14, 14, 13, 15):
        incumbent.prove(time, Scope.FIXED_ORDER)
    assert [bound.time for bound in told.bounds] == [12, 14, 15]
    assert incumbent.bound == Bound(15, Scope.FIXED_ORDER)


@pytest.mark.parametrize(("searches", "holds"), [(Scope.ANY_ORDER, 13), (Scope.FIXED_ORDER, 15), (Scope.PLANNER, 20)])
def test_a_bound_of_a_smaller_scope_says_nothing_of_a_planner_that_searches_more(searches: Scope, holds: int) -> None:
    incumbent = Incumbent(ANYTHING, Observer(), searches)
    incumbent.prove(15, Scope.FIXED_ORDER)
    incumbent.prove(20, Scope.PLANNER)
    assert incumbent.bound.time == holds
    incumbent.take(plan_of(15, 5))
    is_optimal = incumbent.result().status is Status.OPTIMAL
    assert is_optimal == (holds >= 15)
    # What is known beside it is passed on, the foremost first.
    assert incumbent.result().bounds[0].time == holds
    assert {bound.time for bound in incumbent.result().bounds} >= {holds, 15, 20}


def test_of_equal_bounds_that_of_the_widest_scope_counts() -> None:
    incumbent = Incumbent(ANYTHING, Observer())
    incumbent.prove(14, Scope.FIXED_ORDER)
    incumbent.prove(14, Scope.ANY_ORDER)
    assert incumbent.bound.scope is Scope.ANY_ORDER


def test_without_a_plan_the_closest_one_and_the_reason_are_handed_over() -> None:
    incumbent = Incumbent(Problem(GRAPH, Budget(3)), Observer())
    incumbent.offer(RematSequence.plain(GRAPH), figures := (ModelFigure("cost", 9, "time"),))
    result = incumbent.result("the search came to its end")
    assert (result.status, result.bounds) == (Status.UNKNOWN, ())
    assert (result.reason, result.model_figures) == ("the search came to its end", figures)
    assert result.closest == plain_run(GRAPH)
    incumbent.prove(20, Scope.ANY_ORDER)
    assert incumbent.result().bounds == (Bound(20, Scope.ANY_ORDER),)


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("searches", Scope)
def test_that_nothing_fits_settles_only_where_it_speaks_of_all_plans(scope: Scope, searches: Scope) -> None:
    incumbent = Incumbent(Problem(GRAPH, Budget(3)), Observer(), searches)
    incumbent.offer(RematSequence.plain(GRAPH))
    incumbent.prove_that_none_fits(scope, "it does not fit", Basis.ONE_SOLVER)
    order = list(Scope)
    speaks_of_all = order.index(scope) <= order.index(searches)
    assert incumbent.nothing_fits is incumbent.is_settled is speaks_of_all
    result = incumbent.result(stats={"steps": 1})
    assert (result.status is Status.INFEASIBLE) == speaks_of_all
    assert result.closest is not None
    if speaks_of_all:
        assert (result.scope, result.basis, result.reason) == (scope, Basis.ONE_SOLVER, "it does not fit")
        assert result.stats == {"steps": 1}
