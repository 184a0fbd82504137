"""Orders of a schedule's runs and frees with a smaller arena.

Each op runs as often as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from remat_cli.allocation.greedy import first_fit, orders
from remat_cli.allocation.instance import Instance
from remat_cli.allocation.lifetimes import needed_by
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Schedule, with_frees

# The most runs of a schedule, the most tries, and the most runs placed in all tries.
_MOST_RUNS = 2_000
_MOST_TRIES = 300
_RUNS_PLACED = 40_000
# Largest distance of a move, and largest distance of the moved run from the topmost buffer's moment, in runs.
_FARTHEST = 12
_NEAR = 16


def reordered(
    graph: Graph, schedule: Schedule, capacity: int, alignment: int, is_over: Callable[[], bool]
) -> Schedule | None:
    """Search an order of a schedule's runs with a smaller greedy arena.

    One run at a time moves to another place, near the moment of the topmost buffer. A move stays if the greedy arena
    gets no larger. The number of tries is limited, and moves are drawn from a fixed seed.

    Args:
        graph: graph of the schedule.
        schedule: a valid schedule.
        capacity: size of a small enough arena, in bytes.
        alignment: alignment of offsets.
        is_over: returns whether to stop.

    Returns:
        The order with the smallest arena, with every tensor freed as early as possible. None if this arena is no
            smaller than the schedule's own, or the schedule is too long or uses the host.
    """
    if schedule.has_transfers or len(schedule.computes) > _MOST_RUNS:
        return None
    random = np.random.default_rng(0)
    best = schedule
    height, moment = _greedy(graph, schedule, alignment)
    first = height
    order = list(schedule.computes)
    for _ in range(min(_MOST_TRIES, _RUNS_PLACED // max(1, len(order)))):
        if height <= capacity or is_over():
            break
        at = int(np.clip(_run_at(best, moment) + random.integers(-_NEAR, _NEAR + 1), 0, len(order) - 1))
        to = int(np.clip(at + random.integers(-_FARTHEST, _FARTHEST + 1), 0, len(order) - 1))
        moved = order[:at] + order[at + 1 :]
        moved.insert(to, order[at])
        if to == at or not _is_possible(graph, moved):
            continue
        tried = with_frees(graph, moved)
        new_height, new_moment = _greedy(graph, tried, alignment)
        if new_height <= height:
            best, order, height, moment = tried, moved, new_height, new_moment
    return best if height < first else None


def _greedy(graph: Graph, schedule: Schedule, alignment: int) -> tuple[int, int]:
    """Return the smallest greedy arena, and its topmost buffer's start.

    The arena is in bytes, the start is a moment.
    """
    buffers = needed_by(graph, schedule).buffers
    if not buffers:
        return 0, 0
    instance = Instance.of(buffers, alignment)
    tops = min((first_fit(instance, order) + instance.sizes for order in orders(instance)), key=lambda each: each.max())
    return int(tops.max()) * alignment, buffers[int(tops.argmax())].lower


def _run_at(schedule: Schedule, moment: int) -> int:
    """Return the number of runs before a moment.

    Step 0 runs in moment 1.
    """
    return len(Schedule(schedule.steps[: max(0, moment - 1)]).computes)


def _is_possible(graph: Graph, order: Sequence[str]) -> bool:
    """Return whether each op's inputs exist when the op runs."""
    there = set(graph.inputs)
    for name in order:
        op = graph.op[name]
        if not there.issuperset(op.inputs):
            return False
        there.update(op.outputs)
        there.difference_update(op.writes)  # the old value is gone
    return True
