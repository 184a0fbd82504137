"""A planner asked several times within one time limit, for plans whose peak is not all that counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from remat_cli.core.problem import Observer, PassingObserver, Plan, Planner
from remat_cli.core.schedule import Schedule


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


def in_seconds(planner: Planner, seconds: float) -> Planner:
    """Return a planner that takes no more time than that, where it has a time limit."""
    if "time_limit" not in planner.__dataclass_fields__:
        return planner
    return replace(planner, time_limit=seconds)


def fastest_within(plans: Sequence[Plan], budget_bytes: int, most: int) -> Iterator[Schedule]:
    """Yield the schedules of at most so many plans whose peak fits a budget, fastest first."""
    fitting = sorted((plan for plan in plans if plan.peak_bytes <= budget_bytes), key=lambda plan: plan.time)
    for plan in fitting[:most]:
        yield plan.schedule
