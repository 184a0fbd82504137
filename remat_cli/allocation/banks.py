"""Addresses for buffers in several banks of memory.

The busiest buffers go to the fastest bank with room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat_cli.allocation.greedy import lowest_gap
from remat_cli.allocation.instance import Instance
from remat_cli.allocation.portfolio import allocate
from remat_cli.core.arena import Bank
from remat_cli.core.buffers import Buffer
from remat_cli.core.problem import Basis, Observer, Status
from remat_cli.planners.shared.limits import Limits

Ints = NDArray[np.int64]

# Largest product of buffers and banks for which a solver chooses banks and offsets together, and of buffers and
# sections for which it bounds the time by the banks' loads.
_MOST_FOR_SOLVER = 600
_MOST_FOR_BOUND = 200_000
# One second of the solver's deterministic time is about this share of a usual core's.
_SOLVER_UNIT = 0.1
# Shares of the remaining seconds and work: for the last bank if first fit fails, and for the bound.
_FOR_LAST_BANK = 0.2
_FOR_BOUND = 0.3


@dataclass(frozen=True)
class BankAllocation:
    """The outcome of a search for banks and offsets.

    Attributes:
        status: optimal (the least time to move all bytes), feasible, infeasible (proven) or unknown.
        banks: [buffers] index of each buffer's bank; None without a result.
        offsets: [buffers] offset in the bank, in bytes; None without a result.
        used: [banks] bytes up to the end of the highest buffer; None without a result.
        time: time to move all bytes, in bytes of the first bank; None without a result.
        bound: lower bound on the time.
        basis: basis of the bound, or of the proof that nothing fits.
        interrupted: the user stopped the search.
    """

    status: Status
    banks: tuple[int, ...] | None
    offsets: tuple[int, ...] | None
    used: tuple[int, ...] | None
    time: Fraction | None
    bound: Fraction
    basis: Basis = Basis.COUNTED
    interrupted: bool = False


class _Placed(NamedTuple):
    """The [buffers] banks, and [buffers] offsets in units."""

    banks: Ints
    offsets: Ints


def allocate_in_banks(
    buffers: Sequence[Buffer],
    traffic: Sequence[int],
    banks: Sequence[Bank],
    limits: Limits,
    *,
    alignment: int = 1,
    observe: Observer | None = None,
) -> BankAllocation:
    """Search banks and offsets with the least time to move bytes.

    Args:
        buffers: buffers with their lifetimes; may be empty.
        traffic: [buffers] bytes written to and read from each buffer.
        banks: at least one.
        limits: limits of the search.
        alignment: offsets are multiples of this.
        observe: is told the progress.
    """
    search = _BankSearch(buffers, traffic, banks, limits, alignment, observe or Observer())
    interrupted = False
    if buffers:
        try:
            search.run()
        except KeyboardInterrupt:
            interrupted = True
    return replace(search.allocation(), interrupted=interrupted)


class _BankSearch:
    """One search for banks and offsets.

    Attributes:
        best: the fastest placement so far.
        bound: lower bound on the time, with times in whole numbers, as in `_times`.
        basis: basis of the bound, or of the proof that nothing fits.
        is_infeasible: nothing fits, proven.
    """

    def __init__(
        self,
        buffers: Sequence[Buffer],
        traffic: Sequence[int],
        banks: Sequence[Bank],
        limits: Limits,
        alignment: int,
        observe: Observer,
    ) -> None:
        self.best: _Placed | None = None
        self.basis = Basis.COUNTED
        self.is_infeasible = False
        self._buffers, self._traffic, self._banks = buffers, traffic, banks
        self._limits, self._observe = limits, observe
        sizes = [-(-buffer.size // alignment) * alignment for buffer in buffers]
        self._unit = int(np.gcd.reduce(sizes)) if sizes else alignment
        self._capacities = [bank.bytes // self._unit for bank in banks]
        # Times in whole numbers: time of one byte in each bank.
        whole = lcm(*(bank.speed.numerator for bank in banks))
        self._scale = whole
        self._times = [int(whole / bank.speed) for bank in banks]
        self.bound = sum(traffic) * min(self._times)
        if buffers:
            self._instance = Instance.of(buffers, self._unit)

    def run(self) -> None:
        """Search greedily, then bound, then with a solver."""
        self._observe.phase(f"placing {len(self._buffers):,} buffers in {len(self._banks)} banks")
        if self._instance.load > sum(self._capacities) or self._instance.sizes.max() > max(self._capacities):
            self.is_infeasible = True
            return
        self._bound_by_size()
        for order in self._orders():
            self._take(self._greedy(order))
            if self._is_done or self._limits.is_over:
                return
        costs = [[moved * time for time in self._times] for moved in self._traffic]
        if len(self._buffers) * self._instance.sections <= _MOST_FOR_BOUND:
            self._bound_by_loads(costs)
        if not self._is_done and len(self._buffers) * len(self._banks) <= _MOST_FOR_SOLVER:
            self._solve(costs)

    def _bound_by_loads(self, costs: Sequence[Sequence[int]]) -> None:
        from remat_cli.allocation.banks_model import bank_times_bound

        self._observe.phase("bounding the time by what fits each bank at once")
        status, bound = bank_times_bound(self._instance, self._capacities, costs, self._part(_FOR_BOUND))
        self._conclude(status, bound)

    def _solve(self, costs: Sequence[Sequence[int]]) -> None:
        from remat_cli.allocation.banks_model import solved_in_banks

        self._observe.phase("choosing banks and offsets together")
        status, placement, bound = solved_in_banks(self._instance, self._capacities, costs, self._part(1.0), self.best)
        self._take(None if placement is None else _Placed(*placement))
        self._conclude(status, bound)

    def _conclude(self, status: Status, bound: int | None) -> None:
        """Note a solver's proof or bound."""
        if status is Status.INFEASIBLE:
            self.is_infeasible, self.basis = True, Basis.ONE_SOLVER
        elif bound is not None and bound > self.bound:
            self.bound, self.basis = bound, Basis.ONE_SOLVER

    @property
    def _is_done(self) -> bool:
        return self.is_infeasible or (self.best is not None and self._time(self.best.banks) <= self.bound)

    def _part(self, share: float) -> Limits:
        part = self._limits.part(share, share * min(self._limits.work, self._limits.seconds))
        return replace(part, cores=1, work=_SOLVER_UNIT * part.work)

    def _bound_by_size(self) -> None:
        """Raise the bound by each buffer's fastest bank of its size."""
        fastest = [
            min(time for time, capacity in zip(self._times, self._capacities, strict=True) if capacity >= size)
            for size in self._instance.sizes.tolist()
        ]
        self.bound = sum(moved * time for moved, time in zip(self._traffic, fastest, strict=True))

    def _orders(self) -> Iterator[Ints]:
        """Yield orders of choice, the busiest buffers first.

        A buffer's traffic is divided by its room and time, by its room, or by nothing.
        """
        traffic = np.array(self._traffic, np.float64)
        lengths = self._instance.upper - self._instance.lower
        for share in (traffic / self._instance.sizes / lengths, traffic / self._instance.sizes, traffic):
            yield np.lexsort((-self._instance.sizes, -share))
        yield np.lexsort((-self._instance.sizes, -lengths))
        yield np.lexsort((-lengths, -self._instance.sizes))

    def _greedy(self, order: Ints) -> _Placed | None:
        """Fill banks with buffers in an order, the fastest bank first.

        None if the last bank overflows.
        """
        banks, offsets = np.full(len(order), -1, np.int64), np.zeros(len(order), np.int64)
        by_speed = sorted(range(len(self._banks)), key=lambda bank: (self._times[bank], bank))
        for number, bank in enumerate(by_speed):
            left = order[banks[order] < 0]
            if number == len(by_speed) - 1:
                return self._last(left, bank, _Placed(banks, offsets))
            others = max(self._capacities[other] for other in by_speed[number + 1 :])
            # Buffers that fit no later bank choose first.
            large = self._instance.sizes[left] > others
            for buffer, offset in _fitting(
                self._instance, np.concatenate((left[large], left[~large])), self._capacities[bank]
            ):
                banks[buffer], offsets[buffer] = bank, offset
        raise AssertionError("there is at least one bank")

    def _last(self, left: Ints, bank: int, placed: _Placed) -> _Placed | None:
        placed.banks[left] = bank
        fitting = dict(_fitting(self._instance, left, self._capacities[bank]))
        if len(fitting) == len(left):
            placed.offsets[list(fitting)] = list(fitting.values())
            return placed
        if self._instance.chosen(left).load > self._capacities[bank]:
            return None
        limits = self._limits.part(_FOR_LAST_BANK, _FOR_LAST_BANK * self._limits.work)
        rest = [self._buffers[buffer] for buffer in left.tolist()]
        allocation = allocate(rest, limits, capacity=self._capacities[bank] * self._unit, alignment=self._unit)
        if allocation.offsets is None:
            return None
        placed.offsets[left] = np.array(allocation.offsets, np.int64) // self._unit
        return placed

    def _time(self, banks: Ints) -> int:
        return sum(moved * self._times[bank] for moved, bank in zip(self._traffic, banks.tolist(), strict=True))

    def _take(self, placed: _Placed | None) -> None:
        if placed is not None and (self.best is None or self._time(placed.banks) < self._time(self.best.banks)):
            self.best = placed

    def allocation(self) -> BankAllocation:
        """Return the result in bytes."""
        bound = Fraction(self.bound, self._scale)
        if not self._buffers:
            return BankAllocation(Status.OPTIMAL, (), (), (0,) * len(self._banks), Fraction(0), Fraction(0))
        if self.best is None:
            status = Status.INFEASIBLE if self.is_infeasible else Status.UNKNOWN
            return BankAllocation(status, None, None, None, None, bound, self.basis)
        tops = self.best.offsets + self._instance.sizes
        used = tuple(int(tops[self.best.banks == bank].max(initial=0)) * self._unit for bank in range(len(self._banks)))
        time = self._time(self.best.banks)
        status = Status.OPTIMAL if time <= self.bound else Status.FEASIBLE
        offsets = tuple((self.best.offsets * self._unit).tolist())
        return BankAllocation(
            status, tuple(self.best.banks.tolist()), offsets, used, Fraction(time, self._scale), bound, self.basis
        )


def _fitting(instance: Instance, order: Ints, capacity: int) -> Iterator[tuple[int, int]]:
    """Yield first fit's buffers and offsets within a capacity.

    Buffers that do not fit are left out.
    """
    lower, upper, starts, ends = (np.zeros(len(order), np.int64) for _ in range(4))  # of placed buffers
    count = 0
    for buffer in order.tolist():
        first, last, size = instance.lower[buffer], instance.upper[buffer], int(instance.sizes[buffer])
        overlapping = np.flatnonzero((lower[:count] < last) & (first < upper[:count]))
        offset = lowest_gap(starts[overlapping], ends[overlapping], size)
        if offset + size <= capacity:
            lower[count], upper[count], starts[count], ends[count] = first, last, offset, offset + size
            count += 1
            yield buffer, offset
