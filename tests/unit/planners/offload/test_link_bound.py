"""The cut at a moment, with prices of memory and link."""

from __future__ import annotations

from fractions import Fraction

import pytest

from remat_cli.planners.min_cut.priced_cut import CutPoint
from remat_cli.planners.offload.link_bound import LinkCut, moments
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.sequence import RematSequence
from tests.graphs import chain, graph_of, op, training_chain


def worst(budget: int, rate: Fraction) -> LinkCut:
    """The cut at the worst moment of a training chain of 8 layers of 4 bytes."""
    graph = training_chain(8, size=4, time=3)
    return LinkCut(graph, int(moments(graph, budget)[0]), budget, rate)


def test_a_fast_link_costs_nothing() -> None:
    cut = worst(24, Fraction(10**6))
    assert cut.bound(Limits()) == 0
    assert max(choice.value for choice in cut.choices) == pytest.approx(0, abs=1e-3)


def test_a_slow_link_is_worth_no_more_than_recomputation() -> None:
    graph, budget = training_chain(8, size=4, time=3), 24
    cut = worst(budget, Fraction(1, 10**9))
    plain = RematSequence.plain(graph)
    point = CutPoint(plain, int(plain.memory.argmax()))
    alone = point.bound(budget - point.least_own_bytes)
    assert alone > 0
    # Rounded up to whole times, both.
    assert cut.bound(Limits()) == alone


def test_in_between_the_bound_falls_as_the_link_gets_faster() -> None:
    bounds = [worst(20, Fraction(rate)).bound(Limits()) for rate in ("1/16", "1/4", "1/2", "1", "2")]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1]


def test_one_price_is_enough_for_a_bound_and_no_time_left_ends_it() -> None:
    cut = worst(20, Fraction(1, 4))
    assert cut.bound(Limits(work=0)) >= 0
    assert len(cut.choices) == 1


def test_choices_name_the_tensors_that_move() -> None:
    cut = worst(20, Fraction(2))
    cut.bound(Limits())
    sets = [cut.moved(choice) for choice in cut.choices]
    assert any(moved.any() for moved in sets)
    assert {len(moved) for moved in sets} == {len(training_chain(8).tensors)}


def test_no_more_moves_than_passes_in_time() -> None:
    rate = Fraction(1, 2)
    cut = worst(20, rate)
    cut.bound(Limits())
    graph = training_chain(8)
    sizes = graph.arrays.tensor_bytes
    moved = [int(sizes[cut.moved(choice)].sum()) for choice in cut.choices]
    assert 0 < max(moved) <= rate * graph.total_time


def test_no_moment_lacks_memory_where_the_plain_run_fits() -> None:
    graph = training_chain(4)
    peak = RematSequence.plain(graph).peak
    assert len(moments(graph, peak)) == 0
    assert len(moments(graph, peak - 1)) > 0


def test_graphs_without_windows_have_a_bound() -> None:
    for graph in (chain(1, 1), graph_of(op("a", "", "x"), op("b", "", "y"), outputs=["x", "y"])):
        for number in range(len(graph.ops)):
            assert LinkCut(graph, number, 2, Fraction(1)).bound(Limits()) == 0
