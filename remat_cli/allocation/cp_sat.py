"""A CP-SAT model of buffers as rectangles.

Their times are fixed, and their offsets are searched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remat_cli.allocation.instance import Instance
from remat_cli.core.problem import Status
from remat_cli.planners.shared.cp_model import CpModel
from remat_cli.planners.shared.cp_sat import solve_model
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.scaling import Rounding


def solved(instance: Instance, capacity: int, limits: Limits) -> tuple[Status, NDArray[np.int64] | None]:
    """Search offsets of all buffers within a capacity.

    Args:
        instance: the buffers.
        capacity: size of the arena, in units.
        limits: limits of the search; work is the solver's deterministic time.

    Returns:
        Feasible with the [buffers] offsets in units, infeasible on the solver's word, or unknown.

    Raises:
        KeyboardInterrupt: Ctrl-C; the solver has ended.
    """
    model = CpModel()
    across, upwards = [], []
    for lower, upper, size in zip(
        instance.lower.tolist(), instance.upper.tolist(), instance.sizes.tolist(), strict=True
    ):
        offset = model.new_int_var(0, capacity - size, "")
        across.append(model.new_fixed_size_interval_var(lower, upper - lower, ""))
        upwards.append(model.new_fixed_size_interval_var(offset, size, ""))
    model.add_no_overlap_2d(across, upwards)
    outcome = solve_model(model, limits, rounding=Rounding.RELAX)
    if outcome.values is None:
        return outcome.status, None
    return Status.FEASIBLE, outcome.values[: len(instance)]
