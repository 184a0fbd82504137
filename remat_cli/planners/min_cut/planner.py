"""The planner for graphs of any size: minimum cuts and neighbourhood search."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem, Scope
from remat_cli.planners.shared.option_checks import check_least

_MILLION = 1_000_000


@dataclass(frozen=True)
class MinCut:
    """Keeps or recomputes tensors by minimum cuts, then searches large neighbourhoods.

    Where memory is shortest, a price for each byte kept makes the choice between keeping and recomputing a minimum cut;
    the price is raised until the kept tensors fit. This is repeated until the whole plan fits. Moves of the search drop
    part of the reruns, and fit the plan again at other prices.

    Source: ours. Cuts also choose the saved tensors of PyTorch's AOTAutograd (He 2022); neighbourhoods: Shaw 1998.
    Takes: any graph; 100,000 ops take seconds.
    Searches: plans whose ops run for the first time in the input order.
    Proves: a bound on the time of any of them: the cut at a moment, relaxed over all prices (Lagrangian).
    Complexity: near linear for each cut; an ample budget needs one, a tight one as many as recomputation is deep, or
        more.

    Attributes:
        time_limit: limit on the search, in seconds.
        work_limit: limit on the runs of ops laid out, in millions; without a limit the search ends when it no longer
            pays.
        gap: distance to the bound at which the search ends, as a share of the plain run's time.
        cores: number of parallel processes; 0: all. Their number does not change the plan.
        seed: seed of the random choices.
    """

    time_limit: float = 60.0
    work_limit: float | None = None
    gap: float = 0.0001
    cores: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, time_limit=0, work_limit=0, gap=0, cores=0, seed=0)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`."""
        # This import needs numpy; reading the options must not.
        from remat_cli.planners.min_cut.search import MinCutSearch
        from remat_cli.planners.shared.incumbent import Incumbent
        from remat_cli.planners.shared.limits import Limits
        from remat_cli.planners.shared.sequence import RematSequence

        incumbent = Incumbent(problem, observe, Scope.FIXED_ORDER)
        work = None if self.work_limit is None else self.work_limit * _MILLION
        limits = Limits.of(self.time_limit, work, cores=self.cores, seed=self.seed, observe=observe)
        search = MinCutSearch(incumbent, limits, self.gap)
        if not incumbent.fits(incumbent.offer(RematSequence.plain(problem.graph))):
            search.run()
        return incumbent.result(stats={"rounds": search.rounds})
