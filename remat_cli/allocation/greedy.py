"""Greedy allocations: each buffer at its lowest free offset.

Buffers are placed in several orders.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from remat_cli.allocation.instance import Instance

Ints = NDArray[np.int64]

# Above so many buffers, gaps below others are not used: this takes time quadratic in the buffers.
MOST_WITH_GAPS = 20_000


def greedy_offsets(instance: Instance) -> Iterator[Ints]:
    """Yield the [buffers] offsets, in units, of each greedy method."""
    if len(instance) > MOST_WITH_GAPS:
        yield from _in_time(instance)
        yield from (stacked(instance, order) for order in orders(instance))
    else:
        yield from (first_fit(instance, order) for order in orders(instance))
        yield from _in_time(instance)


def _in_time(instance: Instance) -> Iterator[Ints]:
    yield best_fit(instance)
    yield best_fit(instance.backwards())


def largest_first(instance: Instance) -> Ints:
    """Return the order of TensorFlow Lite Micro's greedy planner.

    The order is by size, then by length of life.
    """
    return np.lexsort((instance.lower - instance.upper, -instance.sizes))


def orders(instance: Instance) -> Iterator[Ints]:
    """Yield [buffers] orders of placing buffers.

    The order comes first that usually gives the smallest arena.
    """
    lengths = instance.upper - instance.lower
    yield np.lexsort((instance.lower, -instance.sizes, -lengths))
    yield largest_first(instance)
    yield np.lexsort((-lengths, -lengths * instance.sizes))
    yield np.lexsort((-lengths, instance.lower))


def first_fit(instance: Instance, order: Ints) -> Ints:
    """Return the [buffers] offsets of first fit: the lowest wide gap."""
    offsets = np.zeros(len(instance), np.int64)
    lower, upper, starts, ends = (np.zeros(len(instance), np.int64) for _ in range(4))  # of placed buffers
    for count, buffer in enumerate(order.tolist()):
        first, last = instance.lower[buffer], instance.upper[buffer]
        overlapping = np.flatnonzero((lower[:count] < last) & (first < upper[:count]))
        size = instance.sizes[buffer]
        offset = lowest_gap(starts[overlapping], ends[overlapping], int(size))
        lower[count], upper[count], starts[count], ends[count] = first, last, offset, offset + size
        offsets[buffer] = offset
    return offsets


def lowest_gap(starts: Ints, ends: Ints, size: int) -> int:
    """Return the lowest offset with room between or above buffers."""
    order = np.argsort(starts, kind="stable")
    # The ground, and the highest end of buffers that begin no higher.
    tops = np.concatenate(([0], np.maximum.accumulate(ends[order])))
    wide = np.flatnonzero(starts[order] - tops[:-1] >= size)
    return int(tops[wide[0]] if len(wide) else tops[-1])


def stacked(instance: Instance, order: Ints) -> Ints:
    """Return the [buffers] offsets of stacking without gaps.

    Each buffer is placed above all placed buffers of its sections.
    """
    offsets = np.zeros(len(instance), np.int64)
    floors = np.zeros(instance.sections, np.int64)
    for buffer in order.tolist():
        span = floors[instance.lower[buffer] : instance.upper[buffer]]
        offset = span.max()
        offsets[buffer] = offset
        span[:] = offset + instance.sizes[buffer]
    return offsets


def best_fit(instance: Instance) -> Ints:
    """Return the [buffers] offsets of best fit: the smallest gap.

    Buffers are placed as time goes by, as an allocator places them. The time is nearly linear in the buffers.
    """
    offsets = np.zeros(len(instance), np.int64)
    sizes, uppers = instance.sizes.tolist(), instance.upper.tolist()
    gaps, placed = _Gaps(), list[tuple[int, int]]()  # of placed buffers: the end of their life, and their number
    for buffer in np.lexsort((-instance.sizes, -instance.upper, instance.lower)).tolist():
        while placed and placed[0][0] <= instance.lower[buffer]:
            _, ended = heappop(placed)
            gaps.give_back(int(offsets[ended]), sizes[ended])
        offsets[buffer] = gaps.take(sizes[buffer])
        heappush(placed, (uppers[buffer], buffer))
    return offsets


class _Gaps:
    """The free gaps of an arena that grows on demand."""

    def __init__(self) -> None:
        self._top = 0
        self._by_length: list[tuple[int, int]] = []  # length and start, ascending
        self._end: dict[int, int] = {}  # by start
        self._start: dict[int, int] = {}  # by end

    def take(self, size: int) -> int:
        """Return an address for a buffer: in the smallest gap that holds it, or at the top."""
        index = bisect_left(self._by_length, (size, 0))
        if index < len(self._by_length):
            length, start = self._by_length[index]
            self._remove(start)
            if length > size:
                self._add(start + size, start + length)
            return start
        start = self._start.get(self._top, self._top)
        if start < self._top:
            self._remove(start)
        self._top = start + size
        return start

    def give_back(self, start: int, size: int) -> None:
        """Free room, and merge it with adjacent gaps."""
        end = start + size
        if end in self._end:
            end = self._remove(end)
        if start in self._start:
            start = self._start[start]
            self._remove(start)
        self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        self._end[start], self._start[end] = end, start
        insort(self._by_length, (end - start, start))

    def _remove(self, start: int) -> int:
        """Remove a gap from the list; return its end."""
        end = self._end.pop(start)
        del self._start[end]
        del self._by_length[bisect_left(self._by_length, (end - start, start))]
        return end
