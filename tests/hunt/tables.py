"""Tables of buffers whose answer is known, and what is claimed of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import compress

from ortools.sat.python import cp_model

from remat_cli.allocation.portfolio import Allocation, allocate
from remat_cli.core.buffers import Buffer
from remat_cli.core.problem import Status
from remat_cli.planners.shared.limits import Limits
from tests.planted import planted

# Work of a search, about the seconds of a usual core.
_WORK = 2.0
# For the model that shares nothing, and tables drawn until one does not fit its load.
_SECONDS = 5.0
_DRAWS = 40


def check_table(seed: int) -> None:
    """Place a table drawn from a seed within the capacity that it fits, within a byte less, and in the least."""
    rng = random.Random(seed)
    capacity = rng.choice([40, 1_000, 10**6, 2**40])
    taken_out = rng.choice([0.0, 0.1, 0.5])
    buffers = planted(rng.randint(2, 120), capacity, seed, taken_out)
    if not buffers:
        return
    limits = Limits(work=_WORK)
    within = allocate(buffers, limits, capacity=capacity)
    assert within.status is not Status.INFEASIBLE, "an arena that fits was planted"
    check_allocation(buffers, within, capacity)
    least = allocate(buffers, Limits(work=_WORK))
    check_allocation(buffers, least)
    assert least.bound_bytes <= capacity, f"the bound {least.bound_bytes} is above {capacity}, which was planted"
    assert least.bytes is not None
    below = allocate(buffers, Limits(work=_WORK), capacity=least.bytes - 1)
    check_allocation(buffers, below, least.bytes - 1)
    assert below.status is not Status.INFEASIBLE or below.bound_bytes == least.bytes
    assert least.status is not Status.OPTIMAL or below.offsets is None, "less than what was called optimal"


def check_above_load(seed: int) -> bool:
    """Hold what is claimed of a table that does not fit its load against a model that shares nothing.

    Tell whether one was found; few tables are.
    """
    rng = random.Random(seed)
    for _ in range(_DRAWS):
        load = rng.choice([7, 9, 12])
        buffers = _always_full(rng, load)
        if can_be_placed(buffers, load) is False:
            break
    else:
        return False
    least = allocate(buffers, Limits(work=_WORK))
    check_allocation(buffers, least)
    assert least.bytes is not None
    assert least.bytes > load
    for capacity in {load, (load + least.bytes) // 2, least.bytes - 1}:
        fits = can_be_placed(buffers, capacity)
        claimed = allocate(buffers, Limits(work=_WORK), capacity=capacity)
        check_allocation(buffers, claimed, capacity)
        assert claimed.status is not Status.INFEASIBLE or not fits, f"an arena of {capacity} fits"
        assert claimed.offsets is None or fits is not False, f"nothing fits {capacity}, another model says"
        assert not fits or least.bound_bytes <= capacity, f"{capacity} fits, below the bound of {least.bound_bytes}"
        assert not fits or least.status is not Status.OPTIMAL, f"{capacity} fits, {least.bytes} is called the least"
    return True


def _always_full(rng: random.Random, load: int) -> list[Buffer]:
    """Draw buffers that together take `load` at each moment."""
    end, share, most = rng.choice([16, 24]), rng.choice([0.2, 0.3]), rng.choice([load // 2, load])
    living: list[tuple[int, int]] = []
    buffers: list[Buffer] = []
    for moment in range(end + 1):
        leaves = [moment == end or rng.random() < share for _ in living]
        buffers += [Buffer(lower, moment, size) for lower, size in compress(living, leaves)]
        living = [one for one, does in zip(living, leaves, strict=True) if not does]
        while moment < end and (room := load - sum(size for _, size in living)):
            living.append((moment, min(room, rng.randint(1, most))))
    return buffers


def can_be_placed(buffers: Sequence[Buffer], capacity: int) -> bool | None:
    """Whether the buffers fit an arena, as rectangles that do not overlap; None where time ends before it is known."""
    model = cp_model.CpModel()
    times = [model.new_fixed_size_interval_var(buffer.lower, buffer.upper - buffer.lower, "") for buffer in buffers]
    offsets = [model.new_int_var(0, capacity - buffer.size, "") for buffer in buffers]
    places = [model.new_fixed_size_interval_var(at, b.size, "") for at, b in zip(offsets, buffers, strict=True)]
    model.add_no_overlap_2d(times, places)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 1, _SECONDS
    answer = solver.solve(model)
    return None if answer == cp_model.UNKNOWN else answer in (cp_model.OPTIMAL, cp_model.FEASIBLE)


def check_allocation(buffers: Sequence[Buffer], found: Allocation, capacity: int | None = None) -> None:
    """Check offsets, if there are any: those that are needed together lie apart, within the capacity."""
    if found.offsets is None:
        return
    assert found.bytes is not None
    assert found.bytes >= found.bound_bytes
    assert capacity is None or found.bytes <= capacity
    placed = sorted(zip(buffers, found.offsets, strict=True), key=lambda each: each[0].lower)
    living: list[tuple[Buffer, int]] = []
    for buffer, offset in placed:
        assert 0 <= offset <= found.bytes - buffer.size
        living = [(other, at) for other, at in living if other.upper > buffer.lower]
        for other, at in living:
            assert offset + buffer.size <= at or at + other.size <= offset, f"{buffer} lies on {other}"
        living.append((buffer, offset))
