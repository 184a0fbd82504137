"""A schedule from elsewhere, judged like a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Observer, PlanResult, Problem, Status
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import solve
from remat_cli.errors import UsageError
from remat_cli.formats.schedule_json import schedule_bytes
from remat_cli.prepare import Prepared
from remat_cli.splitting import Split, written_cuts
from remat_cli.units import format_bytes

# The sources of schedules that no planner made, as written in their files.
MAKERS = ("checkpoints",)


@dataclass(frozen=True)
class Given:
    """A planner that claims a given schedule.

    Attributes:
        schedule: the steps.
        found_by: the planner that found the schedule; None if unknown.
    """

    schedule: Schedule
    found_by: str | None = None

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Return the schedule."""
        del problem, observe
        return PlanResult(Status.FEASIBLE, schedule=self.schedule, found_by=self.found_by)


def file_of_given(prepared: Prepared, schedule: Schedule, budget_bytes: int, maker: str) -> bytes:
    """Return the file of a schedule that no planner made, proven by simulation.

    Args:
        prepared: the graph.
        schedule: a schedule of the graph.
        budget_bytes: the budget of the schedule.
        maker: source of the schedule, written instead of a planner's name.

    Raises:
        UsageError: the schedule exceeds the budget.
        FalseClaim: the schedule does not run.
    """
    peak = simulate(prepared.graph, schedule).peak_bytes
    if peak > budget_bytes:
        raise UsageError(
            f"the schedule of these {maker} peaks at {format_bytes(peak)} when remat runs it, above the budget of "
            f"{format_bytes(budget_bytes)}",
            hint="leave -o out and use torch's own checkpoints; or leave --as out, and write the free plan",
        )
    solution = solve(Problem(prepared.graph, Budget(budget_bytes)), Given(schedule))
    planner = {"name": maker, "options": {}}
    return schedule_bytes(solution, prepared.mode, planner, prepared.options.recorded, estimated=prepared.is_estimated)


def file_of_block(graph: Graph, schedule: Schedule, cuts: Mapping[str, Split] | None) -> bytes:
    """Return the file of a schedule of one block, at its own peak.

    Args:
        graph: graph of the block.
        schedule: a schedule of the graph.
        cuts: cuts of the graph, by the name of an op; None where the plan was made without split.
    """
    solution = solve(Problem(graph, Budget(simulate(graph, schedule).peak_bytes)), Given(schedule))
    read_with = {} if cuts is None else {"parts": written_cuts(cuts)}
    return schedule_bytes(solution, "training", {"name": "blocks", "options": {}}, read_with)
