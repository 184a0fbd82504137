"""The lower-set DPs of Kusumoto et al. 2019, approximate and exact."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem
from remat_cli.planners.published.lower_sets.options import DPOptions
from remat_cli.planners.shared.option_checks import check_least


@dataclass(frozen=True)
class ApproxDP(DPOptions):
    """Keeps the boundaries of blocks of the forward pass, recomputes the rest.

    Source: Kusumoto et al., A Graph Theoretic Framework of Recomputation Algorithms for Memory-Efficient
    Backpropagation, NeurIPS 2019, section 4.3 (Algorithm 1 over the pruned family).
    Takes: training graphs.
    Searches: chains of lower sets, one set for each forward op.
    Proves: nothing; in the paper's budget model, that no such chain fits.
    Complexity: O(T V^2) for V forward ops and T time slots, for each value of B that is tried.
    """

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part.
        """
        # These imports need numpy; reading the options must not.
        from remat_cli.planners.published.lower_sets.families import pruned_family
        from remat_cli.planners.published.lower_sets.search import LowerSetSearch
        from remat_cli.planners.shared.forward_part import ForwardPart

        sets = pruned_family(ForwardPart.of(problem.graph, "approx_dp"))
        return LowerSetSearch(problem, sets, self, observe).run()


@dataclass(frozen=True)
class ExactDP(DPOptions):
    """Keeps the boundaries of blocks of the forward pass, recomputes the rest.

    Source: Kusumoto et al., A Graph Theoretic Framework of Recomputation Algorithms for Memory-Efficient
    Backpropagation, NeurIPS 2019, section 4.2 (Algorithm 1 over all lower sets).
    Takes: training graphs.
    Searches: chains of all lower sets of the forward part.
    Proves: nothing; in the paper's budget model, that no chain fits.
    Complexity: O(T L^2) for L lower sets and T time slots, for each value of B that is tried; up to 5 GB.

    Attributes:
        max_lower_sets: largest number of lower sets; a graph with more is refused.
    """

    max_lower_sets: int = 40_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, max_lower_sets=1)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part, or too many lower sets.
        """
        # These imports need numpy; reading the options must not.
        from remat_cli.planners.published.lower_sets.families import all_lower_sets
        from remat_cli.planners.published.lower_sets.search import LowerSetSearch
        from remat_cli.planners.shared.forward_part import ForwardPart

        sets = all_lower_sets(ForwardPart.of(problem.graph, "exact_dp"), self.max_lower_sets)
        return LowerSetSearch(problem, sets, self, observe).run()
