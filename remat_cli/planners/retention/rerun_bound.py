"""What a bound says: how much recomputation takes at the least, and what that rests on."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.planners.shared.cp_sat import Outcome
from remat_cli.problem import Basis, Status


@dataclass(frozen=True, slots=True)
class RerunBound:
    """A lower bound on the time that recomputation takes in all plans of a scope.

    Attributes:
        extra: time; None where no plan in scope fits.
        basis: what it rests on.
    """

    extra: int | None
    basis: Basis = Basis.COUNTED

    @classmethod
    def of(cls, outcome: Outcome) -> RerunBound:
        """Return what a model proves whose objective is the time of reruns."""
        if outcome.status is Status.INFEASIBLE:
            return cls(None, outcome.basis)
        return cls(max(0, outcome.bound or 0), outcome.basis)

    def stronger(self, other: RerunBound) -> RerunBound:
        """Return the one of two bounds that says more."""
        if self.extra is None or other.extra is None:
            return self if self.extra is None else other
        return self if self.extra >= other.extra else other


NO_BOUND = RerunBound(0)
