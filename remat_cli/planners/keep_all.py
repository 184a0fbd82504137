"""The plain run as a planner: the baseline for all other planners."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem, Scope
from remat_cli.core.schedule import input_order, plain_run, with_frees


@dataclass(frozen=True)
class KeepAll:
    """Keeps every tensor until its last use and recomputes nothing.

    Source: every framework, without a planner.
    Takes: any graph.
    Searches: the one schedule that runs every op once in the input order.
    Proves: whether that schedule fits, and then that no plan is faster.
    Complexity: linear.
    """

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Return the plain run if it fits, otherwise a proof that it does not."""
        # This import needs numpy; listing the planners must not.
        from remat_cli.planners.shared.incumbent import Incumbent

        incumbent = Incumbent(problem, observe)
        graph = problem.graph
        fits = incumbent.fits(incumbent.offer(plain_run(graph)))
        if not fits and graph.lasting:  # the same run, with tensors that no op reads freed at once
            fits = incumbent.fits(incumbent.offer(with_frees(graph, input_order(graph))))
        if not fits:
            incumbent.prove_that_none_fits(Scope.PLANNER, "the plain run recomputes nothing and does not fit")
        return incumbent.result()
