"""Options of `rotor`."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.option_checks import check_least


@dataclass(frozen=True)
class RotorOptions:
    """Options of `rotor`.

    Attributes:
        cuts: single: where one tensor is passed on, as in the paper; several: also where several are, if the backward
            reads most of them anyway; every: after every op that passes on a new tensor.
        segments: largest number of layers of the forward pass; beyond it, small neighbours are joined.
        slots: number of parts of the plain run's memory; sizes are rounded up to whole slots.
        candidates: number of amounts of memory to plan the chain for; each plan is measured on the graph, which often
            takes less memory than the chain predicts.
        improve: drop reruns if the budget has room to keep the tensors instead; not in the paper.
        time_limit: seconds; no further candidate is begun after it.
    """

    cuts: Cuts = Cuts.EVERY
    segments: int = 150
    slots: int = 500
    candidates: int = 100
    improve: bool = True
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        check_least(self, segments=2, slots=1, candidates=0, time_limit=0)
