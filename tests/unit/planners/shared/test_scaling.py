"""Scaled rows and costs: small enough for solvers, and wrong on one side only."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.planners.shared.scaling import (
    LARGEST,
    LARGEST_TOTAL_COST,
    Rounding,
    cost_unit,
    scale_row,
    unit_of,
)

_BASES = st.integers(1, 2**60)
# Sizes of GB of which some are equal or nearly so, beside single bytes.
_SIZES = _BASES.flatmap(
    lambda base: st.lists(st.sampled_from([base, base, base + 4, 2 * base, max(1, base // 3), 4, 1, 0]), max_size=7)
)


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[int], int]:
    """A row: coefficients, and a limit that some of them just reach, or miss by a little."""
    sizes = draw(_SIZES)
    some = sum(draw(st.lists(st.sampled_from(sizes), max_size=len(sizes)))) if sizes else 0
    return sizes, max(0, some + draw(st.sampled_from([0, 0, -1, 1, -4])))


def fitting(sizes: list[int], limit: int) -> set[tuple[int, ...]]:
    """All 0-1 solutions of a row, in exact integers."""
    choices = product((0, 1), repeat=len(sizes))
    return {some for some in choices if sum(a * b for a, b in zip(sizes, some, strict=True)) <= limit}


@given(row=rows())
def test_a_relaxed_row_loses_no_solution_and_a_restricted_one_has_no_wrong_one(row: tuple[list[int], int]) -> None:
    sizes, limit = row
    scaled = {rounding: scale_row(np.array(sizes, dtype=np.int64), limit, rounding) for rounding in Rounding}
    assert all(int(coefficients.max(initial=0)) <= LARGEST for coefficients, _ in scaled.values())
    relaxed, restricted = (
        fitting(scaled[rounding][0].tolist(), scaled[rounding][1]) for rounding in (Rounding.RELAX, Rounding.RESTRICT)
    )
    assert restricted <= fitting(sizes, limit) <= relaxed


@given(sizes=st.lists(st.integers(0, LARGEST), min_size=1), factor=st.integers(1, 2**34), spare=st.integers(0, 2**34))
def test_nothing_is_lost_where_sizes_have_a_common_divisor(sizes: list[int], factor: int, spare: int) -> None:
    coefficients = np.array(sizes, dtype=np.int64) * factor
    limit = sum(sizes) // 2 * factor + spare % factor
    for rounding in Rounding:
        scaled, room = scale_row(coefficients, limit, rounding)
        unit = unit_of(coefficients)
        assert (scaled * unit).tolist() == coefficients.tolist()
        # What is rounded off the limit is less than any two sums of sizes differ by.
        assert room == limit // unit


@given(size=st.integers(LARGEST, 2**62), count=st.integers(1, 50))
def test_a_row_loses_at_most_an_entry_in_2_to_the_28_of_its_largest(size: int, count: int) -> None:
    sizes = [size, *(max(1, size // 3 - number) for number in range(count))]
    unit = unit_of(np.array(sizes, dtype=np.int64))
    relaxed, _ = scale_row(np.array(sizes, dtype=np.int64), size, Rounding.RELAX)
    lost = sum(sizes) - unit * sum(relaxed.tolist())
    assert 0 <= lost <= len(sizes) * (size // LARGEST + 1)


def test_small_numbers_stay_as_they_are() -> None:
    coefficients = np.array([3, LARGEST, 0], dtype=np.int64)
    for rounding in Rounding:
        scaled, limit = scale_row(coefficients, 2**60, rounding)
        assert (scaled.tolist(), limit) == ([3, LARGEST, 0], 2**60)
    assert unit_of(np.array([], dtype=np.int64)) == 1


@pytest.mark.parametrize("sign", [1, -1])
@given(costs=st.lists(st.integers(0, 2**60), min_size=1, max_size=200))
def test_costs_stay_below_their_limit_and_never_count_for_more(sign: int, costs: list[int]) -> None:
    array = sign * np.array(costs, dtype=np.int64)
    unit = cost_unit(array)
    assert sum(cost // unit for cost in costs) <= LARGEST_TOTAL_COST
    assert unit == 1 or sum(costs) > LARGEST_TOTAL_COST * 0.999
    assert all(int(scaled) * unit <= cost for scaled, cost in zip(array // unit, array.tolist(), strict=True))
