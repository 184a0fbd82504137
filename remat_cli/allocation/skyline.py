"""Beam search over skylines of buffers.

Buffers are placed from the bottom of the arena up, and gaps below are never filled.

After Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning" (ASPLOS 2023):
canonical solutions, in which each buffer rests on another buffer or on the ground, floors of sections, and bounds from
the waiting buffers of a section. MiniMalloc searches in depth; here many states are kept in arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from remat_cli.allocation.instance import Instance

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Floats = NDArray[np.float64]
Whole = NDArray[np.signedinteger[Any]]

# Stands for no offset.
_NOWHERE = np.int64(2**62)
# Heights are computed for so many times the number of kept states.
_LOOKED_AT = 3


@dataclass(frozen=True)
class Beam:
    """The parameters of a beam search.

    Attributes:
        width: states kept at each level.
        corner: choice among the lowest sections: the "first", the "tight" one with the least slack, or the one where
            "few" buffers can be put.
        backwards: time runs backwards, which leads to other states.
        waste_weight: cost of a unit of lost area relative to filled area; None: their ratio counts.
        noise: standard deviation of the random factors on scores.
        seed: seed of the noise.
        skips: number of times per level that a state may leave a floor empty on which a buffer could lie.
    """

    width: int
    corner: str = "first"
    backwards: bool = False
    waste_weight: float | None = None
    noise: float = 0.0
    seed: int = 0
    skips: int = 3


@dataclass
class _States:
    """Partial solutions, one a row.

    Attributes:
        floors: [states, sections] floor below which all room is filled or lost.
        loads: [states, sections] sum of sizes of waiting buffers in the section.
        lowest: [states, buffers] least offset above the floors.
        waiting: [states, buffers] whether the buffer is still to be placed.
        offsets: [states, buffers] offsets of placed buffers.
    """

    floors: Ints
    loads: Ints
    lowest: Ints
    waiting: Bools
    offsets: Ints

    def rows(self, chosen: Ints) -> _States:
        return _States(
            self.floors[chosen],
            self.loads[chosen],
            self.lowest[chosen],
            self.waiting[chosen],
            self.offsets[chosen],
        )

    def __len__(self) -> int:
        return len(self.floors)


@dataclass(frozen=True)
class BeamEnd:
    """The end of a beam search.

    Attributes:
        offsets: [buffers] offsets in units; None without a result.
        levels: number of buffers placed in the furthest states.
    """

    offsets: Ints | None
    levels: int


def search(instance: Instance, capacity: int, beam: Beam, is_over: Callable[[], bool]) -> BeamEnd:
    """Search offsets of all buffers within a capacity.

    Args:
        instance: the buffers.
        capacity: size of the arena, in units.
        beam: parameters of the search.
        is_over: returns whether to stop.
    """
    return _BeamSearch(instance.backwards() if beam.backwards else instance, capacity, beam).run(is_over)


class _BeamSearch:
    def __init__(self, instance: Instance, capacity: int, beam: Beam) -> None:
        self._capacity = capacity
        self._beam = beam
        self._sizes = instance.sizes
        self._members = instance.members  # [buffers, sections]
        self._overlaps = instance.overlaps  # [buffers, buffers]
        # Largest height before a state is given up.
        fits = capacity + instance.load < 2**31
        weights = self._members * self._sizes[:, None]
        self._weights: Whole = weights.astype(np.int32) if fits else weights
        self._load = self._weights.sum(axis=0, dtype=np.int64)
        self._area = self._weights.sum(axis=1, dtype=np.int64)
        self._random = np.random.default_rng(beam.seed)

    def run(self, is_over: Callable[[], bool]) -> BeamEnd:
        count = len(self._sizes)
        states = _States(
            np.zeros((1, len(self._load)), np.int64),
            self._load[None, :].copy(),
            np.zeros((1, count), np.int64),
            np.ones((1, count), np.bool_),
            np.zeros((1, count), np.int64),
        )
        for level in range(count):
            if is_over():
                return BeamEnd(None, level)
            states = self._best(self._children(states))
            if not len(states):
                return BeamEnd(None, level)
        return BeamEnd(states.offsets[0], count)

    def _children(self, states: _States) -> _States:
        """Return all child states, with one more buffer each.

        Each state fills its lowest section: one of the buffers that can lie on its floor is placed, or none, and then
        the floor rises to the next buffer's least offset.
        """
        parents: list[Ints] = []
        placed: list[Ints] = []
        floors: list[Ints] = []
        lowest: list[Ints] = []
        origin, now, skipped = np.arange(len(states)), states, np.zeros(len(states), np.int64)
        while len(now):
            height, corner = self._corners(now)
            rows = np.arange(len(now))
            there = now.waiting & self._members[:, corner].T
            fits = there & (now.lowest == height[:, None])
            row, buffer = np.nonzero(fits)
            parents.append(origin[row])
            placed.append(buffer)
            floors.append(now.floors[row])
            lowest.append(now.lowest[row])
            raised = self._raised(now, there, fits)
            loads = now.loads[rows, corner]
            can_rise = raised + loads <= self._capacity
            skipped = skipped + fits.any(axis=1)
            can_rise &= skipped <= self._beam.skips
            origin, raised, corner, skipped = (each[can_rise] for each in (origin, raised, corner, skipped))
            now = now.rows(np.flatnonzero(can_rise))
            now.floors[np.arange(len(now)), corner] = raised
            np.maximum(now.lowest, self._members[:, corner].T * raised[:, None], out=now.lowest)
        return self._placed(states, *map(np.concatenate, (parents, placed, floors, lowest)))

    def _corners(self, states: _States) -> tuple[Ints, Ints]:
        """Return the [states] lowest open height, and the section to fill."""
        open_floors = np.where(states.loads > 0, states.floors, _NOWHERE)
        height: Ints = open_floors.min(axis=1)
        if self._beam.corner == "first":
            return height, open_floors.argmin(axis=1)
        if self._beam.corner == "tight":
            ranks = -(states.floors + states.loads)
        else:
            fits = states.waiting & (states.lowest == height[:, None])
            ranks = (fits.astype(np.float32) @ self._members.astype(np.float32)).astype(np.int64)
        return height, np.where(open_floors == height[:, None], ranks, _NOWHERE).argmin(axis=1)

    def _raised(self, states: _States, there: Bools, fits: Bools) -> Ints:
        """Return the [states] least height above the floor for a buffer."""
        raised: Ints = np.where(there & ~fits, states.lowest, _NOWHERE).min(axis=1)
        np.minimum(raised, 2 * self._capacity + 1, out=raised)
        return raised

    def _placed(self, states: _States, parents: Ints, placed: Ints, floors: Ints, lowest: Ints) -> _States:
        rows = np.arange(len(parents))
        starts = lowest[rows, placed]
        tops = (starts + self._sizes[placed])[:, None]
        children = _States(
            np.where(self._members[placed], tops, floors),
            states.loads[parents] - self._weights[placed],
            np.maximum(lowest, self._overlaps[placed] * tops),
            states.waiting[parents],
            states.offsets[parents],
        )
        children.waiting[rows, placed] = False
        children.offsets[rows, placed] = starts
        return children

    def _best(self, states: _States) -> _States:
        """Return the states to keep.

        Hopeless and dominated states are left out, and the best of the rest are kept.
        """
        states = self._without_dominated(states)
        areas = (~states.waiting) @ self._area + 1.0
        cheap = self._scores(states.floors + states.loads, areas)
        states, areas = self._first(states, areas, cheap, _LOOKED_AT * self._beam.width)
        heights = self._heights(states)
        hopeful = np.flatnonzero((heights <= self._capacity).all(axis=1))
        states, areas, heights = states.rows(hopeful), areas[hopeful], heights[hopeful]
        return self._first(states, areas, self._scores(heights, areas), self._beam.width)[0]

    def _first(self, states: _States, areas: Floats, scores: Floats, count: int) -> tuple[_States, Floats]:
        order = np.argsort(scores, kind="stable")[:count]
        return states.rows(order), areas[order]

    def _scores(self, heights: Ints, areas: Floats) -> Floats:
        waste = (heights - self._load).sum(axis=1)
        weight = self._beam.waste_weight
        scores = waste / areas if weight is None else weight * waste + 2.0 * self._area.sum() - areas
        if self._beam.noise:
            scores = scores * (1 + self._beam.noise * self._random.standard_normal(len(scores)))
        return np.asarray(scores, dtype=np.float64)

    def _without_dominated(self, states: _States) -> _States:
        """Leave out dominated states.

        Another state has the same buffers placed, and no floor higher.
        """
        keys = np.packbits(states.waiting, axis=1)
        sums = states.floors.sum(axis=1)
        order = np.lexsort((sums, *keys.T[::-1]))
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (keys[order[1:]] != keys[order[:-1]]).any(axis=1)
        leaders = order[np.flatnonzero(is_first)[np.cumsum(is_first) - 1]]
        is_dominated = ~is_first & (states.floors[leaders] <= states.floors[order]).all(axis=1)
        return states.rows(np.sort(order[~is_dominated]))

    def _heights(self, states: _States) -> Ints:
        """Return the [states, sections] lower bounds on heights.

        Above any offset lie all waiting buffers that cannot begin below.
        """
        left = int(np.count_nonzero(states.waiting[0])) if len(states) else 0  # the same number in each state
        if not left:
            return states.floors
        # Waiting buffers come first, the highest of them foremost.
        order = np.argsort(np.where(states.waiting, -states.lowest, _NOWHERE), axis=1, kind="stable")[:, :left]
        weights = self._weights[order]
        stacked: Whole = np.cumsum(weights, axis=1, dtype=weights.dtype)
        stacked += np.take_along_axis(states.lowest, order, axis=1)[:, :, None].astype(weights.dtype)
        stacked *= weights > 0
        heights: Ints = np.maximum(stacked.max(axis=1), states.floors)
        return heights
