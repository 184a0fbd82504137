"""The steps of the lower-set DP between sets, with their costs.

A step from L to L' runs one block of the forward pass, V' = L' \\ L. With m the bytes cached before it, it needs

    peak   m + 2 M(V') + M(d+(L') \\ L') + M(d-(d+(L')) \\ L')      (equation 2 of Kusumoto et al. 2019)

and caches M(dL' \\ L) more. A family of 27,000 sets has 120 million steps: they are found row by row, for one budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat_cli.errors import PlannerRefuses
from remat_cli.planners.published.lower_sets.families import LowerSets

UNREACHED = np.iinfo(np.int64).max // 4
# The limit on steps. At 14 bytes a step, and as much again for the steps of a smaller budget: 4.2 GB.
_MOST_STEPS = 150_000_000
# The number of vertices in a table of sums over subsets, looked up by one byte.
_BITS = 8


class StepsInto(NamedTuple):
    """Steps into one set L'.

    Attributes:
        source: [S] int32, ascending: the set L of each step.
        cached: [S] int64, M(dL' \\ L).
        kept: [S] unsigned, T(dL' \\ L): time of the vertices that are never recomputed, in the DP's units.
    """

    source: NDArray[np.int32]
    cached: NDArray[np.int64]
    kept: NDArray[np.unsignedinteger]

    def where(self, chosen: NDArray[np.bool_]) -> StepsInto:
        """Return the steps chosen by [S] bool.

        If all are chosen, the result is this object, not a copy.
        """
        return self if chosen.all() else StepsInto(self.source[chosen], self.cached[chosen], self.kept[chosen])


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps that chains of a family can take under a budget.

    Attributes:
        sets: the family.
        budget: B of equation 2; the steps serve every budget up to B.
        into: [L] steps into each set.
    """

    sets: LowerSets
    budget: int
    into: Sequence[StepsInto]

    @classmethod
    def within(cls, sets: LowerSets, time: NDArray[np.int64], budget: int) -> Steps:
        """Find the steps of `sets` under `budget`.

        `time` has the [V] times of the vertices.

        Raises:
            PlannerRefuses: there are too many steps to hold in memory.
        """
        finder = _StepFinder(sets, time)
        lightest = _Lightest(sets, budget)
        into, count = [finder.none], 0
        for target in range(1, len(sets)):
            smaller = finder.subsets(target)
            # Counted for any budget: a search continues to larger budgets, and must not be refused halfway.
            count += int(np.count_nonzero(smaller))
            if count > _MOST_STEPS:
                raise PlannerRefuses(
                    f"the {len(sets)} lower sets of {sets.forward.graph.name!r} have too many steps between them: "
                    f"{count} were found into the first {target}, and at most {_MOST_STEPS} fit in memory",
                    hint="use approx_dp, which takes one set for each forward op",
                )
            steps = finder.steps_into(target, smaller & lightest.fits(slice(target), target))
            lightest.reach(target, steps.source, steps.cached)
            into.append(steps)
        return cls(sets, budget, into)

    def lightest_chain(self, budget: int) -> int | None:
        """Return the peak of the chain that caches the fewest bytes.

        None if no chain fits.

        Fewer cached bytes are better for every continuation, so one number per set decides whether there is a chain
        under `budget`. Time does not matter.
        """
        lightest = self._lightest(budget)
        return int(lightest.peak[-1]) if lightest.cached[-1] < UNREACHED else None

    def live(self, budget: int) -> LiveSteps | None:
        """Return the steps of chains from {} to V under `budget`.

        A few other steps may be among them. None if no chain fits.
        """
        lightest = self._lightest(budget)
        if lightest.cached[-1] >= UNREACHED:
            return None
        count = len(self.sets)
        most_cached = np.full(count, -1, dtype=np.int64)
        most_cached[-1] = budget
        into = list(self.into)
        for target in range(count - 1, 0, -1):
            steps = self.into[target]
            room = _room(self.sets, budget, target, steps, most_cached[target])
            into[target] = steps.where(lightest.cached[steps.source] <= room)
            # Each source occurs once, so plain indexing loses no value.
            most_cached[steps.source] = np.maximum(most_cached[steps.source], room)
        return LiveSteps(Steps(self.sets, budget, into), most_cached)

    def _lightest(self, budget: int) -> _Lightest:
        lightest = _Lightest(self.sets, budget)
        for target in range(1, len(self.sets)):
            steps = self.into[target]
            fits = lightest.fits(steps.source, target)
            lightest.reach(target, steps.source[fits], steps.cached[fits])
        return lightest


class LiveSteps(NamedTuple):
    """Steps of chains that fit a budget from {} to V.

    Attributes:
        steps: the steps.
        most_cached: [L] int64, the most bytes that can be cached at each set so that some chain fits from there to V;
            -1 if none fits.
    """

    steps: Steps
    most_cached: NDArray[np.int64]

    def room(self, target: int, steps: StepsInto) -> NDArray[np.int64]:
        """Return [S] the most bytes that may be cached before each step.

        The steps lead into `target`; with more bytes no chain fits to V.
        """
        return _room(self.steps.sets, self.steps.budget, target, steps, self.most_cached[target])


def _room(sets: LowerSets, budget: int, target: int, steps: StepsInto, most_cached: np.int64) -> NDArray[np.int64]:
    """Return [S] the bytes that may be cached before each step.

    The steps lead into `target`; `most_cached` is the limit after the step.
    """
    under_peak = budget - 2 * sets.bytes[target] - sets.tail_bytes[target] + 2 * sets.bytes[steps.source]
    room: NDArray[np.int64] = np.minimum(under_peak, most_cached - steps.cached)
    return room


class _Lightest:
    """The least bytes cached at each set, over chains within the budget.

    Sets are reached in ascending order.
    """

    def __init__(self, sets: LowerSets, budget: int) -> None:
        self.cached = np.full(len(sets), UNREACHED, dtype=np.int64)
        self.peak = np.zeros(len(sets), dtype=np.int64)  # peak of that chain
        self._double_bytes = 2 * sets.bytes
        self._spare = budget - self._double_bytes - sets.tail_bytes
        # A step's peak is the sum of a term of the source and a term of the target.
        self._before = self.cached.copy()
        self._budget = budget
        self.cached[0] = self._before[0] = 0

    def fits(self, sources: NDArray[np.int32] | slice, target: int) -> NDArray[np.bool_]:
        """Tell for each source whether its step to `target` fits the budget."""
        fits: NDArray[np.bool_] = self._before[sources] <= self._spare[target]
        return fits

    def reach(self, target: int, source: NDArray[np.int32], cached: NDArray[np.int64]) -> None:
        """Take the step into `target` that caches the fewest bytes.

        All given steps fit.
        """
        if not len(source):
            return
        after = self.cached[source] + cached
        best = int(after.argmin())
        self.cached[target] = after[best]
        self._before[target] = after[best] - self._double_bytes[target]
        needed = self._budget - self._spare[target] + self._before[source[best]]
        self.peak[target] = max(self.peak[source[best]], needed)


class _StepFinder:
    """Finds the steps into each set, one set after another."""

    def __init__(self, sets: LowerSets, time: NDArray[np.int64]) -> None:
        self._sets = sets
        self._words = _packed_words(sets.members)
        self._outside = np.ascontiguousarray(~sets.members.T).view(np.uint8)
        self._time = time
        # Reused: the system would release large temporary arrays, and clear new ones for every target.
        self._room = np.zeros((2, len(sets)), dtype=np.uint64)
        self._kept_type = np.min_scalar_type(int(time.sum()))
        self.none = self.steps_into(0, np.zeros(0, dtype=np.bool_))

    def subsets(self, target: int) -> NDArray[np.bool_]:
        """Return [target] bool: whether each earlier set is a subset of `target`."""
        excess, missing = self._room[0, :target], self._room[1, :target]
        excess[:] = 0
        for word in self._words:
            np.bitwise_and(word[:target], ~word[target], out=missing)
            np.bitwise_or(excess, missing, out=excess)
        is_subset: NDArray[np.bool_] = excess == 0
        return is_subset

    def steps_into(self, target: int, chosen: NDArray[np.bool_]) -> StepsInto:
        """Return the steps into `target` from the chosen earlier sets."""
        source = np.flatnonzero(chosen).astype(np.int32)
        return StepsInto(source, *self._sums_outside(np.flatnonzero(self._sets.boundary[target]), target, source))

    def _sums_outside(
        self, vertices: NDArray[np.int64], target: int, source: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.unsignedinteger]]:
        """Return the bytes and the time of the vertices outside each source.

        One byte says which of eight vertices are outside a set, and one look-up gives their sum.
        """
        cached = np.zeros(len(source), dtype=np.int64)
        kept = np.zeros(len(source), dtype=self._kept_type)
        for first in range(0, len(vertices), _BITS):
            some = vertices[first : first + _BITS]
            pattern = np.zeros(target, dtype=np.uint8)
            for bit, vertex in enumerate(some):
                pattern |= self._outside[vertex, :target] << np.uint8(bit)
            pattern = pattern[source]
            cached += _subset_sums(self._sets.forward.bytes[some])[pattern]
            kept += _subset_sums(self._time[some]).astype(self._kept_type)[pattern]
        return cached, kept


def _subset_sums(weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return [2^n] the sum of every subset of n weights.

    Bit i of a subset's number stands for weight i.
    """
    sums = np.zeros(1, dtype=np.int64)
    for weight in weights:
        sums = np.concatenate([sums, sums + weight])
    return sums


def _packed_words(members: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return [words, L] each set as 64-bit words."""
    packed = np.packbits(members, axis=1)
    padded = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8)))
    return np.ascontiguousarray(padded.view(np.uint64).T)
