"""An arena for a schedule: its buffers, offsets for them, and the addresses that these make."""

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
    """Search an arena in which all that a schedule keeps lies apart.

    Args:
        graph: what the schedule is for.
        schedule: valid.
        limits: where the search stops.
        capacity: largest arena, in bytes; None: the smallest that is found.
        alignment: offsets and the size of the arena are multiples of it.
        observe: is told what is done.

    Returns:
        What the search came to, and the arena; None where none was found.
    """
    needed = needed_by(graph, schedule)
    found = allocate(needed.buffers, limits, capacity=capacity, alignment=alignment, observe=observe)
    if found.offsets is None or found.bytes is None:
        return found, None
    return found, needed.arena(found.offsets, found.bytes, alignment)


def arena_in_banks(
    graph: Graph,
    schedule: Schedule,
    banks: Sequence[Bank],
    limits: Limits,
    *,
    alignment: int = USUAL_ALIGNMENT,
    observe: Observer | None = None,
) -> tuple[BankAllocation, Arena | None]:
    """Search banks and offsets in them for all that a schedule keeps; arguments and result as of `arena_of`."""
    needed = needed_by(graph, schedule)
    found = allocate_in_banks(needed.buffers, needed.traffic, banks, limits, alignment=alignment, observe=observe)
    if found.banks is None or found.offsets is None:
        return found, None
    return found, needed.arena_in(banks, found.banks, found.offsets, alignment)
