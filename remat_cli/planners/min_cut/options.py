"""Options of `min_cut`, apart from the planner so that its search can know them."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.planners.shared.option_checks import check_least


@dataclass(frozen=True)
class SearchLimits:
    """Where a search stops. Under limits of work alone, the same search finds the same plan, whatever `jobs` is.

    Attributes:
        seconds: on the clock.
        work: how many runs of ops may be laid out, in millions; None: until it no longer pays.
        gap: a plan so near to the bound, as a share of the plain run's time, is good enough.
        seed: of the random choices.
        jobs: processes that search at the same time.
    """

    seconds: float
    work: float | None = None
    gap: float = 0.0
    seed: int = 0
    jobs: int = 1


@dataclass(frozen=True)
class MinCutOptions:
    """The planner's docstring describes them."""

    time_limit: float = 60.0
    work_limit: float | None = None
    gap: float = 0.0001
    seed: int = 0
    jobs: int = 1

    def __post_init__(self) -> None:
        check_least(self, time_limit=0, gap=0, seed=0, jobs=1)
        if self.work_limit is not None:
            check_least(self, work_limit=0)

    @property
    def limits(self) -> SearchLimits:
        """The options as limits of a search."""
        return SearchLimits(self.time_limit, self.work_limit, self.gap, self.seed, self.jobs)
