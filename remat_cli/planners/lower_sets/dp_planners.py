"""The lower-set DPs of Kusumoto et al. 2019, approximate and exact."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.planners.shared.option_checks import check_least
from remat_cli.problem import Observer, PlanResult, Problem


class Strategy(StrEnum):
    """Which end of the Pareto front is the answer (Kusumoto et al. 2019, section 4.4)."""

    TIME = "time"  # TC: the least overhead
    MEMORY = "memory"  # MC: the most overhead, which leaves liveness the most to free
    BOTH = "both"  # each in turn; the simulated plan of least time is kept

    @property
    def ends(self) -> tuple[Strategy, ...]:
        """The single strategies that this one stands for."""
        return (Strategy.TIME, Strategy.MEMORY) if self is Strategy.BOTH else (self,)


class BudgetModel(StrEnum):
    """What the DP's budget B is."""

    SIMULATED = "simulated"  # searched, so that the simulated peak fits the user's budget
    PAPER = "paper"  # the user's budget less the resident bytes and graph inputs, taken literally


@dataclass(frozen=True)
class DPOptions:
    """Options of the planners that run the dynamic program.

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

    strategy: Strategy = Strategy.BOTH
    budget_model: BudgetModel = BudgetModel.SIMULATED
    liveness: bool = True
    time_slots: int = 1500
    candidates: int = 16
    moves: int = 200
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        check_least(self, time_slots=1, candidates=0, moves=0, time_limit=0)


@dataclass(frozen=True)
class ApproxDP(DPOptions):
    """Cuts the forward pass into blocks, keeps the blocks' boundaries and recomputes the rest for the backward.

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
        # numpy comes with these; the options must be readable without it.
        from remat_cli.planners.lower_sets.families import pruned_family
        from remat_cli.planners.lower_sets.search import LowerSetSearch
        from remat_cli.planners.shared.forward_part import ForwardPart

        sets = pruned_family(ForwardPart.of(problem.graph, "approx_dp"))
        return LowerSetSearch(problem, sets, self, observe).run()


@dataclass(frozen=True)
class ExactDP(DPOptions):
    """Cuts the forward pass into blocks, keeps the blocks' boundaries and recomputes the rest for the backward.

    Source: Kusumoto et al., A Graph Theoretic Framework of Recomputation Algorithms for Memory-Efficient
    Backpropagation, NeurIPS 2019, section 4.2 (Algorithm 1 over all lower sets).
    Takes: training graphs.
    Searches: chains of all lower sets of the forward part.
    Proves: nothing; in the paper's budget model, that no chain fits.
    Complexity: O(T L^2) for L lower sets and T time slots, for each value of B that is tried; up to 5 GB.

    Attributes:
        max_lower_sets: a graph that has more is refused.
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
        # numpy comes with these; the options must be readable without it.
        from remat_cli.planners.lower_sets.families import all_lower_sets
        from remat_cli.planners.lower_sets.search import LowerSetSearch
        from remat_cli.planners.shared.forward_part import ForwardPart

        sets = all_lower_sets(ForwardPart.of(problem.graph, "exact_dp"), self.max_lower_sets)
        return LowerSetSearch(problem, sets, self, observe).run()
