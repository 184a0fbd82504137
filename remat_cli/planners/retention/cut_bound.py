"""The cut bound: the least recomputation by memory at a few moments."""

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

# Counted work grows with the graph above this number of ops.
_USUAL_OPS = 300


@dataclass(frozen=True, eq=False)
class CutProof:
    """The proof of a cut model, on one solver's word.

    Attributes:
        bound: the best bound; NO_BOUND if no model improves on the known one.
        model: the one that proves it.
        outcome: result of the solver on that model.
        seconds: time that all models took.
    """

    bound: RerunBound = NO_BOUND
    model: CpModel | None = None
    outcome: SolverOutcome | None = None
    seconds: float = 0.0

    def confirmed(self, limits: Limits) -> RerunBound:
        """Ask a second solver to confirm the bound.

        It has as much time as the first one took. The result says which evidence the bound has.
        """
        if self.model is None or self.outcome is None:
            return self.bound
        outcome = second_opinion(self.model, self.outcome, limits, self.seconds)
        return replace(self.bound, basis=outcome.basis)


class CutSearch:
    """A search that adds one cut at a time to a model.

    The next cut is the moment at which the best solution of the last model takes too much memory, so models stay small.
    For ResNet-50 at 60 %, three cuts prove as much as five added in pairs, in an eighth of the time.

    Attributes:
        proof: the best proof so far.
    """

    def __init__(
        self, stages: Stages, room: int, moments: Ints, lacking: Ints, model_at: Callable[[Stages, int, Ints], CutModel]
    ) -> None:
        """Begin with the moment that lacks most memory.

        Args:
            stages: the graph.
            room: bytes for outputs of ops: the budget without the fixed bytes.
            moments: stages that may become cuts, in a certain order.
            lacking: [N] a measure of how short of memory each stage is.
            model_at: builds the model of some of the moments.
        """
        self.proof = CutProof()
        self._stages = stages
        self._room = room
        self._moments = moments
        self._model_at = model_at
        self._cuts = moments[[lacking[moments].argmax()]] if len(moments) else moments

    @classmethod
    def in_fixed_order(cls, stages: Stages, room: int) -> CutSearch:
        """Return the search for plans in the order of the stages.

        That is the order of their first runs.
        """
        moments = np.flatnonzero(stages.plain_bytes > room)
        return cls(stages, room, moments, stages.plain_bytes, CutModel.in_fixed_order)

    @classmethod
    def in_any_order(cls, stages: Stages, room: int) -> CutSearch:
        """Return the search for a bound on all plans.

        The cuts are first runs of ops on the path of the any-order bound; a graph too large for that path has no cuts.

        Args:
            stages: the graph in the input order.
            room: bytes for outputs of ops.
        """
        ancestry = Ancestry(stages, room)
        if not ancestry.is_small:
            none = np.zeros(0, dtype=np.int64)
            return cls(stages, room, none, none, CutModel.in_any_order)
        moments = ancestry.path[ancestry.lacking[ancestry.path] > 0]
        return cls(stages, room, moments, ancestry.lacking, CutModel.in_any_order)

    @property
    def has_ended(self) -> bool:
        """Whether another turn is useless."""
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
        """Solve model after model until one exceeds its limits; return the best proof.

        The next turn begins with that model.

        Args:
            limits: limits of the caller; if they end the solver, the bound proven so far holds.
            known: a proven bound on the extra time.
            best: extra time of a known plan: slower solutions are excluded, which often speeds up the proof.
            tell: receives the best sequence of each model, which need not fit.
            share: share of the time for this turn.
            work: solver's work for this turn, on a graph of usual size.
            takes_any_plan: whether any plan will do, so that each model ends at its first solution.
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
        """Add the moment at which the sequence takes most memory.

        The result is empty if all other moments fit.
        """
        exceeding = sequence.memory[~sequence.is_rerun] - self._stages.graph.fixed_bytes - self._room
        others = self._moments[~np.isin(self._moments, self._cuts)]
        if not len(others) or exceeding[others].max() <= 0:
            return self._cuts[:0]
        return self._moments[np.isin(self._moments, [*self._cuts, others[exceeding[others].argmax()]])]
