"""The approximate lower-set DP of Kusumoto et al. 2019."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.planners.lower_set_options import BudgetModel, Strategy
from remat_cli.problem import Observer, PlanResult, Problem


@dataclass(frozen=True)
class ApproxDP:
    """Cuts the forward pass into blocks, keeps the blocks' boundaries and recomputes the rest for the backward.

    Source: Kusumoto et al., A Graph Theoretic Framework of Recomputation Algorithms for Memory-Efficient
    Backpropagation, NeurIPS 2019, section 4.3 (Algorithm 1 over the pruned family).
    Takes: training graphs.
    Searches: chains of lower sets, one set for each forward op; feasible plans, no bound of its own.
    Complexity: O(T V^2) for V forward ops and T time slots, for each value of B that is tried.

    Attributes:
        strategy: time: the least overhead; memory: the most, which leaves liveness the most to free; both: each in
            turn, and the simulated plan of least time is kept.
        budget_model: simulated: B is searched so that the simulated peak fits; paper: the budget is B of equation 2.
        time_slots: times are scaled to about this sum in the DP; they stay exact where their sum is no more.
        candidates: how many values of B are tried.
        time_limit: seconds; no further value of B is begun after it.
    """

    starved: ClassVar[Mapping[str, object]] = {"candidates": 0}

    strategy: Strategy = Strategy.BOTH
    budget_model: BudgetModel = BudgetModel.SIMULATED
    time_slots: int = 1500
    candidates: int = 20
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        for name, least in (("time_slots", 1), ("candidates", 0), ("time_limit", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}", hint=f"give {least} or more")

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part.
        """
        # numpy comes with these; the options above must be readable without it.
        from remat_cli.planners.forward_part import ForwardPart
        from remat_cli.planners.lower_set_search import Limits, LowerSetSearch
        from remat_cli.planners.lower_sets import pruned_family

        limits = Limits.of(self.candidates, self.time_limit)
        sets = pruned_family(ForwardPart.of(problem.graph, "approx_dp"))
        search = LowerSetSearch(problem, sets, self.strategy.ends, self.time_slots, limits, observe)
        return search.literal() if self.budget_model is BudgetModel.PAPER else search.simulated()
