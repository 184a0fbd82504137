"""Dynamic Tensor Rematerialization as a planner that knows the whole graph."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.planners.shared.option_checks import check_least
from remat_cli.problem import Observer, PlanResult, Problem


class Heuristic(StrEnum):
    """Who is evicted: the tensor of the least score, of cost c, size m and time since its last use s."""

    LOCAL = "local"  # c / (m s)
    MSPS = "msps"  # (c + cost of the evicted tensors that it is made from) / m
    EQ = "eq"  # (c + cost of the evicted neighbourhood, estimated by classes of evicted tensors) / (m s)
    H_DTR = "h_dtr"  # the same, the neighbourhood taken exactly
    SIZE = "size"  # 1 / m
    LRU = "lru"  # 1 / s
    ALL = "all"  # each in turn

    @property
    def single(self) -> tuple[Heuristic, ...]:
        """The heuristics that this one stands for, the quick and promising first."""
        return tuple(each for each in Heuristic if each is not Heuristic.ALL) if self is Heuristic.ALL else (self,)


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
            counts as live what the plan made of it has freed already, so one with more memory than the budget may fit
            it.
        limit: a run that takes more than this many times the time of the plain run, or as many times its ops, is given
            up.
        time_limit: seconds; no further run is begun after it, and one that goes on for longer is given up.
    """

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

        return GreedySearch(problem, self, observe).run()
