"""Options of `pofo`, as its search reads them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.option_checks import check_least


class StateRounding(StrEnum):
    """How memory states are rounded to slots."""

    UP = "up"  # as in the paper: the table never underestimates
    NEAREST = "nearest"  # errors even out over many layers; a plan may turn out not to fit
    BOTH = "both"

    @property
    def each(self) -> tuple[StateRounding, ...]:
        """The single ways that this one stands for."""
        return (StateRounding.UP, StateRounding.NEAREST) if self is StateRounding.BOTH else (self,)


@dataclass(frozen=True)
class PofoOptions:
    """Options of `pofo`.

    Attributes:
        cuts: single: where one tensor is handed on, as in the paper; several: also where several are, if the backward
            reads most of them anyway; every: after every op that hands on anything new.
        segments: how many layers the forward pass is cut into at most; of more, small neighbours are joined.
        memory_slots: into how many parts the memory is divided that the budget leaves to the layers.
        rounding: how the states that the dynamic program goes through are rounded to slots. up: as in the paper, never
            too little; nearest: closer where there are many layers, and plans that do not fit are dropped; both.
        candidates: how many amounts of memory each table is asked for; the plans are replayed on the graph, and the
            best that fits is kept.
        improve: try the plans of rotor as well, let any tensor go to the host where that helps, and leave out reruns
            where memory and link have room; not in the paper.
        time_limit: seconds; nothing further is tried after it.
    """

    cuts: Cuts = Cuts.EVERY
    segments: int = 50
    memory_slots: int = 50
    rounding: StateRounding = StateRounding.BOTH
    candidates: int = 16
    improve: bool = True
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        check_least(self, segments=2, memory_slots=1, candidates=0, time_limit=0)
