"""Checkmate's integer program, Jain et al. 2020."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.errors import UsageError
from remat_cli.planners.checkmate.mip_options import MipOptions
from remat_cli.problem import Observer, PlanResult, Problem


@dataclass(frozen=True)
class Checkmate(MipOptions):
    """Decides by an integer program what each stage recomputes before it runs the next op, and what is held meanwhile.

    Source: Jain et al., Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, MLSys 2020,
    section 4.
    Takes: any graph.
    Searches: schedules that keep the input order and recompute, before each op's first run, some earlier ops, each at
    most once and in the input order.
    Proves: that its plan is the best of these, or that none of them fits (scope planner); most often the same of all
    schedules in the input order, whatever they recompute and when (scope fixed-order).
    Complexity: an integer program of up to N^2 recomputations of N ops, of which the first plans and bounds leave few;
    hundreds of ops in seconds to minutes.

    Attributes:
        solver: highs, cbc, or auto: HiGHS where it is installed (highspy), else CBC, which comes with PuLP.
        gap: a plan this close to the bound ends the search, as a share of its extra time; 0: the best plan.
        time_limit: seconds.
        cores: threads of the solver; 0: all.
        seed: of the solver's random choices.
        force: build the program even if it is estimated to take more than 6 GiB.
    """

    gap: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gap < 1:
            raise UsageError(f"gap is {self.gap}", hint="give a share from 0 to less than 1")

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the program is too large.
            UsageError: the solver is not installed.
        """
        # numpy and PuLP come with it; the options must be readable without them.
        from remat_cli.planners.checkmate.search import CheckmateSearch

        return CheckmateSearch(problem, self, self.gap, observe).run()
