"""Exact search for offsets, or for the proof that none exist.

Buffers are placed one by one from the ground up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from remat_cli.allocation import exact_kernel as kernel
from remat_cli.allocation.exact_kernel import Ints, Neighbours, State
from remat_cli.allocation.instance import Instance
from remat_cli.machine.compiled import can_compile

# Largest number of overlapping pairs of buffers for a search: its arrays have as many entries.
MOST_OVERLAPS = 2_000_000
# Work of a step for each buffer, about seconds of a usual core; plain Python takes longer.
_WORK_OF_BUFFER = 7e-9 * (1 if can_compile() else 200)
# Steps between two looks at the clock, and steps times buffers.
_STEPS_AT_ONCE, _BUFFERS_AT_ONCE = 50_000, 10_000_000
# Least steps of a turn for each buffer; new searches in a turn.
_LEAST_STEPS, _RESTARTS = 2, 16
# Buffers that are ranked anew at one time, for each buffer; beyond that, groups keep their ranks.
_MOST_RANKED = 64
_RULES = (kernel.BY_OFFSET, kernel.LOWEST, kernel.FEWEST)
# Standard deviations for shuffling ranks: of their logarithms, and as a share of the buffers.
_STRETCH, _SHIFT = 0.3, 0.03


class ExactSearch:
    """One resumable search for offsets within a capacity.

    Attributes:
        is_over: the search has ended.
        is_proof: every arrangement is ruled out: no offsets exist.
        offsets: [buffers] offsets in units; None without a result.
        steps: number of buffers placed so far.
    """

    def __init__(
        self,
        instance: Instance,
        capacity: int,
        order: Ints,
        near: Neighbours,
        rule: int = kernel.BY_OFFSET,
        *,
        is_ranked_anew: bool = False,
    ) -> None:
        """Prepare the search.

        Args:
            instance: the buffers.
            capacity: size of the arena, in units; no buffer is larger.
            order: [buffers] order of buffers that may begin at the same offset.
            near: `neighbours` of the instance.
            rule: place buffers by ascending offset; or fill the lowest section first, or the place that the fewest
                buffers can fill. The last two leave more room empty in each pass.
            is_ranked_anew: rank what falls apart by its own loads, and `order` among equal ones.
        """
        self.offsets: Ints | None = None
        self.steps = 0
        self.is_over = False
        self.is_proof = False
        self._capacity, self._near = capacity, near
        self._instance, self._order = instance, order
        self._rule, self._skips, self._is_ranked_anew = rule, 0, is_ranked_anew
        self._state = self._first_state()

    def go_on(self, steps: int) -> None:
        """Place at most a number of buffers."""
        end, taken = kernel.go_on(self._near, self._state, self._capacity, steps)
        self.steps += taken
        if end == kernel.FOUND:
            self.is_over, self.offsets = True, self._state.buffers[kernel.OFFSET].copy()
        elif end == kernel.LOST:
            self.is_over = True
        elif end == kernel.NONE and self._state.values[kernel.HAS_LEFT_OUT]:
            self._skips = 2 * self._skips + 1
            self._state = self._first_state()
        elif end == kernel.NONE:
            self.is_over = self.is_proof = True

    def _first_state(self) -> State:
        most_ranked = _MOST_RANKED if self._is_ranked_anew else 0
        state = _first_state(self._instance, self._order, len(self._near.other), most_ranked)
        state.values[kernel.RULE], state.values[kernel.MOST_SKIPS] = self._rule, self._skips
        state.values[kernel.IS_RANKED_ANEW] = self._is_ranked_anew
        return state


class ExactSearches:
    """Exact searches in several ways and orders, which take turns.

    Some are resumed, others begin with a shuffled order. Those that fill the place of the fewest buffers are never
    resumed: they end soon or hardly ever.

    Attributes:
        is_proof: one of the searches has ruled out every arrangement.
        offsets: [buffers] offsets in units; None without a result.
    """

    def __init__(self, instance: Instance, capacity: int, seed: int = 0) -> None:
        """Prepare the searches.

        Args:
            instance: the buffers, with at most `MOST_OVERLAPS` overlapping pairs.
            capacity: size of the arena, in units; no buffer is larger.
            seed: seed of the shuffled orders.
        """
        self.offsets: Ints | None = None
        self.is_proof = False
        self._instance, self._capacity = instance, capacity
        self._near = neighbours(instance)
        self._random = np.random.default_rng(seed)
        self._kinds = list(product(orders(instance), _RULES))
        # What falls apart is ranked by its own loads: only orders that begin with the tightest sections gain by that.
        tightest = list(orders(instance, tightest_first=True))
        self._resumed = [ExactSearch(instance, capacity, order, self._near, is_ranked_anew=True) for order in tightest]
        tight = {order.tobytes() for order in tightest}
        self._resumed += [
            self._search(order, rule)
            for order, rule in self._kinds
            if rule == kernel.LOWEST or (rule == kernel.BY_OFFSET and order.tobytes() not in tight)
        ]
        self._turn = 0

    @property
    def is_over(self) -> bool:
        """Whether offsets are found, or proven not to exist."""
        return self.is_proof or self.offsets is not None

    def go_on(self, work: float, is_over: Callable[[], bool]) -> None:
        """Search on with an amount of work.

        Resumed searches get half of it, new searches the other half.
        """
        count = len(self._instance)
        left = max(1, int(work / (_WORK_OF_BUFFER * count)))
        steps = max(_LEAST_STEPS * count, left // (2 * len(self._resumed)))
        while left > 0 and not self.is_over and not is_over():
            number, is_new = divmod(self._turn, 2)
            resumed = self._resumed[number % len(self._resumed)]
            turns = self._restarts(number % len(self._kinds), steps) if is_new else [(resumed, steps)]
            for search, most in turns:
                left -= self._run(search, most, is_over)
                if self.is_over or is_over():
                    return
            self._turn += 1

    def _run(self, search: ExactSearch, steps: int, is_over: Callable[[], bool]) -> int:
        """Let a search take at most `steps` steps; return the number taken."""
        before = search.steps
        at_once = max(1, min(_STEPS_AT_ONCE, _BUFFERS_AT_ONCE // len(self._instance)))
        while search.steps < before + steps and not search.is_over and not is_over():
            search.go_on(min(at_once, before + steps - search.steps))
        self.offsets, self.is_proof = search.offsets, search.is_proof
        return max(1, search.steps - before)

    def _search(self, order: Ints, rule: int) -> ExactSearch:
        return ExactSearch(self._instance, self._capacity, order, self._near, rule)

    def _restarts(self, kind: int, steps: int) -> Iterator[tuple[ExactSearch, int]]:
        """Yield searches in shuffled orders, each with its number of steps.

        A search that fills the place of the fewest buffers ends soon or hardly ever: many short ones share the steps.
        """
        order, rule = self._kinds[kind]
        count = len(order)
        most = max(_LEAST_STEPS * count, steps // _RESTARTS) if rule == kernel.FEWEST else steps
        for _ in range(steps // most):
            ranks = np.empty(count)
            ranks[order] = np.arange(count)
            stretched = ranks * np.exp(_STRETCH * self._random.standard_normal(count))
            shifted = stretched + count * _SHIFT * self._random.standard_normal(count)
            yield self._search(np.argsort(shifted, kind="stable"), rule), most


def neighbours(instance: Instance) -> Neighbours:
    """Return the pairs of buffers that share sections."""
    overlaps = instance.overlaps.copy()
    np.fill_diagonal(overlaps, False)
    members = instance.members.T
    return Neighbours(
        _starts(overlaps.sum(axis=1)), np.nonzero(overlaps)[1], _starts(members.sum(axis=1)), np.nonzero(members)[1]
    )


def count_overlaps(instance: Instance) -> int:
    """Return the number of ordered pairs of buffers that share a section.

    The time is not quadratic in the buffers.
    """
    begun = np.searchsorted(np.sort(instance.lower), instance.upper, side="left")
    ended = np.searchsorted(np.sort(instance.upper), instance.lower, side="right")
    return int((begun - ended - 1).sum())


def orders(instance: Instance, *, tightest_first: bool = False) -> Iterator[Ints]:
    """Yield [buffers] orders of trying buffers.

    First come long buffers, large ones, or those in tight sections.

    Lengths are counted in moments, as MiniMalloc counts them, and in sections.

    Args:
        instance: the buffers.
        tightest_first: only those orders that begin with the tightest sections.
    """
    tightest = instance.tightest
    for length in (instance.durations, instance.upper - instance.lower):
        area = length * instance.sizes
        if not tightest_first:
            yield _by(length, area, tightest)
        yield _by(tightest, area, length)
        yield _by(tightest, length, area)
    if not tightest_first:
        yield _by(instance.sizes, tightest)


def _by(*keys: Ints) -> Ints:
    """Return the order by descending keys, the first one above all."""
    return np.lexsort(tuple(-key for key in reversed(keys)))


def _starts(counts: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(counts)))


def _twins(instance: Instance, order: Ints) -> Ints:
    """Return for each buffer the previous one of the same life and size.

    The result is [buffers]; -1 for none.
    """
    last: dict[tuple[int, int, int], int] = {}
    twins = np.full(len(order), -1, np.int64)
    for buffer in order.tolist():
        key = (int(instance.lower[buffer]), int(instance.upper[buffer]), int(instance.sizes[buffer]))
        twins[buffer] = last.get(key, -1)
        last[key] = buffer
    return twins


def _first_state(instance: Instance, order: Ints, overlaps: int, most_ranked: int) -> State:
    count, sections = len(instance), instance.sections
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    nothing = np.zeros(count, np.int64)
    crossing = np.zeros(sections + 1, np.int64)
    np.add.at(crossing, instance.lower + 1, 1)
    np.add.at(crossing, instance.upper, -1)
    loads = np.append(instance.loads, 0)
    empty = np.zeros_like(loads)
    frames = np.zeros((kernel.ROWS_OF_FRAME, 8 * count + 64), np.int64)
    frames[kernel.STOP, 0], frames[kernel.LAST, 0] = count, sections
    for row in (kernel.BACK, kernel.WAITING, kernel.SINCE, kernel.SINCE_RANK):
        frames[row, 0] = -1
    return State(
        values=np.zeros(kernel.VALUES, np.int64),
        buffers=np.array(
            [instance.lower, instance.upper, instance.sizes, rank, _twins(instance, order), nothing - 1, nothing, rank]
        ),
        sections=np.array([empty, loads, np.cumsum(crossing), empty]),
        order=np.arange(count),
        frames=frames,
        leasts=np.zeros((2, 4 * overlaps + 8 * count), np.int64),
        floors=np.zeros((2, (count + 1) * (sections + 1)), np.int64),
        ranks=np.zeros((2, most_ranked * count), np.int64),
        groups=np.zeros((kernel.WAITING + 1, count + 1), np.int64),
        sorted=np.zeros((2, count), np.int64),
    )
