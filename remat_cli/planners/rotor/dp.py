"""The dynamic program of rotor: the best schedule for every budget at once.

Source: Beaumont et al., Optimal checkpointing for heterogeneous chains. The schedules are persistent: an activation
that is kept in the forward phase stays until its backward. Opt(s, t, m) is the least time of layers s to t within m
slots, which include the gradient delta_t. It begins in one of two ways:

    F_ck(s), F_none(s + 1 .. k), layers k + 1 .. t from a_k, which is kept, then layers s .. k from the input
    F_all(s), layers s + 1 .. t from abar_s, B(s)

The paper does not count the input of s. The part of it that passes (see `rotor.needs`) is counted in `opened`, because
it was produced for these layers, and not in `reopened`, because it was in memory before. If nothing passes, both tables
are the paper's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat_cli.errors import UsageError
from remat_cli.planners.rotor.needs import RotorNeeds
from remat_cli.planners.shared.chain.model import ChainStep, Operation
from remat_cli.units import format_bytes

Times = NDArray[np.float64]

# The largest size of a table, in bytes.
_MOST_BYTES = 4 * 10**9


@dataclass(frozen=True, eq=False)
class _NeedSlots:
    """The needs in slots, rounded up.

    Arrays are [N + 1, N + 1] by layers s and t, or [N + 1].

    Attributes:
        all: least m for F_all(s) with delta_t held, and for B(s).
        check: least m for F_ck(s), F_none(s + 1 .. t - 1) with delta_t held.
        saved: see `RotorNeeds`.
        kept: see `RotorNeeds`.
        passing: see `RotorNeeds`.
    """

    all: NDArray[np.int64]
    check: NDArray[np.int64]
    saved: NDArray[np.int64]
    kept: NDArray[np.int64]
    passing: NDArray[np.int64]

    @classmethod
    def of(cls, needs: RotorNeeds, unit: int) -> _NeedSlots:
        """Round `needs` to slots of `unit` bytes."""

        def rounded_up(size: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.maximum(-(-size // unit), 0)

        every = np.maximum(needs.all_need[:, None] + needs.gradient, needs.backward_need[:, None])
        np.fill_diagonal(every, np.maximum(needs.closing_need + needs.gradient, needs.backward_need))
        return cls(
            all=rounded_up(every),
            check=rounded_up(np.roll(needs.check_need, 1, axis=1) + needs.gradient),
            saved=rounded_up(needs.saved),
            kept=rounded_up(needs.kept),
            passing=rounded_up(needs.passing),
        )


class _ChainPart(NamedTuple):
    """Layers still to be planned within m slots, opened or reopened."""

    first: int
    last: int
    slots: int
    again: bool


@dataclass(frozen=True, eq=False)
class RotorTable:
    """Opt(s, t, m) for all layers s <= t and m from 0 to `slots`.

    O(slots N^3 / 6) time, by numpy over all parts of the same length; O(slots N^2) memory.

    Attributes:
        needs: needs of the chain.
        unit: bytes of a slot.
        slots: the largest m.
    """

    needs: RotorNeeds
    unit: int
    slots: int

    @classmethod
    def of(cls, needs: RotorNeeds, slots: int) -> RotorTable:
        """Return the table up to about the memory of the chain's plain run.

        Raises:
            UsageError: the table is too large.
        """
        table_bytes = 8 * (slots + 2) * (len(needs) * (len(needs) + 1) + slots + 1)
        if table_bytes > _MOST_BYTES:
            raise UsageError(
                f"{len(needs)} layers in {slots} slots take a table of {format_bytes(table_bytes)}, and at most "
                f"{format_bytes(_MOST_BYTES)} are made",
                hint="give fewer slots, or fewer segments",
            )
        exact = _NeedSlots.of(needs, 1)
        saved_before = np.cumsum(exact.saved) - exact.saved
        needed = int((saved_before + exact.all[:, -1])[1:].max())
        return cls(needs, max(1, -(-needed // max(slots - len(needs), (slots + 1) // 2))), slots)

    @property
    def times(self) -> Times:
        """[slots + 1] least time of the chain in m slots, descending.

        Times are infinite if nothing fits.
        """
        return self._opened[-1][0, 1:]

    def steps(self, slots: int) -> list[ChainStep]:
        """Return a best schedule of the chain in m slots; one must exist."""
        steps: list[ChainStep] = []
        # in reverse order
        remaining: list[ChainStep | _ChainPart] = [_ChainPart(1, len(self.needs), slots, again=False)]
        while remaining:
            each = remaining.pop()
            if isinstance(each, ChainStep):
                steps.append(each)
            else:
                remaining += reversed(self._unfolded(each))
        return steps

    def _unfolded(self, part: _ChainPart) -> list[ChainStep | _ChainPart]:
        """Return the first steps of a part's best schedule, and the rest."""
        first, last, slots, again = part
        sizes = self._sizes
        with_check = slots if again else slots - int(sizes.passing[first - 1])
        splitting = [self._splitting_time(first, middle, last, with_check) for middle in range(first, last)]
        if self._saving_time(first, last, slots) <= min(splitting, default=math.inf):
            rest = [_ChainPart(first + 1, last, slots - int(sizes.saved[first]), again=False)] if first < last else []
            return [ChainStep(Operation.FORWARD_ALL, first), *rest, ChainStep(Operation.BACKWARD, first)]
        middle = first + splitting.index(min(splitting))
        return [
            ChainStep(Operation.FORWARD_CHECK, first),
            *(ChainStep(Operation.FORWARD_NONE, layer) for layer in range(first + 1, middle + 1)),
            _ChainPart(middle + 1, last, with_check - int(sizes.kept[first, middle]), again=False),
            _ChainPart(first, middle, with_check, again=True),
        ]

    def _saving_time(self, first: int, last: int, slots: int) -> float:
        """Return the least time of layers that begin with F_all."""
        if slots < self._sizes.all[first, last]:
            return math.inf
        backward = float(self.needs.backward_time[first])
        if first == last:
            return float(self.needs.closing_time[first]) + backward
        rest = _time(self._opened, first + 1, last, slots - int(self._sizes.saved[first]))
        return float(self.needs.forward_time[first]) + rest + backward

    def _splitting_time(self, first: int, middle: int, last: int, slots: int) -> float:
        """Return the least time of layers with a checkpoint at `middle`.

        The layers up to `middle` first run without grad.
        """
        if slots < self._sizes.check[first, last]:
            return math.inf
        right = _time(self._opened, middle + 1, last, slots - int(self._sizes.kept[first, middle]))
        left = _time(self._reopened, first, middle, slots)
        return float(self.needs.no_grad_time[first : middle + 1].sum()) + right + left

    @property
    def _opened(self) -> list[Times]:
        """[N - (t - s), slots + 2] tables by t - s: row s - 1, column m + 1.

        Column 0 is infinite. `_reopened` has the same layout.
        """
        return self._tables[0]

    @property
    def _reopened(self) -> list[Times]:
        return self._tables[1]

    @cached_property
    def _sizes(self) -> _NeedSlots:
        return _NeedSlots.of(self.needs, self.unit)

    @cached_property
    def _columns(self) -> NDArray[np.int64]:
        """[slots + 2, slots + 1] column index of m minus each number of slots.

        Column 0 if no slots are left.
        """
        columns: NDArray[np.int64] = np.arange(1, self.slots + 2) - np.arange(self.slots + 2)[:, None]
        return np.maximum(columns, 0)

    @cached_property
    def _tables(self) -> tuple[list[Times], list[Times]]:
        needs, sizes, layers = self.needs, self._sizes, len(self.needs)
        no_grad_until = np.cumsum(needs.no_grad_time, dtype=np.float64)
        first = np.arange(1, layers + 1)
        alone = (needs.closing_time + needs.backward_time)[first, None].astype(np.float64)
        alone = self._where_enough(np.repeat(alone, self.slots + 1, axis=1), sizes.all[first, first])
        tables = self._both(first, alone, np.full_like(alone, np.inf))
        opened, reopened = [tables[0]], [tables[1]]
        for distance in range(1, layers):
            first = np.arange(1, layers - distance + 1)
            last = first + distance
            split = np.full((len(first), self.slots + 1), np.inf)
            for length in range(distance):  # the number of F_none
                middle = first + length
                time = self._less(opened[distance - length - 1], middle, sizes.kept[first, middle])
                time += reopened[length][: len(first), 1:]
                time += (no_grad_until[middle] - no_grad_until[first - 1])[:, None]
                np.minimum(split, time, out=split)
            saving = self._less(opened[distance - 1], first, sizes.saved[first])
            saving += (needs.forward_time + needs.backward_time)[first, None]
            tables = self._both(
                first,
                self._where_enough(saving, sizes.all[first, last]),
                self._where_enough(split, sizes.check[first, last]),
            )
            opened.append(tables[0])
            reopened.append(tables[1])
        return opened, reopened

    def _both(self, first: NDArray[np.int64], saving: Times, split: Times) -> tuple[Times, Times]:
        """Return the opened and the reopened tables of parts.

        The arguments are their times if F_all or F_ck comes first. The needs of F_all include the part of its input
        that passes; the needs of F_ck do not include its input, which is kept.
        """
        saving, split = _with_column_of_nothing(saving), _with_column_of_nothing(split)
        opened = saving.copy()
        passed = self._less(split, np.arange(len(first)), self._sizes.passing[first - 1])
        np.minimum(opened[:, 1:], passed, out=opened[:, 1:])
        return opened, np.minimum(saving, split)

    def _less(self, part: Times, rows: NDArray[np.int64], taken: NDArray[np.int64]) -> Times:
        """Return [rows, slots + 1] rows of a table, shifted by `taken` slots."""
        columns = self._columns[np.minimum(taken, self.slots + 1)]
        columns += (rows * part.shape[1])[:, None]
        return part.ravel()[columns]

    def _where_enough(self, times: Times, least: NDArray[np.int64]) -> Times:
        times[np.arange(self.slots + 1) < least[:, None]] = np.inf
        return times


def _time(table: list[Times], first: int, last: int, slots: int) -> float:
    return float(table[last - first][first - 1, slots + 1]) if slots >= 0 else math.inf


def _with_column_of_nothing(times: Times) -> Times:
    """Prepend a column of infinite times, for which nothing fits."""
    return np.pad(times, ((0, 0), (1, 0)), constant_values=np.inf)
