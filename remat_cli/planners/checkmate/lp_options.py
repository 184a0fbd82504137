"""Options of `checkmate_lp`; light, as they are read without solving anything."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.errors import UsageError
from remat_cli.planners.checkmate.mip_options import MipOptions
from remat_cli.planners.shared.option_checks import check_least


class Rounding(StrEnum):
    """How retentions by halves become whole ones."""

    DETERMINISTIC = "deterministic"  # held where at least a threshold: 0.1, 0.2, ..., 0.9 in turn
    THRESHOLD = "threshold"  # held where at least half
    RANDOM_THRESHOLD = "random_threshold"  # held where at least a threshold drawn around 0.5
    RANDOMISED = "randomised"  # each held with its own probability


@dataclass(frozen=True)
class RoundingOptions(MipOptions):
    """How the relaxation is rounded; the planner's docstring describes it."""

    rounding: Rounding = Rounding.DETERMINISTIC
    samples: int = 20
    allowance: float = 0.1
    repairs: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, samples=1, repairs=0)
        if not 0 <= self.allowance < 1:
            raise UsageError(f"allowance is {self.allowance}", hint="give a share from 0 to less than 1")
