"""A schedule from elsewhere, judged as a plan."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Budget, Observer, PlanResult, Problem, Status
from remat_cli.core.schedule import Schedule
from remat_cli.core.solve import solve
from remat_cli.errors import UsageError
from remat_cli.formats.schedule_json import schedule_bytes
from remat_cli.prepare import Prepared
from remat_cli.units import format_bytes

# What makes schedules that no planner made, as their files say.
MAKERS = ("checkpoints",)


@dataclass(frozen=True)
class Given:
    """Claims a schedule that somebody else made.

    Attributes:
        schedule: the steps.
        found_by: the planner that came to it; None where that is not known.
    """

    schedule: Schedule
    found_by: str | None = None

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Return the schedule."""
        del problem, observe
        return PlanResult(Status.FEASIBLE, schedule=self.schedule, found_by=self.found_by)


def file_of_given(prepared: Prepared, schedule: Schedule, budget_bytes: int, maker: str) -> bytes:
    """Return the schedule file of a schedule that no planner made, proven by simulation.

    Args:
        prepared: the graph.
        schedule: of it.
        budget_bytes: that it has to keep within.
        maker: what made it, in the place of a planner's name.

    Raises:
        UsageError: it does not keep within the budget.
        FalseClaim: it does not run.
    """
    from remat_cli.core.simulate import simulate

    peak = simulate(prepared.graph, schedule).peak_bytes
    if peak > budget_bytes:
        raise UsageError(
            f"the schedule of these {maker} peaks at {format_bytes(peak)} when remat runs it, above the budget of "
            f"{format_bytes(budget_bytes)}",
            hint="leave -o out and use torch's own checkpoints; or leave --as out, and write the free plan",
        )
    solution = solve(Problem(prepared.graph, Budget(budget_bytes)), Given(schedule))
    return schedule_bytes(
        solution, prepared.mode, maker, {}, prepared.options.recorded, estimated=prepared.is_estimated
    )
