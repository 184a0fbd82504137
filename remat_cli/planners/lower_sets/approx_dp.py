"""The approximate lower-set DP of Kusumoto et al. 2019."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.planners.lower_sets.options import DPOptions
from remat_cli.problem import Observer, PlanResult, Problem


@dataclass(frozen=True)
class ApproxDP(DPOptions):
    """Cuts the forward pass into blocks, keeps the blocks' boundaries and recomputes the rest for the backward.

    Source: Kusumoto et al., A Graph Theoretic Framework of Recomputation Algorithms for Memory-Efficient
    Backpropagation, NeurIPS 2019, section 4.3 (Algorithm 1 over the pruned family).
    Takes: training graphs.
    Searches: chains of lower sets, one set for each forward op.
    Proves: nothing; in the paper's budget model, that no such chain fits.
    Complexity: O(T V^2) for V forward ops and T time slots, for each value of B that is tried.

    Attributes:
        strategy: time: the least overhead; memory: the most, which leaves liveness the most to free; both: each in
            turn, and the simulated plan of least time is kept.
        budget_model: simulated: B is searched so that the simulated peak fits; paper: the budget is B of equation 2.
        liveness: free each tensor right after its last use; false: only at the end of the block that it is in.
        time_slots: times are scaled to about this sum in the DP; they stay exact where their sum is no more.
        candidates: how many values of B are tried.
        moves: how many plans local search may try to improve the best of them (blocks merged, split, cuts moved), ten
            times as many as long as none fits; not in the paper, and not in its budget model.
        time_limit: seconds; no further value of B or move is begun after it.
    """

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part.
        """
        # numpy comes with these; the options must be readable without it.
        from remat_cli.planners.lower_sets.families import pruned_family
        from remat_cli.planners.lower_sets.search import LowerSetSearch
        from remat_cli.planners.shared.forward_part import ForwardPart

        sets = pruned_family(ForwardPart.of(problem.graph, "approx_dp"))
        return LowerSetSearch(problem, sets, self, observe).run()
