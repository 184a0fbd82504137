"""A planner asked several times within one time limit, for plans whose peak is not all that counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from remat_cli.core.problem import Budget, Observer, PassingObserver, Plan, Planner, Problem
from remat_cli.core.schedule import Schedule
from remat_cli.core.solve import Solution, solve


class FoundPlans(PassingObserver):
    """Keeps the plans that a planner tells of."""

    def __init__(self, observe: Observer) -> None:
        """Pass all reports on, and collect the plans in `plans`."""
        super().__init__(observe)
        self.plans: list[Plan] = []

    def found(self, plan: Plan) -> None:
        """Keep a plan, and pass it on."""
        self.plans.append(plan)
        super().found(plan)


@runtime_checkable
class Composed(Planner, Protocol):
    """A planner that asks another planner."""

    def in_seconds(self, seconds: float) -> Planner:
        """Return the same with a planner that takes no more time than that."""
        ...


def in_seconds(planner: Planner, seconds: float) -> Planner:
    """Return a planner that takes no more time than that, where it has a time limit."""
    if isinstance(planner, Composed):
        return planner.in_seconds(seconds)
    if "time_limit" not in planner.__dataclass_fields__:
        return planner
    return replace(planner, time_limit=seconds)


def solve_within(
    problem: Problem, limit: int, planner: Planner, seconds: float, observe: Observer
) -> tuple[Solution, Sequence[Plan]]:
    """Return the solution within another budget, and all plans that the planner found.

    Args:
        problem: the problem, with a budget of its own.
        limit: the budget, in bytes.
        planner: the planner.
        seconds: its time limit, if it has one.
        observe: is told what the planner finds.
    """
    heard = FoundPlans(observe)
    return solve(replace(problem, budget=Budget(limit)), in_seconds(planner, seconds), heard), heard.plans


def fastest_within(plans: Sequence[Plan], budget_bytes: int, most: int) -> Iterator[Schedule]:
    """Yield the schedules of at most so many plans whose peak fits a budget, fastest first."""
    fitting = sorted((plan for plan in plans if plan.peak_bytes <= budget_bytes), key=lambda plan: plan.time)
    for plan in fitting[:most]:
        yield plan.schedule
