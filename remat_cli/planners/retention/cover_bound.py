"""The knapsack-cover bound on recomputation in a fixed order."""

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
    """A lower bound on the recomputation time of all plans in a scope.

    Attributes:
        extra: time of recomputation; None if no plan in scope fits.
        basis: the evidence for the bound.
    """

    extra: int | None
    basis: Basis = Basis.COUNTED

    @classmethod
    def of(cls, outcome: SolverOutcome) -> RerunBound:
        """Return the bound proven by a model that minimises the time of reruns."""
        if outcome.status is Status.INFEASIBLE:
            return cls(None, outcome.basis)
        return cls(max(0, outcome.bound or 0), outcome.basis)

    def stronger(self, other: RerunBound) -> RerunBound:
        """Return the stronger of two bounds."""
        if self.extra is None or other.extra is None:
            return self if self.extra is None else other
        return self if self.extra >= other.extra else other


NO_BOUND = RerunBound(0)


def cover_bound(stages: Stages, room: int, limits: Limits) -> RerunBound:
    """Return a lower bound on the recomputation of plans in a fixed order.

    A tensor that is read before a stage and after it, and is not in memory while that stage's op runs for the first
    time, was recomputed in between. So the cheapest set of gaps that covers the missing bytes of every stage is a lower
    bound on the overhead, whatever else is recomputed.

    The order is that of first runs.

    Args:
        stages: the graph in its order.
        room: bytes for outputs of ops: the budget without the fixed bytes.
        limits: limits of the search for the cheapest cover; if they end it, the bound proven so far holds.
    """
    tensor, end = stages.read_tensor, stages.read_stage
    start = np.where(np.diff(tensor, prepend=-1) > 0, stages.produced_at[tensor], np.roll(end, 1))
    # In a gap that starts at an op that can take over the tensor's storage, the tensor can be gone while that op runs.
    takes_over = np.append(stages.shared_input, -1)[start] == tensor
    shared = np.where(takes_over, np.append(stages.shared_bytes, 0)[start], 0)
    return cheapest_cover(stages, CoverGaps(tensor, start + 1, end, shared), stages.plain_bytes - room, limits)


@dataclass(frozen=True, eq=False)
class CoverGaps:
    """Ranges of rows in which a tensor may be absent.

    Each costs one recomputation.

    Attributes:
        tensor: [G] tensor of each gap.
        first: [G] the first row in which the tensor can be absent.
        end: [G] the row before which it is back in memory.
        shared: [G] bytes saved in the row before the first, if the op of that row takes over the storage; else 0.
    """

    tensor: Ints
    first: Ints
    end: Ints
    shared: Ints

    def of(self, kept: Bools) -> CoverGaps:
        """Return the gaps that `kept` selects."""
        return CoverGaps(self.tensor[kept], self.first[kept], self.end[kept], self.shared[kept])


def cheapest_cover(stages: Stages, gaps: CoverGaps, lacking: Ints, limits: Limits, known: int = 0) -> RerunBound:
    """Return a lower bound on the time to save the missing bytes of each row.

    A gap saves its tensor's bytes at the price of a recomputation. If all gaps together do not save enough, no plan
    fits.

    Args:
        stages: the graph; only its tensors and their producers matter here.
        gaps: the gaps to choose from.
        lacking: [rows] missing bytes.
        limits: limits of the search.
        known: a proven bound on the extra time.
    """
    is_tight = lacking > 0
    if not is_tight.any():
        return NO_BOUND
    from remat_cli.planners.shared.cp_sat import prove  # imported late: it loads the solver

    tight = np.concatenate([[0], np.cumsum(is_tight)])
    first = np.where(gaps.shared > 0, gaps.first - 1, gaps.first)
    end = np.maximum(gaps.end, gaps.first)
    gaps = gaps.of(stages.recomputable[stages.produced_at[gaps.tensor]] & (tight[end] > tight[np.minimum(first, end)]))
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
    maker = stages.produced_at[gaps.tensor]
    # One run serves all outputs of an op, so each output is charged its share.
    outputs = np.diff(stages.outputs.start)[maker]
    minimise(model, stages.time[maker] // np.maximum(outputs, 1))
    return model
