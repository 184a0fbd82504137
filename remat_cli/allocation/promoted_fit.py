"""First fit within a capacity, with promotion of buffers.

A buffer that does not fit moves to an earlier place in the order, until all buffers fit.

Only buffers after this place are placed again. This is cheap enough for 100,000 buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat_cli.allocation.instance import Instance
from remat_cli.machine.compiled import can_compile, compiled

Ints = NDArray[np.int64]

# Work of a look at one placed buffer, about seconds of a usual core; plain Python takes longer.
_WORK_OF_LOOK = 2e-9 * (1 if can_compile() else 200)
# Looks at placed buffers between two looks at the clock.
_LOOKS_AT_ONCE = 100_000_000 if can_compile() else 500_000
# Random numbers are below this. A compiled function reads constants of its own module only.
DRAWN = 2**31
# Share of moves to any place at all, and for other moves the mean number of overlapping buffers passed over.
FAR, SOME = 0.02, 1.0
# Places in `state`, and columns of `placed`.
PLACED, LOWEST, RANDOM, LOOKS = range(4)
LOWER, UPPER, START, END = range(4)


class Placing(NamedTuple):
    """The state of a first fit.

    Attributes:
        buffers: [3, N] first section, the one after the last, size.
        order: [N] the buffers: first placed ones, then waiting ones.
        placed: [N, 4] of the placed buffers, in that order: first section, the one after the last, start, end.
        above: [N] of each placed buffer the next by start; -1 for none.
        below: [N] of each placed buffer the previous by start, when it was placed; -1 for none.
        state: number of placed buffers, the buffer with the lowest start, the last random number, number of looks.
    """

    buffers: Ints
    order: Ints
    placed: Ints
    above: Ints
    below: Ints
    state: Ints


class PromotedFits:
    """Promoted fits from several orders, which take turns.

    Attributes:
        offsets: [buffers] offsets in units; None without a result.
    """

    def __init__(self, instance: Instance, capacity: int, seed: int = 0) -> None:
        """Prepare the searches.

        Args:
            instance: the buffers.
            capacity: size of the arena, in units; no buffer is larger.
            seed: seed of the places to which buffers move.
        """
        self.offsets: Ints | None = None
        self._capacity = capacity
        self._searches = [_placing(instance, order, seed + at) for at, order in enumerate(orders(instance))]

    def go_on(self, work: float, is_over: Callable[[], bool]) -> None:
        """Search on with an amount of work."""
        looks = max(1, int(work / (len(self._searches) * _WORK_OF_LOOK)))
        for search in self._searches:
            left = looks
            while left > 0 and not is_over():
                before = int(search.state[LOOKS])
                if place(search, self._capacity, min(left, _LOOKS_AT_ONCE)):
                    self.offsets = np.empty(len(search.order), np.int64)
                    self.offsets[search.order] = search.placed[:, START]
                    return
                left -= int(search.state[LOOKS]) - before


def orders(instance: Instance) -> Iterator[Ints]:
    """Yield [buffers] orders to begin with.

    First come buffers in the tightest sections, large ones, or long ones.
    """
    lengths = instance.upper - instance.lower
    for keys in (
        (instance.tightest, lengths),
        (instance.tightest, instance.sizes),
        (instance.sizes, lengths),
        (lengths, instance.sizes),
    ):
        yield np.lexsort(tuple(-key for key in reversed(keys)))


def _placing(instance: Instance, order: Ints, seed: int) -> Placing:
    count = len(instance)
    return Placing(
        buffers=np.array([instance.lower, instance.upper, instance.sizes]),
        order=order,
        placed=np.zeros((count, 4), np.int64),
        above=np.zeros(count, np.int64),
        below=np.zeros(count, np.int64),
        state=np.array([0, -1, (seed + 1) * 7919 % DRAWN, 0]),
    )


@compiled
def place(p: Placing, capacity: int, looks: int) -> bool:
    """Place buffers until all are placed or the looks are used up.

    Return whether all are placed.
    """
    end = p.state[LOOKS] + looks
    while p.state[PLACED] < len(p.order):
        if p.state[LOOKS] >= end:
            return False
        count = p.state[PLACED]
        buffer = p.order[count]
        offset, below = _lowest_gap(p, buffer)
        if offset + p.buffers[2, buffer] <= capacity:
            _lay(p, buffer, offset, below)
        else:
            _promote(p, buffer, _earlier(p, buffer))
    return True


@compiled
def _lowest_gap(p: Placing, buffer: int) -> tuple[int, int]:
    """Return a buffer's lowest offset, and the previous placed buffer.

    Placed buffers are ordered by start.
    """
    lower, upper, size = p.buffers[0, buffer], p.buffers[1, buffer], p.buffers[2, buffer]
    top, below, looks = 0, -1, 1
    at = p.state[LOWEST]
    while at >= 0:
        looks += 1
        start = p.placed[at, START]
        if p.placed[at, LOWER] < upper and lower < p.placed[at, UPPER]:
            if start >= top + size:
                break
            top = max(top, p.placed[at, END])
        if start <= top:
            below = at
        at = p.above[at]
    p.state[LOOKS] += looks
    return top, below


@compiled
def _lay(p: Placing, buffer: int, offset: int, below: int) -> None:
    """Place a buffer."""
    count = p.state[PLACED]
    p.placed[count, LOWER], p.placed[count, UPPER] = p.buffers[0, buffer], p.buffers[1, buffer]
    p.placed[count, START], p.placed[count, END] = offset, offset + p.buffers[2, buffer]
    p.below[count] = below
    if below < 0:
        p.above[count] = p.state[LOWEST]
        p.state[LOWEST] = count
    else:
        p.above[count] = p.above[below]
        p.above[below] = count
    p.state[PLACED] = count + 1


@compiled
def _earlier(p: Placing, buffer: int) -> int:
    """Draw the place in the order to which a buffer moves."""
    at = p.state[PLACED] - 1
    if _draw(p) < FAR:
        return int(_draw(p) * p.state[PLACED])
    between = int(-SOME * log(max(_draw(p), 1e-9)))
    lower, upper = p.buffers[0, buffer], p.buffers[1, buffer]
    while at > 0:
        if p.placed[at, LOWER] < upper and lower < p.placed[at, UPPER]:
            if between <= 0:
                break
            between -= 1
        at -= 1
    return int(at)


@compiled
def _draw(p: Placing) -> float:
    """Return a random number from 0 to below 1."""
    p.state[RANDOM] = (p.state[RANDOM] * 1103515245 + 12345) % DRAWN
    return float((p.state[RANDOM] >> 8) / (DRAWN >> 8))


@compiled
def _promote(p: Placing, buffer: int, to: int) -> None:
    """Move a buffer to an earlier place in the order.

    All buffers placed from this place on are taken out.
    """
    for at in range(p.state[PLACED] - 1, to - 1, -1):
        if p.below[at] < 0:
            p.state[LOWEST] = p.above[at]
        else:
            p.above[p.below[at]] = p.above[at]
    for at in range(p.state[PLACED], to, -1):
        p.order[at] = p.order[at - 1]
    p.order[to] = buffer
    p.state[PLACED] = to
    p.state[LOOKS] += 1
