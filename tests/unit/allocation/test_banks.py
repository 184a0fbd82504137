"""Banks and offsets held against every choice of banks, and against what must hold of any."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.allocation.banks import BankAllocation, allocate_in_banks
from remat_cli.core.arena import Bank
from remat_cli.core.buffers import Buffer
from remat_cli.core.problem import Status
from remat_cli.planners.shared.limits import Limits
from tests.planted import planted
from tests.unit.allocation.test_portfolio import drawn_buffers, overlaps, smallest_height

SPEEDS = (Fraction(1), Fraction(2, 5), Fraction(3))


def banks_of(*sizes: int) -> tuple[Bank, ...]:
    return tuple(Bank(f"b{at}", size, SPEEDS[at]) for at, size in enumerate(sizes))


def check(buffers: Sequence[Buffer], banks: Sequence[Bank], traffic: Sequence[int], found: BankAllocation) -> None:
    assert found.banks is not None
    assert found.offsets is not None
    assert found.used is not None
    placed = list(zip(buffers, found.banks, found.offsets, strict=True))
    for index, (buffer, bank, offset) in enumerate(placed):
        assert 0 <= offset <= banks[bank].bytes - buffer.size
        assert offset + buffer.size <= found.used[bank] <= banks[bank].bytes
        for other, its, at in placed[:index]:
            if bank == its and overlaps(buffer, other):
                assert offset + buffer.size <= at or at + other.size <= offset
    assert found.time == sum(moved / banks[bank].speed for moved, bank in zip(traffic, found.banks, strict=True))
    assert found.time >= found.bound


def least_time(buffers: Sequence[Buffer], banks: Sequence[Bank], traffic: Sequence[int]) -> Fraction | None:
    """Try every choice of banks; None where none fits."""
    times = []
    for choice in product(range(len(banks)), repeat=len(buffers)):
        lying = [
            [buffer for buffer, bank in zip(buffers, choice, strict=True) if bank == at] for at in range(len(banks))
        ]
        if all(not some or smallest_height(some) <= bank.bytes for some, bank in zip(lying, banks, strict=True)):
            times.append(
                sum((moved / banks[bank].speed for moved, bank in zip(traffic, choice, strict=True)), Fraction(0))
            )
    return min(times, default=None)


@given(
    drawn_buffers(most=5),
    st.lists(st.integers(0, 9), min_size=5, max_size=5),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
def test_small_tables_are_solved_as_by_trying_all(
    buffers: tuple[Buffer, ...], traffic: list[int], sizes: list[int]
) -> None:
    traffic = traffic[: len(buffers)]
    banks = banks_of(*sizes)
    least = least_time(buffers, banks, traffic)
    found = allocate_in_banks(buffers, traffic, banks, Limits(work=20))
    assert found.status is (Status.INFEASIBLE if least is None else Status.OPTIMAL)
    assert found.time == least
    if least is not None:
        check(buffers, banks, traffic, found)


@pytest.mark.parametrize("taken_out", [0.1, 0.5])
def test_tables_of_many_buffers_lie_within_the_bound(taken_out: float) -> None:
    buffers = planted(120, 6_400, 7, taken_out)
    traffic = [(1 + at % 7) * buffer.size for at, buffer in enumerate(buffers)]
    banks = (Bank("sram", 2_000, Fraction(1)), Bank("psram", 16_000, Fraction(2, 5)))
    found = allocate_in_banks(buffers, traffic, banks, Limits(work=2), alignment=16)
    check(buffers, banks, traffic, found)
    assert found.offsets is not None
    assert all(offset % 16 == 0 for offset in found.offsets)
    assert found.time is not None
    slowest = sum(traffic) * Fraction(5, 2)
    assert found.time < slowest - (slowest - found.bound) / 3


def test_what_moves_most_for_its_room_lies_in_the_fast_bank() -> None:
    buffers = (Buffer(0, 4, 4), Buffer(0, 4, 4), Buffer(0, 4, 4))
    found = allocate_in_banks(
        buffers, (4, 40, 8), (Bank("slow", 8, Fraction(1)), Bank("fast", 4, Fraction(2))), Limits(work=2)
    )
    assert found.banks == (0, 1, 0)
    assert found.status is Status.OPTIMAL
    assert found.time == 4 + 20 + 8


def test_more_than_all_banks_hold_is_infeasible_without_a_solver() -> None:
    found = allocate_in_banks((Buffer(0, 2, 4), Buffer(1, 2, 4)), (1, 1), banks_of(4, 3), Limits(work=0))
    assert (found.status, found.basis.value, found.banks) == (Status.INFEASIBLE, "counted", None)


def test_nothing_takes_no_time() -> None:
    assert allocate_in_banks((), (), banks_of(4), Limits()).time == 0
