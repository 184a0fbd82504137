"""Overheads held against a limit, to the last digit."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest

from remat_cli.core.problem import Bound, Observer, PlanResult, Problem, Scope, Status
from remat_cli.core.schedule import with_frees
from remat_cli.planning import exact_overhead, plan
from tests.graphs import training_chain
from tests.plans import asking, prepared

TEN = training_chain(3)  # the plain run takes 10 units of time


@dataclass(frozen=True)
class ExactlyTenPercent:
    """A plan of 11 units of time, proven to be the fastest."""

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        schedule = with_frees(problem.graph, ("f1", "f2", "f3", "loss", "b3", "f1", "b2", "b1"))
        return PlanResult(Status.OPTIMAL, schedule, (Bound(11, Scope.ANY_ORDER),))


def status(max_overhead: Fraction | None) -> Status:
    request = asking(ExactlyTenPercent(), max_overhead=max_overhead).at(3)
    return plan(prepared(TEN), request).status


def test_a_bound_of_exactly_the_overhead_that_is_allowed_proves_nothing() -> None:
    assert 11 / 10 - 1 > 0.1, "rounding would refuse it"
    assert status(None) is status(Fraction(1, 10)) is Status.OPTIMAL
    assert status(Fraction(1, 10) - Fraction(1, 10**30)) is Status.INFEASIBLE


@dataclass(frozen=True)
class FarFromItsBound:
    """A plan of 12 units of time, with a bound of 11."""

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        schedule = with_frees(problem.graph, ("f1", "f2", "f3", "loss", "f1", "b3", "f1", "b2", "b1"))
        return PlanResult(Status.FEASIBLE, schedule, (Bound(11, Scope.ANY_ORDER),))


def test_a_plan_above_the_overhead_that_is_allowed_is_no_proof_that_all_are() -> None:
    request = asking(FarFromItsBound(), max_overhead=Fraction(1, 10)).at(4)
    assert plan(prepared(TEN), request).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("time", "plain", "overhead"), [(11, 10, Fraction(1, 10)), (25, 10, Fraction(3, 2)), (10, 10, 0), (3, 0, 0)]
)
def test_an_overhead_is_exact_and_none_where_ops_take_no_time(time: int, plain: int, overhead: Fraction) -> None:
    assert exact_overhead(time, plain) == overhead
