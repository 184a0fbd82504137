"""Options of `pofo`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.option_checks import check_least


class StateRounding(StrEnum):
    """The rounding of memory states to slots."""

    UP = "up"  # as in the paper: the table never underestimates
    NEAREST = "nearest"  # errors even out over many layers, but a plan may turn out not to fit
    BOTH = "both"

    @property
    def each(self) -> tuple[StateRounding, ...]:
        """The single roundings to use."""
        return (StateRounding.UP, StateRounding.NEAREST) if self is StateRounding.BOTH else (self,)


@dataclass(frozen=True)
class PofoOptions:
    """Options of `pofo`.

    Attributes:
        cuts: single: where one tensor is passed on, as in the paper; several: also where several are, if the backward
            reads most of them anyway; every: after every op that passes on a new tensor.
        segments: largest number of layers of the forward pass; beyond it, small neighbours are joined.
        memory_slots: number of parts of the memory that the budget leaves to the layers.
        rounding: rounding of the dynamic program's states to slots. up: as in the paper, never too little; nearest:
            closer for many layers, and plans that do not fit are dropped; both.
        candidates: number of amounts of memory to ask each table for; the plans are replayed on the graph, and the best
            that fits is kept.
        improve: try the plans of rotor, too, let any tensor go to the host if that helps, and drop reruns that memory
            and link can do without; not in the paper.
        time_limit: limit in seconds.
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
