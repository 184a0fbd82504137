"""Options of the lower-set planners."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.planners.shared.option_checks import check_least


class Strategy(StrEnum):
    """The end of the Pareto front to answer with.

    Kusumoto et al. 2019, section 4.4.
    """

    TIME = "time"  # TC: the least overhead
    MEMORY = "memory"  # MC: the most overhead, so that liveness can free the most
    BOTH = "both"  # both in turn; the simulated plan of least time is kept

    @property
    def ends(self) -> tuple[Strategy, ...]:
        """The single strategies to try."""
        return (Strategy.TIME, Strategy.MEMORY) if self is Strategy.BOTH else (self,)


class BudgetModel(StrEnum):
    """The meaning of the DP's budget B."""

    SIMULATED = "simulated"  # searched, so that the simulated peak fits the user's budget
    PAPER = "paper"  # the user's budget less the resident bytes and graph inputs, taken literally


@dataclass(frozen=True)
class DPOptions:
    """Options of the planners that run the dynamic program.

    Attributes:
        strategy: time: the least overhead; memory: the most overhead, so that liveness can free the most; both: each in
            turn, and the simulated plan of least time is kept.
        budget_model: simulated: B is searched so that the simulated peak fits; paper: the budget is B of equation 2.
        liveness: free each tensor right after its last use; false: only at the end of its block.
        time_slots: times are scaled to about this sum in the DP; they stay exact if their sum is no more.
        candidates: number of values of B to try.
        moves: number of plans that local search may try to improve the best plan (blocks merged, split, cuts moved);
            ten times as many while none fits; not in the paper, and not in its budget model.
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
