"""The planner that recomputes and offloads, on graphs of any shape."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem, Scope
from remat_cli.planners.shared.option_checks import check_least


@dataclass(frozen=True)
class Offloading:
    """Keeps, recomputes or offloads tensors by minimum cuts and search.

    Needs the bandwidth of the link to the host. Where memory is shortest, a byte on the device has one price and a byte
    that passes the link another: the best choice at such prices is a minimum cut. The best prices give a bound. The
    search starts from the tensors that go to the host at prices near them; ops are recomputed until the rest fits.
    Moves change which tensors may go, where the device waits, and which ops are recomputed. The time of every plan is
    that of its replay.

    Source: ours; the bound's proof stands in `link_bound.py`. Neighbourhoods: Shaw 1998.
    Takes: any graph; 100,000 ops take minutes.
    Searches: plans whose ops run for the first time in the input order, with any transfers of whole tensors.
    Proves: the least time that any plan loses by reruns and waiting, in any order and with any transfers (scope
        any-plan): the cut at a moment, relaxed over all prices (Lagrangian).
    Complexity: some tens of maximum flows for the bound, a few for each move.

    Attributes:
        time_limit: limit on the search, in seconds.
        work_limit: limit on the moves of the search; without a limit the search ends when it no longer pays.
        gap: distance to the bound at which the search ends, as a share of the plain run's time.
        seed: seed of the random choices.
    """

    time_limit: float = 60.0
    work_limit: float | None = None
    gap: float = 0.0005
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, time_limit=0, work_limit=0, gap=0, seed=0)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the link's bandwidth is unknown.
        """
        # This import needs numpy and ortools; reading the options must not.
        from remat_cli.planners.offload.search import OffloadSearch
        from remat_cli.planners.shared.incumbent import Incumbent
        from remat_cli.planners.shared.limits import Limits

        incumbent = Incumbent(problem, observe, Scope.ANY_PLAN)
        limits = Limits.of(self.time_limit, seed=self.seed, observe=observe)
        search = OffloadSearch(incumbent, limits, self.gap, self.work_limit)
        search.run()
        return incumbent.result(stats={"moves": search.moves})
