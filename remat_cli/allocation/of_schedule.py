"""An arena for a schedule: buffers, offsets, and addresses."""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.allocation.banks import BankAllocation, allocate_in_banks
from remat_cli.allocation.lifetimes import needed_by
from remat_cli.allocation.portfolio import Allocation, allocate
from remat_cli.core.arena import USUAL_ALIGNMENT, Arena, Bank
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Observer
from remat_cli.core.schedule import Schedule
from remat_cli.planners.shared.limits import Limits


def arena_of(
    graph: Graph,
    schedule: Schedule,
    limits: Limits,
    *,
    capacity: int | None = None,
    alignment: int = USUAL_ALIGNMENT,
    observe: Observer | None = None,
) -> tuple[Allocation, Arena | None]:
    """Search an arena for all buffers of a schedule.

    Args:
        graph: graph of the schedule.
        schedule: a valid schedule.
        limits: limits of the search.
        capacity: largest arena, in bytes; None: the smallest found.
        alignment: offsets and the size of the arena are multiples of this.
        observe: is told the progress.

    Returns:
        The result of the search, and the arena; None without an arena.
    """
    needed = needed_by(graph, schedule)
    allocation = allocate(needed.buffers, limits, capacity=capacity, alignment=alignment, observe=observe)
    if allocation.offsets is None or allocation.bytes is None:
        return allocation, None
    return allocation, needed.arena(allocation.offsets, allocation.bytes, alignment)


def arena_in_banks(
    graph: Graph,
    schedule: Schedule,
    banks: Sequence[Bank],
    limits: Limits,
    *,
    alignment: int = USUAL_ALIGNMENT,
    observe: Observer | None = None,
) -> tuple[BankAllocation, Arena | None]:
    """Search banks and offsets for all buffers of a schedule.

    Arguments and result are as for `arena_of`.
    """
    needed = needed_by(graph, schedule)
    allocation = allocate_in_banks(needed.buffers, needed.traffic, banks, limits, alignment=alignment, observe=observe)
    if allocation.banks is None or allocation.offsets is None:
        return allocation, None
    return allocation, needed.arena_in(banks, allocation.banks, allocation.offsets, alignment)
