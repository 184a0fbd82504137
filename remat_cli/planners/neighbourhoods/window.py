"""The choice at a moment, exactly: which runs of a window to carry out again so that what is kept just fits, by CP-SAT.

Minimum cuts find the corners of the convex line of time against bytes; what fits best may lie between two of them. Here
the runs of a window are free, the others do as they did, and the budget is a constraint instead of a price.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python.cp_model import CpModel

from remat_cli.planners.cp_sat import Outcome, SolverLimits, solve_model
from remat_cli.planners.neighbourhoods.cut import Moment
from remat_cli.planners.stages import Bools

# Linear relaxations prove these models' optima many times sooner than clause learning alone.
_SETTINGS = {"linearization_level": 2}
# Preferences among choices of nearly the same time: together they count as much as this share of all time.
_SHARE_OF_PREFERENCES = 0.001
_STEPS = 1000


class Window:
    """The model of a moment. Variable q, for each run before it, is whether that run is carried out again."""

    def __init__(self, moment: Moment, again: Bools, is_free: Bools) -> None:
        """Set up the model.

        Args:
            moment: what the choice is at.
            again: [moment] a choice, from which the search starts.
            is_free: [moment] the runs that may be decided otherwise.
        """
        self._moment = moment
        self._model = CpModel()
        self._again = again
        may = moment.tape.reads.recomputable[moment.tape.ops[: moment.at]]
        self._possible = may & (is_free | again)
        for low, high in zip((again & ~is_free).tolist(), self._possible.tolist(), strict=True):
            self._model.proto.variables.add().domain.extend((int(low), int(high)))
        self._kept: dict[int, int] = {}  # the variable of each instance that may be kept
        self._add_closure()

    def solve(self, room: int, limits: SolverLimits, weights: NDArray[np.float64] | None = None) -> Outcome:
        """Search for the choice of the least time that fits.

        Args:
            room: bytes for what is kept, what the moment's run itself needs left out.
            limits: of the search.
            weights: [T] the larger, the less welcome is a tensor among those that are kept; without them the outcome's
                objective and bound are times.
        """
        moment, proto = self._moment, self._model.proto
        tape = moment.tape
        linear = proto.constraints.add().linear
        linear.vars.extend(self._kept.values())
        linear.coeffs.extend(tape.bytes[list(self._kept)].tolist())
        linear.domain.extend((0, max(room, 0)))
        costly = np.flatnonzero(self._possible & (tape.run_time[: moment.at] > 0))
        proto.objective.vars.extend(costly.tolist())
        proto.objective.coeffs.extend(((1 if weights is None else _STEPS) * tape.run_time[costly]).tolist())
        if weights is not None:
            self._add_preferences(weights)
        proto.solution_hint.vars.extend(range(moment.at))
        proto.solution_hint.values.extend(self._again.astype(int).tolist())
        return solve_model(self._model, limits, settings=_SETTINGS)

    def _add_closure(self) -> None:
        """Whatever is needed after the moment, or by what runs again, is kept or made again."""
        moment, constraints = self._moment, self._model.proto.constraints
        for instance in np.flatnonzero(moment.is_needed & ~moment.is_here).tolist():
            constraints.add().bool_or.literals.extend(self._ways_to(instance))
        for run in np.flatnonzero(self._possible).tolist():
            for instance in moment.tape.inputs[run].tolist():
                if not moment.is_here[instance]:
                    constraints.add().bool_or.literals.extend([-run - 1, *self._ways_to(instance)])

    def _ways_to(self, instance: int) -> list[int]:
        """Return what may bring an instance about: that it is kept, or that its run is carried out again."""
        if instance not in self._kept:
            self._kept[instance] = len(self._model.proto.variables)
            self._model.proto.variables.add().domain.extend((0, 1))
        maker = int(self._moment.tape.made[0][instance])
        return [self._kept[instance], maker] if self._possible[maker] else [self._kept[instance]]

    def _add_preferences(self, weights: NDArray[np.float64]) -> None:
        tape, objective = self._moment.tape, self._model.proto.objective
        instances = np.array(list(self._kept), dtype=np.int64)
        unwelcome = tape.bytes[instances] * weights[tape.made[1][instances]]
        share = _SHARE_OF_PREFERENCES * _STEPS * tape.time / max(float(unwelcome.sum()), 1.0)
        objective.vars.extend(self._kept.values())
        objective.coeffs.extend(np.floor(share * unwelcome).astype(np.int64).tolist())
