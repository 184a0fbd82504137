"""Exact search: one buffer after the other, from the ground up, until offsets are found or there are none."""

from __future__ import annotations

import numpy as np

from remat_cli.allocation import exact_kernel as kernel
from remat_cli.allocation.exact_kernel import FOUND, Ints, Neighbours, State
from remat_cli.allocation.instance import Instance


class ExactSearch:
    """One search of offsets within a capacity, which can be left and gone on with.

    Attributes:
        is_over: offsets were found, or it is proven that there are none.
        offsets: [buffers] in units; None without any.
        steps: that were made.
    """

    def __init__(self, instance: Instance, capacity: int, order: Ints, near: Neighbours, by_corner: bool = False) -> None:
        """Prepare.

        Args:
            instance: the buffers.
            capacity: in units; no buffer is larger.
            order: [buffers] which one goes first where several may begin at one offset.
            near: `neighbours` of the instance.
        """
        self.offsets: Ints | None = None
        self.steps = 0
        self.is_over = False
        self._capacity, self._near = capacity, near
        self._i, self._o = instance, order
        self._state = _first_state(instance, order, near)
        self._state.values[kernel.BY_CORNER] = by_corner

    def go_on(self, steps: int) -> None:
        """Make at most so many steps more."""
        end, made = kernel.go_on(self._near, self._state, self._capacity, steps)
        self.steps += made
        self.is_over = end == FOUND or (end == kernel.NONE and not self._state.values[kernel.HAS_LEFT_OUT])
        if end == kernel.LOST or (end == kernel.NONE and not self.is_over):
            skips = 2 * self._state.values[kernel.MOST_SKIPS] + 1
            self._state = _first_state(self._i, self._o, self._near)
            self._state.values[kernel.BY_CORNER] = 1
            self._state.values[kernel.MOST_SKIPS] = skips if end == kernel.NONE else 0
        if end == FOUND:
            self.offsets = self._state.buffers[kernel.OFFSET].copy()


def neighbours(instance: Instance) -> Neighbours:
    """Return which buffers share sections."""
    overlaps = instance.overlaps.copy()
    np.fill_diagonal(overlaps, False)
    members = instance.members.T
    return Neighbours(
        _starts(overlaps.sum(axis=1)), np.nonzero(overlaps)[1], _starts(members.sum(axis=1)), np.nonzero(members)[1]
    )


def orders(instance: Instance) -> list[Ints]:
    """Return orders in which to try buffers: long, large, in tight sections first."""
    width = instance.upper - instance.lower
    area = width * instance.sizes
    tightest = np.array(
        [instance.loads[lower:upper].max() for lower, upper in zip(instance.lower, instance.upper, strict=True)]
    )
    keys = (
        (width, area, tightest),
        (tightest, area, width),
        (tightest, width, area),
        (area, width, tightest),
        (instance.sizes, tightest, width),
    )
    return [np.lexsort(tuple(-key for key in reversed(each))) for each in keys]


def _starts(counts: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(counts)))


def _first_state(instance: Instance, order: Ints, near: Neighbours) -> State:
    count, sections = len(instance), instance.sections
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    nothing = np.zeros(count, np.int64)
    crossing = np.zeros(sections + 1, np.int64)
    np.add.at(crossing, instance.lower + 1, 1)
    np.add.at(crossing, instance.upper, -1)
    frames = np.zeros((16, 8 * count + 64), np.int64)
    frames[:, 0] = 0
    frames[kernel.STOP, 0], frames[kernel.LAST, 0] = count, sections
    frames[kernel.BACK, 0] = frames[kernel.WAITING, 0] = -1
    frames[kernel.SINCE, 0] = frames[kernel.SINCE_RANK, 0] = -1
    return State(
        values=np.zeros(9, np.int64),
        buffers=np.array([instance.lower, instance.upper, instance.sizes, rank, nothing - 1, nothing]),
        sections=np.array(
            [np.zeros(sections + 1, np.int64), np.append(instance.loads, 0), np.cumsum(crossing), np.zeros(sections + 1, np.int64)]
        ),
        order=np.arange(count),
        frames=frames,
        leasts=np.zeros((2, 8 * len(near.other) + count), np.int64),
        floors=np.zeros((2, (count + 1) * (sections + 1)), np.int64),
        groups=np.zeros((6, count + 1), np.int64),
    )
