"""Options of the planners of chains."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.planners.shared.option_checks import check_least


class Cuts(StrEnum):
    """Where a training graph may be cut into the layers of a chain."""

    SINGLE = "single"  # where a single tensor is handed on, as the papers have it
    SEVERAL = "several"  # also where several are, if the backward reads most of them anyway
    EVERY = "every"  # after every op that hands on anything new


@dataclass(frozen=True)
class RotorOptions:
    """Options of `rotor`, whose docstring describes them."""

    cuts: Cuts = Cuts.EVERY
    segments: int = 150
    slots: int = 500
    candidates: int = 100
    improve: bool = True
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        check_least(self, segments=2, slots=1, candidates=0, time_limit=0)
