"""The cut bound: the least time of recomputation, with memory counted at the moments that matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from remat_cli.core.problem import Status
from remat_cli.planners.retention.any_order_bound import Ancestry
from remat_cli.planners.retention.cover_bound import NO_BOUND, RerunBound
from remat_cli.planners.retention.cut_model import CutModel
from remat_cli.planners.retention.model import SETTINGS
from remat_cli.planners.retention.options import SHARE_OF_TURN, WORK_OF_TURN
from remat_cli.planners.shared.cp_model import CpModel
from remat_cli.planners.shared.cp_sat import SolverOutcome, first_opinion, limit_cost, second_opinion
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Ints
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Stages

# Counted work grows with the graph, from this size on.
_USUAL_OPS = 300


@dataclass(frozen=True, eq=False)
class CutProof:
    """What a model of cuts proves, on one solver's word.

    Attributes:
        bound: the best; NO_BOUND if no model improves on what is known.
        model: the one that proves it.
        outcome: of the solver on that model.
        seconds: that all models took.
    """

    bound: RerunBound = NO_BOUND
    model: CpModel | None = None
    outcome: SolverOutcome | None = None
    seconds: float = 0.0

    def confirmed(self, limits: Limits) -> RerunBound:
        """Ask a second solver to confirm, in as much time as the first one took; return what is proven."""
        if self.model is None or self.outcome is None:
            return self.bound
        outcome = second_opinion(self.model, self.outcome, limits, self.seconds)
        return replace(self.bound, basis=outcome.basis)


class CutSearch:
    """Models of more and more cuts: the next one is where the best solution of the last model takes too much memory.

    One cut more at a time: models grow no larger than they must, and each bound says where the next cut matters. Of
    ResNet-50 in 60 %, three cuts say as much as five that were added two by two, in an eighth of the time.

    Attributes:
        proof: the best so far.
    """

    def __init__(
        self, stages: Stages, room: int, moments: Ints, lacking: Ints, model_at: Callable[[Stages, int, Ints], CutModel]
    ) -> None:
        """Begin with the moment that lacks most memory.

        Args:
            stages: the graph.
            room: bytes for what ops make: the budget without the fixed bytes.
            moments: stages that may become cuts, in a certain order.
            lacking: [N] a measure of how short of memory each stage is.
            model_at: makes the model of some of the moments.
        """
        self.proof = CutProof()
        self._stages = stages
        self._room = room
        self._moments = moments
        self._model_at = model_at
        self._cuts = moments[[lacking[moments].argmax()]] if len(moments) else moments

    @classmethod
    def in_fixed_order(cls, stages: Stages, room: int) -> CutSearch:
        """Return the search for a bound on plans whose ops run for the first time in the order of the stages."""
        moments = np.flatnonzero(stages.plain_bytes > room)
        return cls(stages, room, moments, stages.plain_bytes, CutModel.in_fixed_order)

    @classmethod
    def in_any_order(cls, stages: Stages, room: int) -> CutSearch:
        """Return the search for a bound on all plans.

        The cuts are first runs of ops on the path of the any-order bound; in a graph too large for that there is none.

        Args:
            stages: the graph in the input order.
            room: bytes for what ops make.
        """
        ancestry = Ancestry(stages, room)
        if not ancestry.is_small:
            none = np.zeros(0, dtype=np.int64)
            return cls(stages, room, none, none, CutModel.in_any_order)
        moments = ancestry.path[ancestry.lacking[ancestry.path] > 0]
        return cls(stages, room, moments, ancestry.lacking, CutModel.in_any_order)

    @property
    def has_ended(self) -> bool:
        """Whether another turn would bring nothing."""
        return not len(self._cuts)

    def turn(
        self,
        limits: Limits,
        known: int = 0,
        best: int | None = None,
        tell: Callable[[RematSequence], None] | None = None,
        *,
        share: float = SHARE_OF_TURN,
        work: float = WORK_OF_TURN,
        takes_any_plan: bool = False,
    ) -> CutProof:
        """Solve one model after the other, until one takes more than its part of the limits; return the best proof.

        The next turn begins with that model.

        Args:
            limits: of the caller; if they cut the solver short, what it has proven holds.
            known: a bound on the extra time that is proven already.
            best: extra time of a plan: solutions that take more are left out, which often speeds up the proof.
            tell: is told of the best sequence of each model, which need not fit.
            share: of the time, for this turn.
            work: of the solver, for this turn, on a graph of usual size.
            takes_any_plan: only whether there are plans is asked, so that each model ends at its first solution.
        """
        began, earlier = monotonic(), self.proof.seconds
        part = limits.part(share, work * max(1.0, len(self._stages) / _USUAL_OPS))
        most = max(known, self.proof.bound.extra or 0)
        while len(self._cuts) and not part.is_over:
            model = self._model_at(self._stages, self._room, self._cuts)
            built = model.build(has_objective=not takes_any_plan)
            if best is not None:
                limit_cost(built, best + model.counted)
            outcome = first_opinion(built, part, SETTINGS)
            part.spend(outcome.work)
            extra = None if outcome.bound is None else outcome.bound - model.counted
            if outcome.status is Status.INFEASIBLE or (extra is not None and extra > most):
                self.proof, most = CutProof(RerunBound(extra, outcome.basis), built, outcome), extra or most
            sequence = None if outcome.values is None else model.sequence(outcome.values)
            if sequence is not None and tell is not None:
                tell(sequence)
            if outcome.status is Status.OPTIMAL and sequence is not None:
                self._cuts = self._with_one_more(sequence)
            elif outcome.status is Status.INFEASIBLE:
                self._cuts = self._cuts[:0]
            else:
                break
        self.proof = replace(self.proof, seconds=earlier + monotonic() - began)
        return self.proof

    def _with_one_more(self, sequence: RematSequence) -> Ints:
        """Return the cuts and the moment at which a sequence takes most memory; no cuts if all other moments fit."""
        exceeding = sequence.memory[~sequence.is_rerun] - self._stages.graph.fixed_bytes - self._room
        others = self._moments[~np.isin(self._moments, self._cuts)]
        if not len(others) or exceeding[others].max() <= 0:
            return self._cuts[:0]
        return self._moments[np.isin(self._moments, [*self._cuts, others[exceeding[others].argmax()]])]
