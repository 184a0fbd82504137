"""How retention spends its time: what it is given, what limits it, and what it says."""

from __future__ import annotations

from math import inf

import pytest

from remat_cli.core.problem import Budget, Observer, Problem, Scope, Status
from remat_cli.core.solve import baseline_of
from remat_cli.errors import UsageError
from remat_cli.planners.retention.options import OrderChoice, RetentionOptions
from remat_cli.planners.retention.planner import Retention
from remat_cli.planners.retention.search import RetentionSearch
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.sequence import RematSequence
from tests.graphs import training_chain, training_unet
from tests.plans import RecordingObserver

GRAPH = training_unet(4)
PROBLEM = Problem(GRAPH, Budget(baseline_of(GRAPH).peak_bytes * 8 // 10))
NO_CLOCK = 600.0


def test_counted_work_alone_gives_the_same_twice() -> None:
    planner = Retention(time_limit=NO_CLOCK, work_limit=0.5)
    first, second = (planner.plan(PROBLEM, Observer()) for _ in range(2))
    assert first == second
    assert first.schedule is not None


@pytest.mark.parametrize("order", OrderChoice)
def test_bounds_come_and_grow(order: OrderChoice) -> None:
    told = RecordingObserver()
    result = Retention(order=order, time_limit=NO_CLOCK).plan(PROBLEM, told)
    assert "proving a bound" in told.phases
    for scope in Scope:
        times = [bound.time for bound in told.bounds if bound.scope is scope]
        assert times == sorted(set(times))
    assert result.bound is not None
    assert (result.bound.scope is Scope.FIXED_ORDER) <= (order is OrderChoice.INPUT)


def test_a_plan_that_meets_what_is_known_ends_it_at_once() -> None:
    graph = training_chain(4)
    start = RematSequence.of_names(graph, ("f1", "f2", "f3", "f4", "loss", "b4", "b3", "f1", "b2", "b1"))
    incumbent = Incumbent(Problem(graph, Budget(4)), Observer(), Scope.ANY_ORDER)
    incumbent.offer(start)
    incumbent.prove(start.time, Scope.ANY_ORDER)
    search = RetentionSearch(incumbent, Limits.of(NO_CLOCK), RetentionOptions(), is_prepared=True)
    search.run()
    result = incumbent.result()
    assert (result.status, search.turns) == (Status.OPTIMAL, 0)
    assert result.schedule == start.schedule()


def test_without_work_there_is_no_turn() -> None:
    result = Retention(time_limit=inf, work_limit=0.0).plan(PROBLEM, Observer())
    assert (result.status, result.stats["turns"]) == (Status.UNKNOWN, 0)


@pytest.mark.parametrize("option", ["time_limit", "cores", "seed"])
def test_option_below_what_makes_sense_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=option):
        Retention(**{option: -1})  # type: ignore[arg-type]
