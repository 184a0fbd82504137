"""Options of POFO."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.planners.shared.chain.options import Cuts
from remat_cli.planners.shared.option_checks import check_least


class Rounding(StrEnum):
    """How memory states are rounded to slots."""

    UP = "up"  # as in the paper: what the table says is never too little
    NEAREST = "nearest"  # errors even out over many layers; a plan may turn out not to fit
    BOTH = "both"

    @property
    def each(self) -> tuple[Rounding, ...]:
        """The single ways that this one stands for."""
        return (Rounding.UP, Rounding.NEAREST) if self is Rounding.BOTH else (self,)


@dataclass(frozen=True)
class PofoOptions:
    """Options of `pofo`, whose docstring describes them."""

    cuts: Cuts = Cuts.EVERY
    segments: int = 50
    memory_slots: int = 50
    rounding: Rounding = Rounding.BOTH
    candidates: int = 16
    improve: bool = True
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        check_least(self, segments=2, memory_slots=1, candidates=0, time_limit=0)
