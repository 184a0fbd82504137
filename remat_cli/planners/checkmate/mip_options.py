"""Options of the planners that solve integer programs; light, as they are read without solving anything."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.planners.shared.option_checks import check_least


class SolverName(StrEnum):
    """Who solves."""

    AUTO = "auto"  # HiGHS where it is installed, else CBC
    HIGHS = "highs"
    CBC = "cbc"


@dataclass(frozen=True)
class MipOptions:
    """Options that these planners share; each planner's docstring describes them."""

    solver: SolverName = SolverName.AUTO
    time_limit: float = 60.0
    cores: int = 1
    seed: int = 0
    force: bool = False

    def __post_init__(self) -> None:
        check_least(self, time_limit=0, cores=0, seed=0)
