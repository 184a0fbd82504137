"""Checkmate (Jain et al. 2020), exact and by rounding."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem
from remat_cli.planners.published.checkmate.options import CheckmateOptions, RoundingOptions


@dataclass(frozen=True)
class Checkmate(CheckmateOptions):
    """Chooses each stage's recomputed ops and held tensors by an integer program. A stage recomputes some ops, then
    runs the next op for the first time.

    Source: Jain et al., Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, MLSys 2020,
    section 4.
    Takes: any graph.
    Searches: schedules that keep the input order and recompute, before each op's first run, some earlier ops, each at
    most once and in the input order.
    Proves: that its plan is the best of these, or that none of them fits (scope planner); most often the same for all
    schedules in the input order, whatever they recompute and when (scope fixed-order).
    Complexity: an integer program of up to N^2 recomputations of N ops, of which the first plans and bounds leave few;
    hundreds of ops in seconds to minutes.
    """

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the program is too large.
            UsageError: the solver is not installed.
        """
        # This import needs numpy; reading the options must not.
        from remat_cli.planners.published.checkmate.search import CheckmateSearch

        return CheckmateSearch(problem, self, observe).run()


@dataclass(frozen=True)
class CheckmateLP(RoundingOptions):
    """Solves the linear relaxation of Checkmate's program, and rounds its retentions to plans.

    Source: Jain et al., Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, MLSys 2020,
    section 5. The repair of plans that do not fit, and their improvement, are not in the paper.
    Takes: any graph.
    Searches: some dozen roundings, as schedules in the input order.
    Proves: how much any schedule in the input order must recompute at least, or that none fits (scope fixed-order).
    Complexity: up to three linear programs of N^2 recomputations of N ops.
    """

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the program is too large.
            UsageError: the solver is not installed.
        """
        # This import needs numpy; reading the options must not.
        from remat_cli.planners.published.checkmate.search import RoundingSearch

        return RoundingSearch(problem, self, observe).run()
