"""Buffers in several banks of memory: what is used most lies in the fastest one that has room for it."""

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

# Buffers times banks up to which a solver chooses banks and offsets together, and buffers times sections up to which
# it bounds the time by what fits the banks' loads.
_MOST_FOR_SOLVER = 600
_MOST_FOR_BOUND = 200_000
# One second in the solver's own measure is about so many of a usual core.
_SOLVER_UNIT = 0.1
# Of the seconds and work left: for the last bank where first fit fails, and for the bound.
_FOR_LAST_BANK = 0.2
_FOR_BOUND = 0.3


@dataclass(frozen=True)
class BankAllocation:
    """The outcome of a search for banks and offsets.

    Attributes:
        status: optimal (no choice of banks moves the bytes in less time), feasible, infeasible (proven) or unknown.
        banks: [buffers] index of the bank of each; None without any.
        offsets: [buffers] in bytes, from the beginning of its bank; None without any.
        used: [banks] bytes up to the end of what lies highest; None without any.
        time: to move all bytes, in bytes of the first bank; None without any.
        bound: no choice of banks takes less.
        basis: what the bound, or that nothing fits, rests on.
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
    """[buffers] banks, and offsets in units."""

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
    """Search a bank for each buffer, and offsets in it, so that the bytes that move take the least time.

    Args:
        buffers: what is needed when; there may be none.
        traffic: [buffers] bytes that are written to and read from each.
        banks: at least one.
        limits: where the search stops.
        alignment: offsets are multiples of it.
        observe: is told what is done.
    """
    search = _Search(buffers, traffic, banks, limits, alignment, observe or Observer())
    interrupted = False
    if buffers:
        try:
            search.run()
        except KeyboardInterrupt:
            interrupted = True
    return replace(search.allocation(), interrupted=interrupted)


class _Search:
    """One search.

    Attributes:
        best: the fastest placement so far.
        bound: no placement takes less, in `weights`.
        basis: what it, or that nothing fits, rests on.
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
        # Times are whole numbers: of a byte in each bank.
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
        status, found, bound = solved_in_banks(self._instance, self._capacities, costs, self._part(1.0), self.best)
        self._take(None if found is None else _Placed(*found))
        self._conclude(status, bound)

    def _conclude(self, status: Status, bound: int | None) -> None:
        """Take up what the solver proved."""
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
        """Raise the bound to each buffer in the fastest bank that is as large as it."""
        fastest = [
            min(time for time, capacity in zip(self._times, self._capacities, strict=True) if capacity >= size)
            for size in self._instance.sizes.tolist()
        ]
        self.bound = sum(moved * time for moved, time in zip(self._traffic, fastest, strict=True))

    def _orders(self) -> Iterator[Ints]:
        """Yield orders in which buffers choose a bank: most traffic for the room and time they take first."""
        traffic = np.array(self._traffic, np.float64)
        lengths = self._instance.upper - self._instance.lower
        for share in (traffic / self._instance.sizes / lengths, traffic / self._instance.sizes, traffic):
            yield np.lexsort((-self._instance.sizes, -share))
        yield np.lexsort((-self._instance.sizes, -lengths))
        yield np.lexsort((-lengths, -self._instance.sizes))

    def _greedy(self, order: Ints) -> _Placed | None:
        """Fill the banks, the fastest first, with buffers in an order; None where the last one overflows."""
        banks, offsets = np.full(len(order), -1, np.int64), np.zeros(len(order), np.int64)
        by_speed = sorted(range(len(self._banks)), key=lambda bank: (self._times[bank], bank))
        for number, bank in enumerate(by_speed):
            left = order[banks[order] < 0]
            if number == len(by_speed) - 1:
                return self._last(left, bank, _Placed(banks, offsets))
            others = max(self._capacities[other] for other in by_speed[number + 1 :])
            # What fits no later bank has the first choice.
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
        found = allocate(rest, limits, capacity=self._capacities[bank] * self._unit, alignment=self._unit)
        if found.offsets is None:
            return None
        placed.offsets[left] = np.array(found.offsets, np.int64) // self._unit
        return placed

    def _time(self, banks: Ints) -> int:
        return sum(moved * self._times[bank] for moved, bank in zip(self._traffic, banks.tolist(), strict=True))

    def _take(self, placed: _Placed | None) -> None:
        if placed is not None and (self.best is None or self._time(placed.banks) < self._time(self.best.banks)):
            self.best = placed

    def allocation(self) -> BankAllocation:
        """Return what was found, in bytes."""
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
    """Yield the buffers that first fit places within a capacity, and their offsets; the others are passed over."""
    lower, upper, starts, ends = (np.zeros(len(order), np.int64) for _ in range(4))  # of what is placed
    count = 0
    for buffer in order.tolist():
        first, last, size = instance.lower[buffer], instance.upper[buffer], int(instance.sizes[buffer])
        beside = np.flatnonzero((lower[:count] < last) & (first < upper[:count]))
        offset = lowest_gap(starts[beside], ends[beside], size)
        if offset + size <= capacity:
            lower[count], upper[count], starts[count], ends[count] = first, last, offset, offset + size
            count += 1
            yield buffer, offset
