"""The plain run as a planner: the baseline that every other planner is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem, Scope
from remat_cli.core.schedule import plain_run


@dataclass(frozen=True)
class KeepAll:
    """Keeps every tensor until its last use and recomputes nothing.

    Source: what every framework does without a planner.
    Takes: any graph.
    Searches: the one schedule that runs every op once in the input order.
    Proves: whether that one fits, and then that no plan is faster.
    Complexity: linear.
    """

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Return the plain run if it fits; else that this one schedule does not."""
        # numpy comes with it; the planners are listed without it.
        from remat_cli.planners.shared.incumbent import Incumbent

        incumbent = Incumbent(problem, observe)
        if not incumbent.fits(incumbent.offer(plain_run(problem.graph))):
            incumbent.prove_that_none_fits(Scope.PLANNER, "the plain run recomputes nothing and does not fit")
        return incumbent.result()
