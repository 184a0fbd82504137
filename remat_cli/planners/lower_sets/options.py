"""Options of the lower-set planners, as their searches read them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.planners.shared.option_checks import check_least


class Strategy(StrEnum):
    """Which end of the Pareto front is the answer (Kusumoto et al. 2019, section 4.4)."""

    TIME = "time"  # TC: the least overhead
    MEMORY = "memory"  # MC: the most overhead, which leaves liveness the most to free
    BOTH = "both"  # each in turn; the simulated plan of least time is kept

    @property
    def ends(self) -> tuple[Strategy, ...]:
        """The single strategies that this one stands for."""
        return (Strategy.TIME, Strategy.MEMORY) if self is Strategy.BOTH else (self,)


class BudgetModel(StrEnum):
    """What the DP's budget B is."""

    SIMULATED = "simulated"  # searched, so that the simulated peak fits the user's budget
    PAPER = "paper"  # the user's budget less the resident bytes and graph inputs, taken literally


@dataclass(frozen=True)
class DPOptions:
    """Options of the planners that run the dynamic program.

    Attributes:
        strategy: time: the least overhead; memory: the most, which leaves liveness the most to free; both: each in
            turn, and the simulated plan of least time is kept.
        budget_model: simulated: B is searched so that the simulated peak fits; paper: the budget is B of equation 2.
        liveness: free each tensor right after its last use; false: only at the end of the block that it is in.
        time_slots: times are scaled to about this sum in the DP; they stay exact if their sum is no more.
        candidates: how many values of B are tried.
        moves: how many plans local search may try to improve the best of them (blocks merged, split, cuts moved); ten
            times as many while none fits; not in the paper, and not in its budget model.
        time_limit: seconds; after it, no further value of B or move is begun.
    """

    strategy: Strategy = Strategy.BOTH
    budget_model: BudgetModel = BudgetModel.SIMULATED
    liveness: bool = True
    time_slots: int = 1500
    candidates: int = 16
    moves: int = 200
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        check_least(self, time_slots=1, candidates=0, moves=0, time_limit=0)
