"""Options of `moccasin`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.errors import UsageError
from remat_cli.planners.shared.option_checks import check_least


class FirstRuns(StrEnum):
    """The order of ops' first runs."""

    INPUT = "input"  # in the graph's order
    FREE = "free"  # any order in which inputs are in memory


@dataclass(frozen=True)
class MoccasinOptions:
    """Options of `moccasin`.

    Attributes:
        order: input: ops run for the first time in the graph's order; free: in any order that the slots allow.
        staged: each op has one slot in each stage (section 2.3); false: any op may run at any event (section 2.1), for
            small graphs.
        max_retentions: largest number of runs of an op, including the first (C_v).
        phases: 2: first lower the peak until a plan fits, then the time (section 2.4); 1: lower only the time.
        time_limit: limit in seconds.
        work_limit: limit on the solver's counted work instead of seconds, so that every machine gives the same result.
        cores: threads of the solver; 0: all.
        seed: seed of the solver's random choices.
    """

    order: FirstRuns = FirstRuns.INPUT
    staged: bool = True
    max_retentions: int = 2
    phases: int = 2
    time_limit: float = 60.0
    work_limit: float | None = None
    cores: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, max_retentions=1, phases=1, time_limit=0, work_limit=0, cores=0, seed=0)
        if self.phases > 2:
            raise UsageError(f"phases is {self.phases}", hint="give 2, or 1 to leave out the first")
