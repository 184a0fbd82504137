"""The knapsack-cover bound: what a fixed order of first runs costs at the least."""

from __future__ import annotations

import numpy as np
from ortools.sat.python.cp_model import CpModel

from remat_cli.planners.cp_sat import SolverLimits, solve_model
from remat_cli.planners.retention.model import Terms, add_rows
from remat_cli.planners.stages import Ints, Stages
from remat_cli.problem import Status


def cover_bound(stages: Stages, room: int, limits: SolverLimits) -> int | None:
    """Return a lower bound on the time that recomputation takes in any plan with this order of first runs.

    A tensor that is read before a stage and after it, and is not in memory while that stage's op runs for the first
    time, was recomputed in between. So the cheapest set of gaps between reads that covers what every stage lacks bounds
    the overhead from below, whatever else is recomputed, in whichever order.

    Args:
        stages: the graph in its order.
        room: bytes for what ops make: the budget without the fixed bytes.
        limits: of the search for the cheapest cover; cut short, its own bound holds.

    Returns:
        Extra time at least; None where the gaps cannot cover it: no plan with this order fits.
    """
    lacking = stages.plain_bytes - room
    if not (lacking > 0).any():
        return 0
    cover = _Cover(stages, lacking)
    outcome = solve_model(cover.model(), limits)
    if outcome.status is Status.INFEASIBLE:
        return None
    return max(0, outcome.bound or 0)


class _Cover:
    """The model: one variable for each gap between neighbouring reads of a tensor that can be made again."""

    def __init__(self, stages: Stages, lacking: Ints) -> None:
        self._stages = stages
        self._lacking = lacking
        tensor, end = stages.read_tensor, stages.read_stage
        start = np.where(np.diff(tensor, prepend=-1) > 0, stages.made_at[tensor], np.roll(end, 1))
        tight = np.concatenate([[0], np.cumsum(lacking > 0)])
        maker = stages.made_at[tensor]
        # In a gap that starts where an op can take over the tensor's storage, it can be gone while that op runs.
        takes_over = np.append(stages.shared_input, -1)[start] == tensor
        first = start + ~takes_over
        useful = stages.recomputable[maker] & (tight[end] > tight[np.minimum(first, end)])
        self._tensor, self._start, self._end = tensor[useful], start[useful], end[useful]
        self._takes_over = takes_over[useful]

    def model(self) -> CpModel:
        stages, tensor = self._stages, self._tensor
        model = CpModel()
        for _ in range(len(tensor)):
            model.proto.variables.add().domain.extend((0, 1))
        add_rows(model, self._savings(), self._lacking, 0)
        maker = stages.made_at[tensor]
        # One run serves all outputs of an op, so each is charged its share.
        outputs = np.diff(stages.outputs.start)[maker]
        cost = stages.time[maker] // np.maximum(outputs, 1)
        costly = np.flatnonzero(cost)
        model.proto.objective.vars.extend(costly.tolist())
        model.proto.objective.coeffs.extend(cost[costly].tolist())
        return model

    def _savings(self) -> Terms:
        """Return minus the bytes that each gap can save in each stage that lacks memory."""
        stages = self._stages
        inside = Terms.over(self._start + 1, self._end, np.arange(len(self._tensor)), -stages.bytes[self._tensor])
        taken = np.flatnonzero(self._takes_over)
        shared = -stages.shared_bytes[self._start[taken]]
        tight = self._lacking > 0
        return inside.and_also(self._start[taken], taken, shared).of_rows(tight)
