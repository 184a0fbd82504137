"""Beams over skylines: what they find fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.allocation.instance import Instance
from remat_cli.allocation.skyline import Beam, BeamEnd, search
from remat_cli.core.buffers import Buffer
from tests.unit.allocation.test_portfolio import drawn_buffers, hard_buffers, smallest_height


def run(buffers: tuple[Buffer, ...], capacity: int, beam: Beam) -> BeamEnd:
    return search(Instance.of(buffers, 1), capacity, beam, lambda: False)


@given(drawn_buffers(), st.booleans(), st.sampled_from(["first", "tight", "few"]))
def test_wide_beam_finds_nothing_below_the_smallest(buffers: tuple[Buffer, ...], backwards: bool, corner: str) -> None:
    smallest = smallest_height(buffers)
    assert run(buffers, smallest - 1, Beam(500, corner, backwards)).offsets is None
    assert run(buffers, smallest, Beam(500, corner, backwards)).offsets is not None


@given(drawn_buffers(most=9), st.integers(0, 2), st.sampled_from([1, 2, 8]), st.sampled_from([None, 5.0]))
def test_what_a_narrow_search_finds_fits(
    buffers: tuple[Buffer, ...], beyond: int, width: int, weight: float | None
) -> None:
    capacity = Instance.of(buffers, 1).load + beyond
    end = run(buffers, capacity, Beam(width, waste_weight=weight, noise=0.1, seed=3))
    if end.offsets is None:
        return
    placed = list(zip(buffers, end.offsets.tolist(), strict=True))
    for index, (first, at) in enumerate(placed):
        assert 0 <= at <= capacity - first.size
        for second, other in placed[:index]:
            if first.lower < second.upper and second.lower < first.upper:
                assert at + first.size <= other or other + second.size <= at


@pytest.mark.parametrize("unit", [1, 10**9])
def test_heights_beyond_32_bits_count_in_full(unit: int) -> None:
    buffers = (Buffer(0, 1, unit), Buffer(0, 1, unit), Buffer(0, 1, unit + 1))
    assert run(buffers, 3 * unit + 1, Beam(4)).offsets is not None
    assert run(buffers, 3 * unit, Beam(4)) == BeamEnd(None, 0)


def test_floors_that_stay_empty_lead_to_what_is_not_found_without() -> None:
    buffers = hard_buffers(60)
    capacity = Instance.of(buffers, 1).load + 3
    found = {skips: run(buffers, capacity, Beam(4, skips=skips)).offsets is not None for skips in (0, 3)}
    assert found == {0: False, 3: True}


def test_search_stops_when_it_is_told_to() -> None:
    end = search(Instance.of((Buffer(0, 1, 1),), 1), 1, Beam(4), lambda: True)
    assert end == BeamEnd(None, 0)
