"""Exact search held against an exhaustive one, and against tables with a planted answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.allocation.exact import ExactSearch, ExactSearches, count_overlaps, neighbours, orders
from remat_cli.allocation.exact_kernel import BY_OFFSET, CROSSING, FEWEST, LOWEST, Ints
from remat_cli.allocation.instance import Instance
from remat_cli.allocation.portfolio import Allocation
from remat_cli.core.buffers import Buffer
from remat_cli.core.problem import Status
from tests.planted import planted
from tests.unit.allocation.test_portfolio import check, drawn_buffers, smallest_height

WAYS = (BY_OFFSET, LOWEST, FEWEST)


def check_offsets(buffers: tuple[Buffer, ...], offsets: Ints, capacity: int) -> None:
    check(buffers, Allocation(Status.FEASIBLE, tuple(offsets.tolist()), capacity, 0))


def run(
    instance: Instance, capacity: int, way: int, order: int = 0, steps: int = 10**6, *, is_ranked_anew: bool = False
) -> ExactSearch:
    order_tried = list(orders(instance))[order]
    search = ExactSearch(instance, capacity, order_tried, neighbours(instance), way, is_ranked_anew=is_ranked_anew)
    while not search.is_over and search.steps < steps:
        search.go_on(1000)
    return search


@given(drawn_buffers(), st.integers(-2, 1), st.sampled_from(WAYS), st.integers(0, 6), st.booleans())
def test_search_decides_as_exhaustive_search_does(
    buffers: tuple[Buffer, ...], beyond: int, way: int, order: int, is_ranked_anew: bool
) -> None:
    smallest = smallest_height(buffers)
    capacity = max(smallest + beyond, max(buffer.size for buffer in buffers))
    search = run(Instance.of(buffers, 1), capacity, way, order, is_ranked_anew=is_ranked_anew)
    assert search.is_over
    assert (search.offsets is None) == search.is_proof == (capacity < smallest)
    if search.offsets is not None:
        check_offsets(buffers, search.offsets, capacity)


@settings(max_examples=15)
@given(drawn_buffers(most=2), st.sampled_from(WAYS))
def test_twins_change_no_answer(buffers: tuple[Buffer, ...], way: int) -> None:
    doubled = 2 * buffers
    smallest = smallest_height(doubled)
    for capacity in (smallest - 1, smallest):
        instance = Instance.of(doubled, 1)
        if capacity >= instance.sizes.max():
            assert run(instance, capacity, way).is_proof == (capacity < smallest)


def joined(groups: Sequence[Sequence[Buffer]], size: int) -> tuple[Buffer, ...]:
    """Return groups one after the other in time, and a buffer that lives as long as all of them."""
    buffers, start = list[Buffer](), 0
    for group in groups:
        buffers += (Buffer(start + each.lower, start + each.upper, each.size) for each in group)
        start = max(each.upper for each in buffers)
    return (*buffers, Buffer(0, start, size))


@given(
    st.lists(drawn_buffers(most=3), min_size=2, max_size=3),
    st.integers(0, 1),
    st.sampled_from(WAYS),
    st.integers(0, 6),
    st.booleans(),
)
def test_groups_that_fall_apart_are_decided_as_each_alone(
    groups: list[tuple[Buffer, ...]], less: int, way: int, order: int, is_ranked_anew: bool
) -> None:
    buffers, smallest = joined(groups, 2), 2 + max(smallest_height(group) for group in groups)
    search = run(Instance.of(buffers, 1), smallest - less, way, order, is_ranked_anew=is_ranked_anew)
    assert search.is_proof == bool(less)
    if search.offsets is not None:
        check_offsets(buffers, search.offsets, smallest)


# Its load is 6, and 6 is too little.
TIGHT = tuple(
    Buffer(*each)
    for each in [(3, 5, 3), (5, 6, 3), (1, 3, 1), (4, 6, 3), (2, 4, 2), (1, 4, 1), (0, 2, 4), (0, 1, 2), (2, 3, 2)]
)
LOOSE = tuple(Buffer(*each) for each in [(0, 2, 2), (1, 4, 3), (2, 6, 1), (0, 1, 3), (3, 6, 1), (4, 5, 2)])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tight_at", range(3))
def test_one_group_that_does_not_fit_is_found_among_others(tight_at: int, way: int) -> None:
    groups = [LOOSE, LOOSE]
    groups.insert(tight_at, TIGHT)
    buffers = joined(groups, 1)
    instance = Instance.of(buffers, 1)
    assert run(instance, 7, way).is_proof
    roomy = run(instance, 8, way)
    assert roomy.offsets is not None
    check_offsets(buffers, roomy.offsets, 8)


def test_groups_that_fall_apart_are_searched_alone() -> None:
    instance = Instance.of(joined([LOOSE, TIGHT], 1), 1)
    apart, together = (ExactSearch(instance, 7, next(orders(instance)), neighbours(instance)) for _ in range(2))
    # As if a buffer that is never placed went through all sections: no group falls apart.
    together._state.sections[CROSSING] += 1
    for search in (apart, together):
        search.go_on(10**6)
        assert search.is_proof
    assert apart.steps < 0.7 * together.steps


@pytest.mark.parametrize("seed", range(6))
def test_planted_answers_are_found(seed: int) -> None:
    buffers = planted(24, 500, seed)
    search = ExactSearches(Instance.of(buffers, 1), 500)
    search.go_on(40.0, lambda: False)
    assert search.offsets is not None
    check_offsets(buffers, search.offsets, 500)


@pytest.mark.parametrize("seed", range(401, 405))
def test_full_tables_need_hardly_a_step_back_where_the_fewest_fit(seed: int) -> None:
    buffers = planted(100, 100_000, seed)
    search = run(Instance.of(buffers, 1), 100_000, FEWEST, steps=200)
    assert search.offsets is not None
    assert search.steps < 1.2 * len(buffers)
    check_offsets(buffers, search.offsets, 100_000)


def test_search_goes_on_where_it_was_left() -> None:
    buffers = planted(20, 100, 3)
    instance = Instance.of(buffers, 1)
    at_once = run(instance, 100, BY_OFFSET)
    left = ExactSearch(instance, 100, next(orders(instance)), neighbours(instance))
    while not left.is_over:
        left.go_on(1)
    assert left.steps == at_once.steps
    assert left.offsets is not None
    assert at_once.offsets is not None
    assert left.offsets.tolist() == at_once.offsets.tolist()


def test_search_stops_when_it_is_told_to() -> None:
    searches = ExactSearches(Instance.of(planted(60, 1000, 1), 1), 999)
    searches.go_on(1e9, lambda: True)
    assert not searches.is_over


@given(drawn_buffers(most=12))
def test_overlaps_are_counted_without_a_matrix(buffers: tuple[Buffer, ...]) -> None:
    instance = Instance.of(buffers, 1)
    assert count_overlaps(instance) == int(instance.overlaps.sum()) - len(instance)


def test_compiled_search_finds_the_same() -> None:
    program = """
from remat_cli.allocation.exact import ExactSearch, neighbours, orders
from remat_cli.allocation.instance import Instance
from tests.planted import planted
instance = Instance.of(planted(40, 300, 5), 1)
for way in range(3):
    search = ExactSearch(instance, 300, next(orders(instance)), neighbours(instance), way)
    search.go_on(3000)
    print(search.steps, search.is_over, None if search.offsets is None else search.offsets.tolist())
"""
    pytest.importorskip("numba")
    said = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "NUMBA_DISABLE_JIT": disabled},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for disabled in ("0", "1")
    ]
    assert said[0] == said[1]
