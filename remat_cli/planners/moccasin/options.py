"""Options of `moccasin`; light, as they are read without solving anything."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.errors import UsageError
from remat_cli.planners.shared.option_checks import check_least


class Order(StrEnum):
    """When ops may run for the first time."""

    INPUT = "input"  # in the graph's order
    FREE = "free"  # whenever their inputs are there


class Precedence(StrEnum):
    """How it is said that an op's inputs are in memory while it runs (equation 5)."""

    LITERALS = "literals"  # a choice of the interval that each run reads from
    RESERVOIR = "reservoir"  # the reservoir constraints of section 2.2


@dataclass(frozen=True)
class MoccasinOptions:
    """The planner's docstring describes them."""

    order: Order = Order.INPUT
    staged: bool = True
    max_retentions: int = 2
    phases: int = 2
    precedence: Precedence = Precedence.LITERALS
    time_limit: float = 60.0
    work_limit: float | None = None
    workers: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, max_retentions=1, phases=1, time_limit=0, workers=0, seed=0)
        if self.phases > 2:
            raise UsageError(f"phases is {self.phases}", hint="give 2, or 1 to leave out the first")
        if self.work_limit is not None and self.work_limit < 0:
            raise UsageError(f"work_limit is {self.work_limit}", hint="give 0 or more")
