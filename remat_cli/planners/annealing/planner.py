"""The planner that searches order and recomputation together."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem, Scope
from remat_cli.planners.shared.option_checks import check_least


@dataclass(frozen=True)
class Annealing:
    """Searches order and recomputation together, by moving, adding and dropping runs.

    For graphs without a backward pass, whose order is free and matters as much as recomputation.

    Source: ours; Kirkpatrick, Gelatt, Vecchi, Optimization by Simulated Annealing, Science 1983.
    Takes: any graph.
    Searches: all plans.
    Proves: nothing.
    Complexity: the time of a move grows with the length that it spans; some hundred moves for each op.

    Attributes:
        time_limit: limit on the search, in seconds.
        work_limit: limit on the moves tried, in millions; without a limit the search ends when it no longer pays.
        gap: distance to the bound at which the search ends, as a share of the plain run's time.
        seed: seed of the random choices.
    """

    time_limit: float = 60.0
    work_limit: float | None = None
    gap: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, time_limit=0, work_limit=0, gap=0, seed=0)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`."""
        # This import needs numpy; reading the options must not.
        from remat_cli.planners.annealing.search import AnnealingSearch
        from remat_cli.planners.shared.incumbent import Incumbent
        from remat_cli.planners.shared.limits import Limits

        incumbent = Incumbent(problem, observe, Scope.ANY_ORDER)
        work = None if self.work_limit is None else self.work_limit * 1_000_000
        limits = Limits.of(self.time_limit, work, seed=self.seed, observe=observe)
        search = AnnealingSearch(incumbent, limits, self.gap)
        search.run()
        return incumbent.result(stats={"rounds": search.rounds}, note=search.note)
