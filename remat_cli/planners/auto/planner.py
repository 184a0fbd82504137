"""The default planner: a portfolio under one time limit."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem
from remat_cli.planners.shared.option_checks import check_least


@dataclass(frozen=True)
class Auto:
    """Tries several planners, the quick ones first, and keeps the best plan.

    Source: ours; the planners are those of this list.
    Takes: any graph.
    Searches: what its planners do: keep_all, dtr, on small graphs shortest_path, min_cut, on training graphs rotor,
        then retention from the best of their plans, on other graphs annealing before or after that; where plans may
        offload, first offload, and on training graphs pofo.
    Proves: how much any plan must recompute, or that none fits (scope any-order); where plans may offload, what
        offload proves (scope any-plan).
    Complexity: that of its planners; it ends when the time is up, nothing is left to try, or more search does not pay.

    Attributes:
        time_limit: seconds for all planners together.
        work_limit: limit on the counted work of each turn of min_cut and of retention, one unit being about a second.
            All planners end by themselves, so any machine gives the same plan, with or without this limit, unless the
            time is up first.
        gap: distance to the bound at which the search ends, as a share of the plain run's time.
        patience: end the search when this multiple of the work until the last gain has brought no further gain; 0: it
            goes on.
        cores: processes of min_cut; 0: all. Their number does not change the plan, unless the time is up first.
        seed: seed of the random choices.
    """

    time_limit: float = 30.0
    work_limit: float | None = None
    gap: float = 0.0005
    patience: float = 1.0
    cores: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, time_limit=0, work_limit=0, gap=0, patience=0, cores=0, seed=0)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`."""
        # This import needs numpy and ortools; reading the options must not.
        from remat_cli.planners.auto.portfolio import Portfolio
        from remat_cli.planners.shared.limits import Limits

        limits = Limits.of(self.time_limit, cores=self.cores, seed=self.seed, observe=observe)
        return Portfolio(problem, observe, limits, self.gap, self.patience, self.work_limit).run()
