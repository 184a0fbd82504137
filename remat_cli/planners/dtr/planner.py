"""Dynamic Tensor Rematerialization as a planner for whole graphs."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem
from remat_cli.planners.dtr.options import Heuristic
from remat_cli.planners.shared.option_checks import check_least


@dataclass(frozen=True)
class DTR:
    """Runs the graph, and evicts the least important tensor when memory is short.

    Evicted tensors are recomputed when an op needs them.

    Source: Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021 (the simulator, with eager eviction).
    Takes: any graph, also very large ones.
    Searches: one greedy run for each heuristic and memory size that is tried.
    Proves: nothing.
    Complexity: O(N T) for each run of N ops and T tensors; h_dtr, eq and msps more where evicted regions are large.

    Attributes:
        heuristic: score that decides on evictions: msps, h_dtr, eq, local, size, lru, or all: each in turn, and the
            plan of least time is kept.
        candidates: number of memory sizes to try for each heuristic, twice as many while no plan fits. Sizes may exceed
            the budget: the plan of a run frees tensors earlier than the run does.
        limit: largest time and number of ops of a run, as multiples of the plain run's.
        time_limit: seconds; after it, no further run is begun, and a longer one is given up.
    """

    heuristic: Heuristic = Heuristic.ALL
    candidates: int = 4
    limit: float = 3.0
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        check_least(self, candidates=0, limit=1, time_limit=0)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`."""
        # This import needs numpy; reading the options must not.
        from remat_cli.planners.dtr.search import GreedySearch
        from remat_cli.planners.shared.incumbent import Incumbent
        from remat_cli.planners.shared.limits import Limits

        incumbent, limits = Incumbent(problem, observe), Limits.of(self.time_limit, observe=observe)
        return GreedySearch(incumbent, limits, self.limit).run(self.heuristic.single, self.candidates)
