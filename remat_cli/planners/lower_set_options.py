"""Options that the lower-set planners share."""

from __future__ import annotations

from enum import StrEnum


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
