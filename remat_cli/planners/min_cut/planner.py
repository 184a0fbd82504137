"""First plans by minimum cuts and large neighbourhood search, for graphs of any size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from remat_cli.planners.min_cut.options import MinCutOptions
from remat_cli.problem import Observer, PlanResult, Problem, Scope, Status
from remat_cli.schedule import plain_run


@dataclass(frozen=True)
class MinCut(MinCutOptions):
    """Decides by minimum cuts what is kept where memory is short, and improves that by large neighbourhood search.

    Where memory is shortest, a price for each byte that is kept makes the choice between keeping tensors and running
    ops again a minimum cut; the price is raised until what is kept fits. That is repeated until all fits. Moves of the
    search drop part of the reruns, and fill up again at other prices.

    Source: ours. Cuts choose what is saved in PyTorch's AOTAutograd too (He 2022); neighbourhoods: Shaw 1998.
    Takes: any graph; 100,000 ops take seconds.
    Searches: plans whose ops run for the first time in the input order.
    Proves: a bound on the time of any of them: the cut at a moment, relaxed over all prices (Lagrangian).
    Complexity: near linear for each cut; an ample budget needs one, a tight one as many as recomputation is deep, or
        more.

    Attributes:
        time_limit: seconds.
        work_limit: runs of ops that may be laid out, in millions; without one the search ends when it no longer pays.
        gap: a plan so near to the bound, as a share of the plain run's time, is good enough.
        seed: of random choices.
        jobs: processes that search at the same time; how many there are makes no difference to what is found.
    """

    starved: ClassVar[Mapping[str, object]] = {"time_limit": 0.0}

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`."""
        # numpy comes with it; the options must be readable without it.
        from remat_cli.planners.min_cut.search import Search

        search = Search(problem, self.limits, observe)
        if search.plain_fits:
            total = problem.graph.total_time
            return PlanResult(Status.OPTIMAL, Scope.ANY_ORDER, schedule=plain_run(problem.graph), time_bound=total)
        if not self.limits.seconds:
            return PlanResult(Status.UNKNOWN, reason="no time is allowed")
        search.run()
        return search.result()
