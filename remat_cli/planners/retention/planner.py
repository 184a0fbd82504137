"""The `retention` planner: the sparse need-time model in several orders."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem, Scope
from remat_cli.planners.retention.options import OrderChoice, RetentionOptions


@dataclass(frozen=True)
class Retention(RetentionOptions):
    """Decides from use to use whether to hold or recompute each tensor.

    Source: ours. Retention of tensors as in Bartan et al., MOCCASIN, ICML 2023, but with a decision only where one can
    change something: in gaps between uses over stages that are short of memory.
    Takes: any graph of up to a few thousand ops.
    Searches: orders of first runs; in each of the best few, recomputation of growing depth (of what recomputation
        needs, and so on).
    Proves: how much any plan must recompute, or that none fits (scope any-order); with the input order also how much
        any plan in that order must (scope fixed-order).
    Complexity: a CP-SAT model with a variable for each gap and each chance to recompute.
    """

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`."""
        # This import needs ortools; reading the options must not.
        from remat_cli.planners.retention.search import RetentionSearch
        from remat_cli.planners.shared.incumbent import Incumbent
        from remat_cli.planners.shared.limits import Limits

        scope = Scope.FIXED_ORDER if self.order is OrderChoice.INPUT else Scope.ANY_ORDER
        incumbent = Incumbent(problem, observe, scope)
        limits = Limits.of(self.time_limit, self.work_limit, cores=self.cores, seed=self.seed, observe=observe)
        search = RetentionSearch(incumbent, limits, self)
        search.run()
        return incumbent.result(stats={"turns": search.turns})
