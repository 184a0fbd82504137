"""The cut bound: what recomputation costs at the least, with memory counted at those moments that matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from remat_cli.planners.retention.any_order_bound import Ancestry
from remat_cli.planners.retention.cover_bound import NO_BOUND, RerunBound
from remat_cli.planners.retention.cut_model import CutModel
from remat_cli.planners.retention.model import SETTINGS
from remat_cli.planners.shared.cp_model import CpModel
from remat_cli.planners.shared.cp_sat import Outcome, first_opinion, second_opinion
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Ints, Stages
from remat_cli.problem import Status

# Cuts of the first model, and how many the next one has more.
_FIRST_CUTS = 2
_MORE_CUTS = 2
# What the first solver may take of the time, and its counted work: more in larger graphs. The second solver may take as
# long.
_SHARE_OF_FIRST_SOLVER = 0.2
_WORK = 3.0
_USUAL_OPS = 300


@dataclass(frozen=True, eq=False)
class CutProof:
    """What a model of cuts proves, on one solver's word.

    Attributes:
        bound: the best; none where no model says more than is known.
        model: that it is of.
        outcome: of the solver on that model.
        seconds: that all models took.
    """

    bound: RerunBound = NO_BOUND
    model: CpModel | None = None
    outcome: Outcome | None = None
    seconds: float = 0.0

    def confirmed(self, limits: Limits) -> RerunBound:
        """Ask a second solver, which may take as long as the first one did, and return what is proven."""
        if self.model is None or self.outcome is None:
            return self.bound
        outcome = second_opinion(self.model, self.outcome, limits, self.seconds)
        return replace(self.bound, basis=outcome.basis)


def cut_bound(stages: Stages, room: int, limits: Limits, known: int = 0) -> CutProof:
    """Return a lower bound on the time that recomputation takes in any plan with this order of first runs.

    Args:
        stages: the graph in its order.
        room: bytes for what ops make: the budget without the fixed bytes.
        limits: of whoever asks, of which a part is taken; cut short, what the solver has proven holds.
        known: extra time that is proven otherwise.
    """
    moments = np.flatnonzero(stages.plain_bytes > room)
    return _Growth(stages, room, moments, CutModel.in_fixed_order).bound(stages.plain_bytes, limits, known)


def any_order_cut_bound(
    stages: Stages, room: int, limits: Limits, known: int = 0, tell: Callable[[RematSequence], None] | None = None
) -> CutProof:
    """Return a lower bound on the time that recomputation takes in any plan.

    The cuts are first runs of ops on the path of the any-order bound; of a graph too large for that there is none.

    Args:
        stages: the graph in the input order.
        room: as of `cut_bound`.
        limits: as of `cut_bound`.
        known: as of `cut_bound`.
        tell: is told of the best sequence of each model, which need not fit.
    """
    ancestry = Ancestry(stages, room)
    if not ancestry.is_small:
        return CutProof()
    moments = ancestry.path[ancestry.lacking[ancestry.path] > 0]
    return _Growth(stages, room, moments, CutModel.in_any_order).bound(ancestry.lacking, limits, known, tell)


def tightest_cuts(moments: Ints, lacking: Ints, count: int) -> Ints:
    """Return up to `count` of the moments: the one that lacks most memory in each part of them."""
    if len(moments) <= count:
        return moments
    return np.array([part[lacking[part].argmax()] for part in np.array_split(moments, count)])


@dataclass(frozen=True, eq=False)
class _Growth:
    """Models of more and more cuts: those are added at which the best solution of the last one takes too much memory.

    Attributes:
        stages: the graph.
        room: bytes for what ops make.
        moments: stages that may become cuts, in an order that is sure.
        model_at: makes the model of some of them.
    """

    stages: Stages
    room: int
    moments: Ints
    model_at: Callable[[Stages, int, Ints], CutModel]

    def bound(
        self, lacking: Ints, limits: Limits, known: int, tell: Callable[[RematSequence], None] | None = None
    ) -> CutProof:
        """Return the best of the models' proofs, until one takes more than what is left of the limits.

        Args:
            lacking: [N] a measure of how short of memory each stage is.
            limits: of which the models together take a part.
            known: extra time that is proven otherwise.
            tell: as of `any_order_cut_bound`.
        """
        began = monotonic()
        best, most = CutProof(), known
        cuts = tightest_cuts(self.moments, lacking, _FIRST_CUTS)
        part = limits.part(_SHARE_OF_FIRST_SOLVER, _WORK * max(1.0, len(self.stages) / _USUAL_OPS))
        while len(cuts) and not part.is_over:
            model = self.model_at(self.stages, self.room, cuts)
            built = model.build()
            outcome = first_opinion(built, part, SETTINGS)
            part.spend(outcome.work)
            extra = None if outcome.bound is None else outcome.bound - model.counted
            if outcome.status is Status.INFEASIBLE or (extra is not None and extra > most):
                best, most = CutProof(RerunBound(extra, outcome.basis), built, outcome), extra or most
            if outcome.values is None:
                break
            sequence = model.sequence(outcome.values)
            if tell is not None:
                tell(sequence)
            if outcome.status is not Status.OPTIMAL:
                break
            cuts = self._with_more(cuts, sequence)
        return replace(best, seconds=monotonic() - began)

    def _with_more(self, cuts: Ints, sequence: RematSequence) -> Ints:
        """Return the cuts and those moments between them that take most memory; none where all that remain fit."""
        exceeding = sequence.memory[~sequence.is_rerun] - self.stages.graph.fixed_bytes - self.room
        is_cut = np.isin(self.moments, cuts)
        parts = (part[~np.isin(part, cuts)] for part in np.split(self.moments, np.flatnonzero(is_cut)))
        worst = [part[exceeding[part].argmax()] for part in parts if len(part)]
        more = sorted((stage for stage in worst if exceeding[stage] > 0), key=lambda stage: -exceeding[stage])
        return self.moments[is_cut | np.isin(self.moments, more[:_MORE_CUTS])] if more else cuts[:0]
