"""Searches stop a planner at the first plan of allowed overhead, or at a bound that no plan is near."""

from __future__ import annotations

from fractions import Fraction

import pytest

from remat_cli.core.problem import Bound, Observer, Plan, Scope
from remat_cli.core.schedule import Schedule
from remat_cli.planning.first_plan import FirstBound, FirstPlan


def plan(time: int) -> Plan:
    return Plan(time, 1, lambda: Schedule(()))


@pytest.mark.parametrize(("time", "is_enough"), [(99, True), (105, True), (110, True), (111, False)])
def test_a_plan_of_the_allowed_overhead_is_enough(time: int, *, is_enough: bool) -> None:
    awaited = FirstPlan(100, Observer(), Fraction(1, 10))
    assert not awaited.takes_any_plan
    awaited.found(plan(time))
    assert awaited.has_enough == is_enough


def test_any_plan_is_enough_where_every_overhead_is_allowed() -> None:
    awaited = FirstPlan(100, Observer(), None)
    assert (awaited.takes_any_plan, awaited.has_enough) == (True, False)
    awaited.found(plan(10_000))
    assert awaited.has_enough


@pytest.mark.parametrize(("time", "is_enough"), [(99, False), (100, False), (101, True)])
def test_a_bound_above_the_plain_run_is_enough(time: int, *, is_enough: bool) -> None:
    awaited = FirstBound(100, Observer(), Fraction(0))
    awaited.bound(Bound(time, Scope.ANY_ORDER))
    assert awaited.has_enough == is_enough
