"""The exact choice at a moment, by CP-SAT.

Minimum cuts find the corners of the convex line of time against bytes; the best choice that fits may lie between two of
them. Here the model decides which runs of a window to repeat; the other runs stay, and the budget is a constraint, not
a price.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.graph import LARGEST_TOTAL
from remat_cli.planners.min_cut.priced_cut import CutPoint
from remat_cli.planners.shared.cp_model import CpModel
from remat_cli.planners.shared.cp_sat import SolverOutcome, prove, solve_model
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Bools
from remat_cli.planners.shared.scaling import Rounding

# Linear relaxations prove optima of these models many times sooner than clause learning alone.
_SETTINGS = {"linearization_level": 2}
# Preferences among choices of nearly the same time: together they count as this share of all time. A unit of time is
# this many steps of the objective, unless the numbers would get too large.
_SHARE_OF_PREFERENCES = 0.001
_STEPS = 1000


class ChoiceWindow:
    """The model of a moment.

    Variable q says whether run q, before the moment, is repeated.
    """

    def __init__(self, cut_point: CutPoint, again: Bools, is_free: Bools) -> None:
        """Build the model.

        Args:
            cut_point: the moment.
            again: [moment] the choice from which the search starts.
            is_free: [moment] whether the decision on each run may change.
        """
        self._cut_point = cut_point
        self._model = CpModel()
        self._again = again
        may = cut_point.sequence.reads.recomputable[cut_point.sequence.ops[: cut_point.at]]
        self._possible = may & (is_free | again)
        for low, high in zip((again & ~is_free).tolist(), self._possible.tolist(), strict=True):
            self._model.proto.variables.add().domain.extend((int(low), int(high)))
        self._kept: dict[int, int] = {}  # the variable of each instance that may be kept
        self._add_closure()

    def solve(self, room: int, limits: Limits, weights: NDArray[np.float64]) -> SolverOutcome:
        """Search for the fastest choice that fits.

        Args:
            room: bytes for kept tensors, without those of the moment's own run.
            limits: limits of the search.
            weights: [T] reluctance to keep each tensor.
        """
        steps = max(1, min(_STEPS, LARGEST_TOTAL // max(self._cut_point.sequence.time, 1)))
        self._complete(room, steps)
        self._add_preferences(weights, steps)
        return solve_model(self._model, limits, rounding=Rounding.RESTRICT, settings=_SETTINGS)

    def prove(self, room: int, limits: Limits, known: int) -> SolverOutcome:
        """Prove a lower bound on the time of every choice that fits the room.

        Args:
            room: bytes for kept tensors, without the least that the moment's own run needs.
            limits: limits of the search.
            known: a proven bound.
        """
        self._complete(room, 1)
        return prove(self._model, limits, known=known, settings=_SETTINGS)

    def _complete(self, room: int, steps: int) -> None:
        """Add the room as a constraint, the times as costs, and the hint.

        A unit of time costs `steps`.
        """
        cut_point, proto = self._cut_point, self._model.proto
        sequence = cut_point.sequence
        linear = proto.constraints.add().linear
        linear.vars.extend(self._kept.values())
        linear.coeffs.extend(sequence.bytes[list(self._kept)].tolist())
        linear.domain.extend((0, max(room, 0)))
        costly = np.flatnonzero(self._possible & (sequence.run_time[: cut_point.at] > 0))
        proto.objective.vars.extend(costly.tolist())
        proto.objective.coeffs.extend((steps * sequence.run_time[costly]).tolist())
        proto.solution_hint.vars.extend(range(cut_point.at))
        proto.solution_hint.values.extend(self._again.astype(int).tolist())

    def _add_closure(self) -> None:
        """Add the constraint that needed instances are kept or recomputed.

        An instance may be needed after the moment, or by a rerun.
        """
        cut_point, constraints = self._cut_point, self._model.proto.constraints
        for instance in np.flatnonzero(cut_point.is_needed & ~cut_point.is_here).tolist():
            constraints.add().bool_or.literals.extend(self._providers(instance))
        for run in np.flatnonzero(self._possible).tolist():
            for instance in cut_point.sequence.inputs[run].tolist():
                if not cut_point.is_here[instance]:
                    constraints.add().bool_or.literals.extend([-run - 1, *self._providers(instance)])

    def _providers(self, instance: int) -> list[int]:
        """Return the literals that provide an instance: kept, or recomputed."""
        if instance not in self._kept:
            self._kept[instance] = len(self._model.proto.variables)
            self._model.proto.variables.add().domain.extend((0, 1))
        maker = int(self._cut_point.sequence.instances[0][instance])
        return [self._kept[instance], maker] if self._possible[maker] else [self._kept[instance]]

    def _add_preferences(self, weights: NDArray[np.float64], steps: int) -> None:
        sequence, objective = self._cut_point.sequence, self._model.proto.objective
        instances = np.array(list(self._kept), dtype=np.int64)
        unwelcome = sequence.bytes[instances] * weights[sequence.instances[1][instances]]
        share = _SHARE_OF_PREFERENCES * steps * sequence.time / max(float(unwelcome.sum()), 1.0)
        objective.vars.extend(self._kept.values())
        objective.coeffs.extend(np.floor(share * unwelcome).astype(np.int64).tolist())
