"""Exact search held against an exhaustive one, and against tables with a planted answer."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.allocation.exact import ExactSearch, ExactSearches, count_overlaps, neighbours, orders
from remat_cli.allocation.exact_kernel import Ints
from remat_cli.allocation.instance import Instance
from remat_cli.allocation.portfolio import Allocation
from remat_cli.core.buffers import Buffer
from remat_cli.core.problem import Status
from tests.planted import planted
from tests.unit.allocation.test_portfolio import check, drawn_buffers, smallest_height


def check_offsets(buffers: tuple[Buffer, ...], offsets: Ints, capacity: int) -> None:
    check(buffers, Allocation(Status.FEASIBLE, tuple(offsets.tolist()), capacity, 0))


def run(instance: Instance, capacity: int, by_corner: bool, order: int = 0, steps: int = 10**6) -> ExactSearch:
    search = ExactSearch(instance, capacity, list(orders(instance))[order], neighbours(instance), by_corner)
    while not search.is_over and search.steps < steps:
        search.go_on(1000)
    return search


@settings(max_examples=80, deadline=None)
@given(drawn_buffers(), st.integers(-2, 1), st.booleans(), st.integers(0, 6))
def test_search_decides_as_exhaustive_search_does(
    buffers: tuple[Buffer, ...], beyond: int, by_corner: bool, order: int
) -> None:
    smallest = smallest_height(buffers)
    capacity = max(smallest + beyond, max(buffer.size for buffer in buffers))
    search = run(Instance.of(buffers, 1), capacity, by_corner, order)
    assert search.is_over
    assert (search.offsets is None) == search.is_proof == (capacity < smallest)
    if search.offsets is not None:
        check_offsets(buffers, search.offsets, capacity)


@settings(max_examples=15, deadline=None)
@given(drawn_buffers(most=2), st.booleans())
def test_twins_change_no_answer(buffers: tuple[Buffer, ...], by_corner: bool) -> None:
    doubled = 2 * buffers
    smallest = smallest_height(doubled)
    for capacity in (smallest - 1, smallest):
        instance = Instance.of(doubled, 1)
        if capacity >= instance.sizes.max():
            assert run(instance, capacity, by_corner).is_proof == (capacity < smallest)


@pytest.mark.parametrize("seed", range(6))
def test_planted_answers_are_found(seed: int) -> None:
    buffers = planted(24, 500, seed)
    search = ExactSearches(Instance.of(buffers, 1), 500)
    search.go_on(40.0, lambda: False)
    assert search.offsets is not None
    check_offsets(buffers, search.offsets, 500)


def test_search_goes_on_where_it_was_left() -> None:
    buffers = planted(20, 100, 3)
    instance = Instance.of(buffers, 1)
    at_once = run(instance, 100, by_corner=False)
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


@settings(max_examples=40, deadline=None)
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
for by_corner in (False, True):
    search = ExactSearch(instance, 300, next(orders(instance)), neighbours(instance), by_corner)
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
