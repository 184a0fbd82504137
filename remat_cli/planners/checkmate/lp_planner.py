"""Checkmate's linear relaxation with two-phase rounding, Jain et al. 2020."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from remat_cli.planners.checkmate.lp_options import RoundingOptions
from remat_cli.problem import Observer, PlanResult, Problem


@dataclass(frozen=True)
class CheckmateLP(RoundingOptions):
    """Solves Checkmate's program with everything allowed by halves, and rounds what is held to plans.

    Source: Jain et al., Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, MLSys 2020,
    section 5. That plans which do not fit are repaired, and then improved, is not in the paper.
    Takes: any graph.
    Searches: some dozen roundings, as schedules in the input order.
    Proves: how much any schedule in the input order must recompute at least, or that none fits (scope fixed-order).
    Complexity: up to three linear programs of N^2 recomputations of N ops.

    Attributes:
        solver: highs, cbc, or auto: HiGHS where it is installed (highspy), else CBC, which comes with PuLP.
        rounding: deterministic: hold what is held at least to 0.1, 0.2, ..., 0.9; threshold: to 0.5; random_threshold:
            to values drawn around 0.5; randomised: hold each tensor with a probability of as much as it is held.
        samples: how many plans are drawn, by random_threshold and randomised.
        allowance: share of the budget that is left free for what rounding adds; half of it and none are tried, too.
        repairs: how often each plan may be changed for it to fit; 0: the paper's method alone.
        time_limit: seconds.
        threads: of the solver.
        seed: of the random choices.
        force: build the program even if it is estimated to take more than 6 GiB.
    """

    starved: ClassVar[Mapping[str, object]] = {"time_limit": 0.0}

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the program is too large.
            UsageError: the solver is not installed.
        """
        # numpy and PuLP come with it; the options must be readable without them.
        from remat_cli.planners.checkmate.lp_search import RoundingSearch

        return RoundingSearch(problem, self, observe).run()
