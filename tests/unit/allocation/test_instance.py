"""Sections, loads and parts of buffers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remat_cli.allocation.instance import Instance
from remat_cli.core.buffers import Buffer
from tests.unit.allocation.test_portfolio import drawn_buffers


def test_sections_are_the_moments_with_the_most() -> None:
    instance = Instance.of([Buffer(0, 5, 2), Buffer(1, 3, 4), Buffer(3, 9, 8), Buffer(20, 21, 1)], 1)
    assert instance.loads.tolist() == [6, 10, 1]
    assert instance.load == 10


@given(drawn_buffers(most=9))
def test_load_is_the_most_at_any_moment(buffers: tuple[Buffer, ...]) -> None:
    most = max(sum(b.size for b in buffers if b.lower <= moment < b.upper) for moment in range(12))
    assert Instance.of(buffers, 1).load == most


@given(drawn_buffers(most=9))
def test_two_overlap_in_sections_as_they_do_in_time(buffers: tuple[Buffer, ...]) -> None:
    instance = Instance.of(buffers, 1)
    for one, first in enumerate(buffers):
        for other, second in enumerate(buffers):
            in_time = first.lower < second.upper and second.lower < first.upper
            assert instance.overlaps[one, other] == in_time
            assert instance.backwards().overlaps[one, other] == in_time


def test_parts_share_no_section() -> None:
    buffers = [Buffer(0, 2, 1), Buffer(5, 7, 1), Buffer(1, 3, 1), Buffer(6, 9, 1), Buffer(9, 10, 1)]
    assert [part.tolist() for part in Instance.of(buffers, 1).parts()] == [[0, 2], [1, 3], [4]]


@given(drawn_buffers(most=9), st.integers(0, 8))
def test_chosen_buffers_keep_their_load(buffers: tuple[Buffer, ...], last: int) -> None:
    parts = Instance.of(buffers, 1).parts()
    part = parts[last % len(parts)]
    alone = Instance.of(buffers, 1).chosen(part)
    assert alone.load == Instance.of([buffers[index] for index in part.tolist()], 1).load


def test_sizes_are_rounded_up_to_units() -> None:
    assert Instance.of([Buffer(0, 1, 65), Buffer(0, 1, 64)], 64).sizes.tolist() == [2, 1]


@given(drawn_buffers(most=9))
def test_tightest_is_the_largest_load_while_a_buffer_lives(buffers: tuple[Buffer, ...]) -> None:
    instance = Instance.of(buffers, 1)
    spans = zip(instance.lower, instance.upper, strict=True)
    assert instance.tightest.tolist() == [instance.loads[lower:upper].max() for lower, upper in spans]
