"""Greedy allocations: buffers in several orders, each at the lowest offset that is free."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from remat_cli.allocation.instance import Instance

Ints = NDArray[np.int64]

# Above so many buffers, gaps below others are not looked at: that takes time quadratic in the buffers.
MOST_WITH_GAPS = 20_000


def greedy_offsets(instance: Instance) -> Iterator[Ints]:
    """Yield the [buffers] offsets, in units, that each of the orders ends with."""
    place = first_fit if len(instance) <= MOST_WITH_GAPS else stacked
    for order in orders(instance):
        yield place(instance, order)


def largest_first(instance: Instance) -> Ints:
    """Return the order of TensorFlow Lite Micro's greedy planner: by size, then by length of life."""
    return np.lexsort((instance.lower - instance.upper, -instance.sizes))


def orders(instance: Instance) -> Iterator[Ints]:
    """Yield [buffers] orders in which to place buffers: what usually ends lowest comes first."""
    lengths = instance.upper - instance.lower
    yield np.lexsort((instance.lower, -instance.sizes, -lengths))
    yield largest_first(instance)
    yield np.lexsort((-lengths, -lengths * instance.sizes))
    yield np.lexsort((-lengths, instance.lower))


def first_fit(instance: Instance, order: Ints) -> Ints:
    """Return the [buffers] offsets that come of placing each buffer in the lowest gap that is wide enough."""
    offsets = np.zeros(len(instance), np.int64)
    lower, upper, starts, ends = (np.zeros(len(instance), np.int64) for _ in range(4))  # of what is placed
    for count, buffer in enumerate(order.tolist()):
        first, last = instance.lower[buffer], instance.upper[buffer]
        beside = np.flatnonzero((lower[:count] < last) & (first < upper[:count]))
        size = instance.sizes[buffer]
        offset = _lowest_gap(starts[beside], ends[beside], int(size))
        lower[count], upper[count], starts[count], ends[count] = first, last, offset, offset + size
        offsets[buffer] = offset
    return offsets


def _lowest_gap(starts: Ints, ends: Ints, size: int) -> int:
    order = np.argsort(starts, kind="stable")
    # The ground, and the highest end of what begins no higher.
    tops = np.concatenate(([0], np.maximum.accumulate(ends[order])))
    wide = np.flatnonzero(starts[order] - tops[:-1] >= size)
    return int(tops[wide[0]] if len(wide) else tops[-1])


def stacked(instance: Instance, order: Ints) -> Ints:
    """Return the [buffers] offsets that come of placing each buffer above all that is placed in its sections."""
    offsets = np.zeros(len(instance), np.int64)
    floors = np.zeros(instance.sections, np.int64)
    for buffer in order.tolist():
        span = floors[instance.lower[buffer] : instance.upper[buffer]]
        offset = span.max()
        offsets[buffer] = offset
        span[:] = offset + instance.sizes[buffer]
    return offsets
