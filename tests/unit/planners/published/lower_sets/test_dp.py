"""Pareto fronts, scaled times and steps of the dynamic program; the whole of it is held in tests/agreement."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.errors import PlannerRefuses
from remat_cli.planners.published.lower_sets import transitions
from remat_cli.planners.published.lower_sets.dp import LowerSetDP, pareto_front, scaled_times
from remat_cli.planners.published.lower_sets.families import all_lower_sets, pruned_family
from remat_cli.planners.published.lower_sets.options import Strategy
from remat_cli.planners.published.lower_sets.transitions import Steps, StepsInto
from remat_cli.planners.shared.forward_part import ForwardPart
from tests.graphs import training_chain, training_unet

POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)
CHAIN = ForwardPart.of(training_chain(5, size=3, time=2), "a test")


@given(points=POINTS)
def test_a_front_has_the_points_that_no_other_dominates(points: list[tuple[int, int]]) -> None:
    cost, cached = (np.array([point[axis] for point in points], dtype=np.int64) for axis in (0, 1))
    front = pareto_front(cost, cached).tolist()
    best = {p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)}
    assert [points[number] for number in front] == sorted(best)
    assert all(points.index(points[number]) == number for number in front), "of equal points the first is kept"


@given(times=st.lists(st.integers(0, 10**12), min_size=1, max_size=30), slots=st.integers(1, 1000))
def test_scaled_times_come_to_about_as_many_slots(times: list[int], slots: int) -> None:
    scaled = scaled_times(np.array(times, dtype=np.int64), slots)
    if sum(times) <= slots:
        assert scaled.tolist() == times
    else:
        assert abs(int(scaled.sum()) - slots) <= len(times) / 2
        assert (scaled >= 0).all()


def test_a_chain_cached_whole_costs_nothing_and_one_block_all_but_its_end() -> None:
    dp = LowerSetDP(pruned_family(CHAIN), slots=10**6)
    assert dp.chain(dp.largest_budget(), Strategy.TIME) is not None
    every = list(range(1, len(dp.sets)))
    assert dp.overhead(every) <= dp.overhead([len(dp.sets) - 1])
    assert dp.overhead([len(dp.sets) - 1]) == int(CHAIN.time.sum())


def test_the_smallest_budget_is_the_least_that_has_a_chain() -> None:
    dp = LowerSetDP(all_lower_sets(ForwardPart.of(training_unet(2), "a test"), 1000), slots=100)
    smallest = dp.smallest_budget()
    assert dp.is_feasible(smallest)
    assert not dp.is_feasible(smallest - 1)
    assert dp.chain(smallest - 1, Strategy.MEMORY) is None
    assert dp.smallest_budget(known=smallest) == smallest


def test_steps_lead_from_subsets_to_larger_sets() -> None:
    sets = pruned_family(CHAIN)
    steps = Steps.within(sets, CHAIN.time, 10**9)
    assert [into.source.tolist() for into in steps.into] == [list(range(number)) for number in range(len(sets))]
    # Of each step what stays cached is the new boundary: one tensor of 3 bytes, none at the end.
    assert [set(into.cached.tolist()) for into in steps.into[1:]] == [{3}] * (len(sets) - 2) + [{0}]


def test_steps_are_chosen_without_a_copy_where_all_are() -> None:
    into = StepsInto(np.arange(3, dtype=np.int32), np.arange(3), np.arange(3, dtype=np.uint8))
    assert into.where(np.ones(3, dtype=np.bool_)) is into
    assert into.where(np.array([True, False, True])).source.tolist() == [0, 2]


def test_more_steps_than_fit_in_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "_MOST_STEPS", 3)
    with pytest.raises(PlannerRefuses, match="too many steps between them") as refused:
        Steps.within(pruned_family(CHAIN), CHAIN.time, 10**9)
    assert "approx_dp" in refused.value.hint
