"""The MOCCASIN planner: retention intervals by constraint programming."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem
from remat_cli.planners.published.moccasin.options import MoccasinOptions


@dataclass(frozen=True)
class Moccasin(MoccasinOptions):
    """Chooses runs and retention intervals of tensors by constraint programming. Each op has a few runs.

    Source: Bartan et al., MOCCASIN: Efficient Tensor Rematerialization for Neural Networks, ICML 2023.
    Takes: any graph of up to a thousand ops or so.
    Searches: schedules in which each op runs a few times at most; by default in stages, stage t running op t for the
        first time after any earlier ones for a further time, in their order.
    Proves: that its plan is the best of these, or that none of them fits (scope planner).
    Complexity: a CP-SAT model of O(C N) intervals for N ops and C runs of each, and O(C M) readings for M data
        dependencies.
    """

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`."""
        # This import needs ortools; reading the options must not.
        from remat_cli.planners.published.moccasin.search import MoccasinSearch

        return MoccasinSearch(problem, self, observe).run()
