"""Dynamic Tensor Rematerialization as a planner that knows the whole graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from remat_cli.planners.dtr.options import Heuristic
from remat_cli.planners.shared.option_checks import check_least
from remat_cli.problem import Observer, PlanResult, Problem


@dataclass(frozen=True)
class DTR:
    """Runs the graph op by op, and whenever memory is short evicts the tensor that seems to matter least.

    What was evicted is computed again when an op needs it.

    Source: Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021 (the simulator, with eager eviction).
    Takes: any graph, also very large ones.
    Searches: one greedy run for each heuristic and memory size that is tried.
    Proves: nothing.
    Complexity: O(N T) for each run of N ops and T tensors; h_dtr, eq and msps more where evicted regions are large.

    Attributes:
        heuristic: what decides who is evicted: msps, h_dtr, eq, local, size, lru, or all: each in turn, and the plan of
            least time is kept.
        candidates: how many memory sizes are tried for each heuristic, twice as many as long as no plan fits: a run
            counts as live what the plan made of it
            has freed already, so one with more memory than the budget may fit it.
        limit: a run that takes more than this many times the time of the plain run, or as many times its ops, is given
            up.
        time_limit: seconds; no further run is begun after it, and one that goes on for longer is given up.
    """

    starved: ClassVar[Mapping[str, object]] = {"candidates": 0}

    heuristic: Heuristic = Heuristic.ALL
    candidates: int = 4
    limit: float = 3.0
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        check_least(self, candidates=0, limit=1, time_limit=0)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`."""
        # numpy comes with it; the options must be readable without it.
        from remat_cli.planners.dtr.search import GreedySearch

        search = GreedySearch(problem, self.limit, self.time_limit, observe)
        for heuristic in self.heuristic.single:
            search.try_sizes(heuristic, self.candidates)
        return search.result()
