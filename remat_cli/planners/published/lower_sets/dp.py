"""The dynamic program over lower sets (Kusumoto et al. 2019, Algorithm 1).

It finds the chain of least (or most) overhead under equation 2. A chain {} = L_0 < L_1 < ... < L_k = V cuts the forward
pass into blocks V_i = L_i \\ L_(i-1). The boundary of each L_i stays cached; the rest of a block is dropped and
recomputed for the block's backward pass. A step from L to L' costs

    overhead   T((L' \\ L) \\ dL')   the recomputed part (equation 1)
    kept time  T(dL' \\ L)          the rest

TIME asks for the chain of least overhead, MEMORY for the chain of most overhead. The two costs of a chain sum to T(V),
so the most overhead is the least kept time; and MEMORY's Pareto front is that of kept time. (The published rule for
skipping dominated entries holds for TIME only: reversed at the end alone, it misses chains of more overhead.)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from remat_cli.planners.published.lower_sets.families import LowerSets
from remat_cli.planners.published.lower_sets.options import Strategy
from remat_cli.planners.published.lower_sets.transitions import UNREACHED, LiveSteps, Steps, StepsInto

# Fronts are built up to these parts of the distance from a lower bound to the largest cost, one after the other.
_DEEPENING = (64, 32, 16, 8, 4, 2, 1)


@dataclass(frozen=True, eq=False)
class Fronts:
    """The Pareto fronts of all lower sets.

    A set's front holds the chains ending in the set that no other such chain dominates, as points of cost and cached
    bytes.

    Attributes:
        cost: [P] int64, overhead (TIME) or kept time (MEMORY), in DP units; ascending within a front.
        cached: [P] int64, least bytes cached at that cost; descending within a front.
        previous: [P] int64, the point before each point on its chain.
        start: [L + 1] int64, position of the first point of each set.
    """

    cost: NDArray[np.int64]
    cached: NDArray[np.int64]
    previous: NDArray[np.int64]
    start: NDArray[np.int64]

    @property
    def is_feasible(self) -> bool:
        """Whether a chain reaches V."""
        return bool(self.start[-1] > self.start[-2])

    def chain(self) -> list[int]:
        """Return the sets L_1 to L_k = V of the best chain.

        Its point is the first of V's front.
        """
        point = int(self.start[-2])
        chain = []
        while point > 0:
            chain.append(int(np.searchsorted(self.start, point, side="right")) - 1)
            point = int(self.previous[point])
        return chain[::-1]


class LowerSetDP:
    """The dynamic program over one family of lower sets.

    Attributes:
        sets: the family.
        time: [V] int64, times of the vertices in slots (see `scaled_times`).
    """

    def __init__(self, sets: LowerSets, slots: int) -> None:
        self.sets = sets
        self.time = scaled_times(sets.forward.time, slots)
        self._known: Steps | None = None

    def largest_budget(self) -> int:
        """Return a budget that admits every chain, as m <= M(L)."""
        return int(2 * self.sets.bytes[-1] + self.sets.tail_bytes.max())

    def is_feasible(self, budget: int) -> bool:
        """Tell whether equation 2 admits a chain under `budget`."""
        return self._steps(budget).lightest_chain(budget) is not None

    def smallest_budget(self, known: int | None = None) -> int:
        """Return the least budget with a chain by equation 2, to the byte.

        Args:
            known: a budget under which there is a chain, such as the least of a smaller family.
        """
        low, high = 0, self.largest_budget() if known is None else known
        steps = self._steps(high)
        # First try a byte less: if the smaller family has a best chain, that is the only try.
        middle = high - 1
        while low < high:
            peak = steps.lightest_chain(middle)
            if peak is None:
                low = middle + 1
            else:
                high = peak
            middle = (low + high) // 2
        return low

    def chain(self, budget: int, strategy: Strategy) -> list[int] | None:
        """Return the sets L_1 to L_k = V of the best chain under `budget`.

        None if there is no chain. Fronts need no points that cost more than the answer, which is unknown: so their cost
        is limited first to little more than a lower bound, then to more and more.
        """
        live = self._steps(budget).live(budget)
        if live is None:
            return None
        costs = _ChainCosts.of(live, strategy, self.sets.members @ self.time)
        largest = int(self.time.sum())
        for divisor in _DEEPENING:
            fronts = self._fronts(live, costs, costs.least + (largest - costs.least) // divisor)
            if fronts.is_feasible:
                return fronts.chain()
        raise AssertionError("every chain costs at most the time of all vertices")

    def overhead(self, chain: list[int]) -> int:
        """Return the overhead of a chain by equation 1, in slots."""
        members, boundary = self.sets.members, self.sets.boundary
        blocks = (members[target] & ~members[source] & ~boundary[target] for source, target in pairwise([0, *chain]))
        return sum(int(self.time[block].sum()) for block in blocks)

    def _steps(self, budget: int) -> Steps:
        if self._known is None or self._known.budget < budget:
            self._known = None  # frees the memory
            self._known = Steps.within(self.sets, self.time, budget)
        return self._known

    def _fronts(self, live: LiveSteps, costs: _ChainCosts, most: int) -> Fronts:
        """Return the Pareto front of every set, for costs up to `most` at V.

        Algorithm 1, lines 2 to 14. Points that no chain continues to V within the budget are left out.
        """
        start = np.zeros(len(self.sets) + 1, dtype=np.int64)
        start[1:] = 1
        cost, cached, previous = (_Growing(np.zeros(1, dtype=np.int64)) for _ in range(3))
        for target, steps in enumerate(live.steps.into[1:], start=1):
            step_cost = costs.of_steps(target, steps)
            few = costs.before[steps.source] + step_cost <= most - costs.after[target]
            steps, step_cost = steps.where(few), step_cost[few]
            room = live.room(target, steps)
            points, step = _points_of(steps.source, start)
            reached_cost = cost.values[points] + step_cost[step]
            fits = (cached.values[points] <= room[step]) & (reached_cost <= most - costs.after[target])
            points, reached_cost = points[fits], reached_cost[fits]
            reached_cached = cached.values[points] + steps.cached[step[fits]]
            front = pareto_front(reached_cost, reached_cached)
            cost.extend(reached_cost[front])
            cached.extend(reached_cached[front])
            previous.extend(points[front])
            start[target + 1] = start[target] + len(front)
        return Fronts(cost.values, cached.values, previous.values, start)


@dataclass(frozen=True, eq=False)
class _ChainCosts:
    """The costs of chains: overhead (TIME) or kept time (MEMORY).

    Attributes:
        strategy: selects overhead or kept time.
        set_time: [L] int64, T(L).
        before: [L] int64, a lower bound on the cost of chains from {} to each set.
        after: [L] int64, a lower bound on the cost of chains from each set to V.
    """

    strategy: Strategy
    set_time: NDArray[np.int64]
    before: NDArray[np.int64]
    after: NDArray[np.int64]

    @classmethod
    def of(cls, live: LiveSteps, strategy: Strategy, set_time: NDArray[np.int64]) -> _ChainCosts:
        """Bound the costs by the cheapest chains of live steps.

        Cached bytes do not count.
        """
        into = live.steps.into
        before, after = (np.full(len(into), UNREACHED, dtype=np.int64) for _ in range(2))
        before[0] = after[-1] = 0
        costs = cls(strategy, set_time, before, after)
        for target, steps in enumerate(into[1:], start=1):
            before[target] = (before[steps.source] + costs.of_steps(target, steps)).min(initial=UNREACHED)
        for target in range(len(into) - 1, 0, -1):
            source = into[target].source
            after[source] = np.minimum(after[source], after[target] + costs.of_steps(target, into[target]))
        return costs

    @property
    def least(self) -> int:
        """The least cost of any chain."""
        return int(self.after[0])

    def of_steps(self, target: int, steps: StepsInto) -> NDArray[np.int64]:
        """Return [S] the cost of each step into `target`."""
        kept = steps.kept.astype(np.int64)
        if self.strategy is Strategy.MEMORY:
            return kept
        overhead: NDArray[np.int64] = self.set_time[target] - self.set_time[steps.source] - kept
        return overhead


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


def _points_of(sets: NDArray[np.int32], start: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all points of the sets' fronts, with the position of each set.

    Positions are those within `sets`.
    """
    first = start[sets]
    lengths = start[sets + 1] - first
    place = np.repeat(np.arange(len(sets)), lengths)
    skipped = np.cumsum(lengths) - lengths
    points: NDArray[np.int64] = np.arange(len(place)) + (first - skipped)[place]
    return points, place


def pareto_front(cost: NDArray[np.int64], cached: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the points that no other point dominates.

    A point dominates others of no less cost and no fewer cached bytes. The result ascends in cost. Of equal points the
    first is kept: its predecessor is the smallest set.
    """
    if not len(cost):
        return np.zeros(0, dtype=np.int64)
    # One pass over a dense table of costs, which are small integers (see `scaled_times`).
    least = int(cost.min())
    slot = cost - least
    best = np.full(int(cost.max()) - least + 1, UNREACHED, dtype=np.int64)
    np.minimum.at(best, slot, cached)
    lowest_before = np.minimum.accumulate(np.concatenate([[UNREACHED], best[:-1]]))
    best_points = np.flatnonzero(cached == best[slot])[::-1]
    point_of_slot = np.zeros(len(best), dtype=np.int64)
    point_of_slot[slot[best_points]] = best_points  # backwards, so that the first point stays
    front: NDArray[np.int64] = point_of_slot[np.flatnonzero(best < lowest_before)]
    return front


def scaled_times(time: NDArray[np.int64], slots: int) -> NDArray[np.int64]:
    """Scale times to a sum of about `slots`, so that fronts stay short.

    Times with a smaller sum stay unchanged. Others are rounded to the nearest slot. The DP chooses by the rounded
    times; plans are measured by replay.
    """
    total = int(time.sum())
    if total <= slots:
        return time
    return np.asarray(np.rint(time * (slots / total)), dtype=np.int64)
