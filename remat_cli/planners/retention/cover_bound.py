"""Bounds on recomputation; and the knapsack-cover bound, of plans with a fixed order of first runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from remat_cli.core.problem import Basis, Status
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Bools, Ints
from remat_cli.planners.shared.stages import Stages

if TYPE_CHECKING:
    from remat_cli.planners.shared.cp_model import CpModel
    from remat_cli.planners.shared.cp_sat import SolverOutcome


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
    def of(cls, outcome: SolverOutcome) -> RerunBound:
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


def cover_bound(stages: Stages, room: int, limits: Limits) -> RerunBound:
    """Return a lower bound on the time that recomputation takes in any plan with this order of first runs.

    A tensor that is read before a stage and after it, and is not in memory while that stage's op runs for the first
    time, was recomputed in between. So the cheapest set of gaps between reads that covers what every stage lacks bounds
    the overhead from below, whatever else is recomputed, in whichever order.

    Args:
        stages: the graph in its order.
        room: bytes for what ops make: the budget without the fixed bytes.
        limits: of the search for the cheapest cover; cut short, its own bound holds.
    """
    tensor, end = stages.read_tensor, stages.read_stage
    start = np.where(np.diff(tensor, prepend=-1) > 0, stages.made_at[tensor], np.roll(end, 1))
    # If a gap starts at an op that can take over the tensor's storage, the tensor can be gone while that op runs.
    takes_over = np.append(stages.shared_input, -1)[start] == tensor
    shared = np.where(takes_over, np.append(stages.shared_bytes, 0)[start], 0)
    return cheapest_cover(stages, CoverGaps(tensor, start + 1, end, shared), stages.plain_bytes - room, limits)


@dataclass(frozen=True, eq=False)
class CoverGaps:
    """Ranges of rows in each of which a tensor may be absent, at the price of one recomputation.

    Attributes:
        tensor: [G] of each gap.
        first: [G] the first row in which the tensor can be absent.
        end: [G] the row before which it is back in memory.
        shared: [G] bytes saved in the row before the first, if the op of that row takes over the storage; else 0.
    """

    tensor: Ints
    first: Ints
    end: Ints
    shared: Ints

    def of(self, kept: Bools) -> CoverGaps:
        """Return some of the gaps."""
        return CoverGaps(self.tensor[kept], self.first[kept], self.end[kept], self.shared[kept])


def cheapest_cover(stages: Stages, gaps: CoverGaps, lacking: Ints, limits: Limits, known: int = 0) -> RerunBound:
    """Return a lower bound on the time of gaps that together save the bytes that each row lacks.

    If all gaps together do not save enough, no plan fits.

    Args:
        stages: the graph; only its tensors and their makers matter here.
        gaps: what can be chosen.
        lacking: [rows] bytes.
        limits: of the search.
        known: a bound on the extra time that is proven already.
    """
    is_tight = lacking > 0
    if not is_tight.any():
        return NO_BOUND
    from remat_cli.planners.shared.cp_sat import prove  # loads the solver

    tight = np.concatenate([[0], np.cumsum(is_tight)])
    first = np.where(gaps.shared > 0, gaps.first - 1, gaps.first)
    end = np.maximum(gaps.end, gaps.first)
    gaps = gaps.of(stages.recomputable[stages.made_at[gaps.tensor]] & (tight[end] > tight[np.minimum(first, end)]))
    return RerunBound.of(prove(_cover_model(stages, gaps, lacking), limits, known=known))


def _cover_model(stages: Stages, gaps: CoverGaps, lacking: Ints) -> CpModel:
    from remat_cli.planners.retention.model import Terms, add_rows
    from remat_cli.planners.shared.cp_model import CpModel
    from remat_cli.planners.shared.cp_sat import add_choices, minimise

    model = CpModel()
    add_choices(model, len(gaps.tensor))
    savings = Terms.over(gaps.first, gaps.end, np.arange(len(gaps.tensor)), -stages.bytes[gaps.tensor])
    taken = np.flatnonzero(gaps.shared)
    savings = savings.and_also(gaps.first[taken] - 1, taken, -gaps.shared[taken]).of_rows(lacking > 0)
    add_rows(model, savings, lacking, 0)
    maker = stages.made_at[gaps.tensor]
    # One run serves all outputs of an op, so each is charged its share.
    outputs = np.diff(stages.outputs.start)[maker]
    minimise(model, stages.time[maker] // np.maximum(outputs, 1))
    return model
