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


@dataclass(frozen=True, slots=True)
class MipLimits:
    """What a run of a solver may use.

    Attributes:
        seconds: on the clock.
        gap: the run ends where a solution is within this share of the bound.
        threads: of the solver.
        seed: of the solver's random choices.
    """

    seconds: float
    gap: float = 0.0
    threads: int = 1
    seed: int = 0


@dataclass(frozen=True)
class MipOptions:
    """Options that these planners share; each planner's docstring describes them."""

    solver: SolverName = SolverName.AUTO
    time_limit: float = 60.0
    threads: int = 1
    seed: int = 0
    force: bool = False

    def __post_init__(self) -> None:
        check_least(self, time_limit=0, threads=1, seed=0)
