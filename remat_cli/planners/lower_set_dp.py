"""Algorithm 1 of Kusumoto et al. 2019: chains of lower sets of least (or most) overhead under equation 2.

A chain {} = L_0 < L_1 < ... < L_k = V cuts the forward pass into blocks V_i = L_i \\ L_(i-1). The boundary of each L_i
stays cached; the rest of a block is dropped and recomputed for the block's backward pass. With m the bytes cached so
far, stepping from L to L' costs

    peak   m + 2 M(L' \\ L) + M(d+(L') \\ L') + M(d-(d+(L')) \\ L')      (equation 2)
    time   T((L' \\ L) \\ dL')                                         (equation 1)
    cache  m' = m + M(dL' \\ L)

All arithmetic is exact: sums of bytes and times below 2^53 in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from remat_cli.planners.lower_set_options import Strategy
from remat_cli.planners.lower_sets import LowerSets

# Slots of the first, rough pass.
_ROUGH_SLOTS = 200
_UNREACHED = np.iinfo(np.int64).max // 4


@dataclass(frozen=True, eq=False)
class Fronts:
    """For each lower set, the chains ending in it that no other such chain dominates: its Pareto front of points.

    Attributes:
        time: [P] int64, overhead in DP units; ascending within a front for TIME, descending for MEMORY.
        cached: [P] int64, least bytes cached at that overhead; descending within a front.
        previous: [P] int64, the point that each point was reached from.
        start: [L + 1] int64, where the points of each set begin.
    """

    time: NDArray[np.int64]
    cached: NDArray[np.int64]
    previous: NDArray[np.int64]
    start: NDArray[np.int64]

    @property
    def is_feasible(self) -> bool:
        """Whether some chain reaches V."""
        return bool(self.start[-1] > self.start[-2])

    def chain(self) -> list[int]:
        """Return the sets L_1 to L_k = V of the chain that the strategy asks for: the first point of V's front."""
        point = int(self.start[-2])
        chain = []
        while point > 0:
            chain.append(int(np.searchsorted(self.start, point, side="right")) - 1)
            point = int(self.previous[point])
        return chain[::-1]


class LowerSetDP:
    """The dynamic program over one family; transitions are tabulated once and serve every budget.

    Attributes:
        sets: the family.
        slots: times are counted in about this many slots (see `scaled_times`).
    """

    def __init__(self, sets: LowerSets, slots: int) -> None:
        self.sets = sets
        self.slots = slots
        members = sets.members.astype(np.float64)
        boundary = sets.boundary.astype(np.float64)
        # Row L', column L. Because L is a subset of L', M(L' \\ L) = M(L') - M(L), and so on.
        shared = members @ members.T
        sizes = np.diagonal(shared)
        self._follows = (shared == sizes[None, :]) & (sizes[:, None] > sizes[None, :])
        self._block_peak = 2 * (sets.bytes[:, None] - sets.bytes[None, :]) + sets.tail_bytes[:, None]
        kept_bytes = boundary @ (sets.forward.bytes[:, None] * members.T)
        self._step_cached = ((boundary @ sets.forward.bytes)[:, None] - kept_bytes).astype(np.int64)
        self._predecessors = [np.flatnonzero(row) for row in self._follows]

    @cached_property
    def _step_time(self) -> NDArray[np.int64]:
        return self._step_times(self.slots)

    @cached_property
    def _rough_step_time(self) -> NDArray[np.int64]:
        return self._step_times(_ROUGH_SLOTS)

    def _step_times(self, slots: int) -> NDArray[np.int64]:
        """Tabulate equation 1: row L', column L."""
        time = scaled_times(self.sets.forward.time, slots).astype(np.float64)
        members, boundary = self.sets.members.astype(np.float64), self.sets.boundary.astype(np.float64)
        set_time = members @ time
        kept_time = boundary @ (time[:, None] * members.T)
        step_time = (set_time - boundary @ time)[:, None] - set_time[None, :] + kept_time
        return np.asarray(step_time, dtype=np.int64)

    def largest_budget(self) -> int:
        """Return a budget that admits every chain, as m <= M(L): no larger one changes anything."""
        return int(2 * self.sets.bytes[-1] + self.sets.tail_bytes.max())

    def is_feasible(self, budget: int) -> bool:
        """Tell whether some chain of the family has a peak of at most `budget` by equation 2.

        Fewer cached bytes are better for every continuation, so one number a set decides this; time has no say.
        """
        cached = np.full(len(self.sets), _UNREACHED, dtype=np.int64)
        cached[0] = 0
        for target in range(1, len(self.sets)):
            sources = self._predecessors[target]
            before = cached[sources]
            fits = before + self._block_peak[target, sources] <= budget
            if fits.any():
                cached[target] = (before + self._step_cached[target, sources])[fits].min()
        return bool(cached[-1] < _UNREACHED)

    def smallest_budget(self) -> int:
        """Return the least budget, to the byte, under which the family has a chain by equation 2."""
        low, high = 0, self.largest_budget()
        while low < high:
            middle = (low + high) // 2
            if self.is_feasible(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def chain(self, budget: int, strategy: Strategy) -> list[int] | None:
        """Return the sets L_1 to L_k = V of the best chain under `budget`; None where there is none.

        For TIME, the best chain by rough times bounds the overhead from above, so that the fronts by exact ones need
        no points beyond it. That is what makes fine slots affordable where the budget is loose.
        """
        most = None
        if strategy is Strategy.TIME and self.slots > _ROUGH_SLOTS:
            rough = self._fronts(budget, strategy, self._rough_step_time, None)
            if not rough.is_feasible:
                return None
            most = self.overhead(rough.chain())
        fronts = self._fronts(budget, strategy, self._step_time, most)
        return fronts.chain() if fronts.is_feasible else None

    def overhead(self, chain: list[int]) -> int:
        """Return the overhead of a chain by equation 1, in slots."""
        return int(self._step_time[chain, [0, *chain[:-1]]].sum())

    def _fronts(self, budget: int, strategy: Strategy, step_time: NDArray[np.int64], most: int | None) -> Fronts:
        """Return the Pareto front of every set under `budget` (Algorithm 1, lines 2 to 14).

        The published rule for skipping dominated entries holds for TIME. MEMORY needs its own direction, in which
        an entry is dominated by one with at least its overhead and at most its cached bytes.

        Args:
            budget: B of equation 2.
            strategy: the direction.
            step_time: what each step adds to the overhead.
            most: points of more overhead are left out; None keeps all.
        """
        count = len(self.sets)
        start = np.zeros(count + 1, dtype=np.int64)
        start[1:] = 1
        time, cached, previous = (_Growing(np.zeros(1, dtype=np.int64)) for _ in range(3))
        for target in range(1, count):
            points, source = _points_of(self._predecessors[target], start)
            before = cached.values[points]
            fits = before + self._block_peak[target, source] <= budget
            reached_time = time.values[points] + step_time[target, source]
            if most is not None:
                fits &= reached_time <= most
            points, source, reached_time = points[fits], source[fits], reached_time[fits]
            reached_cached = before[fits] + self._step_cached[target, source]
            front = pareto_front(reached_time, reached_cached, strategy)
            time.extend(reached_time[front])
            cached.extend(reached_cached[front])
            previous.extend(points[front])
            start[target + 1] = start[target] + len(front)
        return Fronts(time.values, cached.values, previous.values, start)


class _Growing:
    """An int64 array that grows at its end, for the points of all fronts."""

    def __init__(self, values: NDArray[np.int64]) -> None:
        self._room = values
        self._length = len(values)

    def extend(self, values: NDArray[np.int64]) -> None:
        end = self._length + len(values)
        if end > len(self._room):
            self._room = np.concatenate([self._room, np.empty(end + len(self._room), dtype=np.int64)])
        self._room[self._length : end] = values
        self._length = end

    @property
    def values(self) -> NDArray[np.int64]:
        return self._room[: self._length]


def _points_of(sets: NDArray[np.int64], start: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of all points of these sets' fronts, and for each the set that it belongs to."""
    lengths = start[sets + 1] - start[sets]
    source = np.repeat(sets, lengths)
    ends = np.cumsum(lengths)
    within = np.arange(len(source)) - np.repeat(ends - lengths, lengths)
    points: NDArray[np.int64] = start[source] + within
    return points, source


def pareto_front(time: NDArray[np.int64], cached: NDArray[np.int64], strategy: Strategy) -> NDArray[np.int64]:
    """Return the numbers of the points that no other dominates: less cached and, for TIME, less (MEMORY, more) time.

    In the order of `Fronts`. Of equal points the first is kept: its predecessor is the smallest set.
    """
    if not len(time):
        return np.zeros(0, dtype=np.int64)
    # One pass over a dense table of times, which are small integers (see `scaled_times`).
    slot = time - int(time.min()) if strategy is Strategy.TIME else int(time.max()) - time
    best = np.full(int(slot.max()) + 1, _UNREACHED, dtype=np.int64)
    np.minimum.at(best, slot, cached)
    lowest_before = np.minimum.accumulate(np.concatenate([[_UNREACHED], best[:-1]]))
    best_points = np.flatnonzero(cached == best[slot])[::-1]
    point_of_slot = np.zeros(len(best), dtype=np.int64)
    point_of_slot[slot[best_points]] = best_points  # backwards, so that the first point is the one that stays
    front: NDArray[np.int64] = point_of_slot[np.flatnonzero(best < lowest_before)]
    return front


def scaled_times(time: NDArray[np.int64], slots: int) -> NDArray[np.int64]:
    """Return times whose sum is about `slots`, so that fronts stay short; as they are where their sum is no more.

    Rounded to the nearest slot. The DP then chooses by the rounded times; what a plan really takes is measured by
    replaying it.
    """
    total = int(time.sum())
    if total <= slots:
        return time
    return np.asarray(np.rint(time * (slots / total)), dtype=np.int64)
