"""Tables of buffers whose answer is known, and what is claimed of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from remat_cli.allocation.portfolio import Allocation, allocate
from remat_cli.core.buffers import Buffer
from remat_cli.core.problem import Status
from remat_cli.planners.shared.limits import Limits
from tests.planted import planted

# Work of a search, about the seconds of a usual core.
_WORK = 2.0


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
