"""Greedy placements: what overlaps in time lies apart, and gaps are taken."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given

from remat_cli.allocation import greedy
from remat_cli.allocation.greedy import Ints, best_fit, first_fit, greedy_offsets, largest_first, stacked
from remat_cli.allocation.instance import Instance
from remat_cli.core.buffers import Buffer
from tests.unit.allocation.test_portfolio import drawn_buffers, hard_buffers

Place = Callable[[Instance], Ints]
PLACES: tuple[Place, ...] = (
    best_fit,
    lambda instance: first_fit(instance, largest_first(instance)),
    lambda instance: stacked(instance, largest_first(instance)),
)


def lies_apart(instance: Instance, offsets: Ints) -> bool:
    tops = offsets + instance.sizes
    return bool((offsets >= 0).all()) and all(
        tops[one] <= offsets[other] or tops[other] <= offsets[one]
        for one, other in combinations(range(len(instance)), 2)
        if instance.overlaps[one, other]
    )


@given(drawn_buffers(most=14))
def test_what_is_needed_together_lies_apart(buffers: tuple[Buffer, ...]) -> None:
    instance = Instance.of(buffers, 1)
    for place in PLACES:
        assert lies_apart(instance, place(instance))


def test_best_fit_takes_the_smallest_gap_and_joins_gaps_that_touch() -> None:
    rows = (
        (0, 5, 3, 0),
        (1, 9, 1, 3),
        (2, 5, 2, 4),
        (3, 6, 1, 6),
        (5, 9, 2, 4),  # of the gaps of 3 and of 2 the smaller
        (6, 9, 3, 0),
        (7, 9, 2, 6),  # the gap of 1 at the top, and one more
        (9, 10, 8, 0),  # all gaps have become one
    )
    lower, upper, sizes, expected = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    assert best_fit(Instance(sizes, lower, upper, upper - lower, 10)).tolist() == expected.tolist()


def test_many_buffers_are_placed_in_time_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "MOST_WITH_GAPS", 10)
    instance = Instance.of(hard_buffers(60), 1)
    placed = list(greedy_offsets(instance))
    assert (placed[0] == best_fit(instance)).all()
    assert all(lies_apart(instance, offsets) for offsets in placed)
    heights = [int((offsets + instance.sizes).max()) for offsets in placed]
    assert min(heights[:2]) < min(heights[2:])
