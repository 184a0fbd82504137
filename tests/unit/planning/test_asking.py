"""Plans that a planner tells of on its way are kept, and tried fastest first."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from remat_cli.core.problem import Budget, Plan, Problem
from remat_cli.core.schedule import Compute, Schedule
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.keep_all import KeepAll
from remat_cli.planning.asking import FoundPlans, fastest_within, solve_within
from tests.graphs import chain
from tests.plans import RecordingObserver


def plan(time: int, peak_bytes: int) -> Plan:
    return Plan(time, peak_bytes, lambda: Schedule((Compute(f"{time} in {peak_bytes}"),)))


PLANS = [plan(9, 5), plan(7, 6), plan(5, 7), plan(3, 8)]


def found(budget_bytes: int, most: int) -> list[str]:
    return [name for schedule in fastest_within(PLANS, budget_bytes, most) for name in schedule.computes]


def test_plans_within_the_budget_come_fastest_first() -> None:
    assert found(7, 3) == ["5 in 7", "7 in 6", "9 in 5"]
    assert found(7, 2) == ["5 in 7", "7 in 6"]
    assert found(4, 3) == []
    assert found(7, 0) == []


def test_plans_that_are_told_of_are_kept_and_passed_on() -> None:
    observer = RecordingObserver()
    plans = FoundPlans(observer)
    for each in PLANS:
        plans.found(each)
    assert plans.plans == observer.plans == PLANS


def test_a_time_limit_is_set_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    solve = Mock()
    monkeypatch.setattr("remat_cli.planning.asking.solve", solve)
    graph = chain(1, 1)
    for planner, asked in ((DTR(), DTR(time_limit=0.25)), (KeepAll(), KeepAll())):
        solve_within(Problem(graph, Budget(10)), 5, planner, 0.25, RecordingObserver())
        problem, in_time, _ = solve.call_args.args
        assert (problem.budget, in_time) == (Budget(5), asked)
