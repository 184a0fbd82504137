"""Reruns that the budget has room to do without, against the judge."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Graph
from remat_cli.planners.shared.rerun_removal import _ShrinkingSequence, without_needless_reruns
from remat_cli.planners.shared.sequence import RematSequence
from tests.graphs import graph_of, in_place, op, small_graphs, training_graphs
from tests.plans import judged, sequences

GRAPHS = small_graphs() | training_graphs()


@given(sequence=sequences(GRAPHS), seed=st.integers(0, 1000))
def test_memory_stays_right_when_runs_are_left_out(sequence: RematSequence, seed: int) -> None:
    shrinking = _ShrinkingSequence(sequence)
    reruns = list(shrinking.reruns())
    random.Random(seed).shuffle(reruns)
    for at in reruns:
        before = shrinking.left()
        if shrinking.leave_out(at, before.peak + seed % 4 - 2):
            assert shrinking.memory[at] < 0
        else:
            assert shrinking.left().names == before.names
        assert shrinking.memory[shrinking.memory >= 0].tolist() == shrinking.left().memory.tolist()


@given(sequence=sequences(GRAPHS), spare=st.integers(0, 6))
def test_what_is_left_runs_within_the_budget_in_no_more_time(sequence: RematSequence, spare: int) -> None:
    before = judged(sequence)
    after = judged(without_needless_reruns(sequence, before.peak_bytes + spare))
    assert after.peak_bytes <= before.peak_bytes + spare
    assert after.time <= before.time


@given(sequence=sequences(GRAPHS))
def test_without_a_limit_nothing_is_run_twice(sequence: RematSequence) -> None:
    left = without_needless_reruns(sequence, 2**60)
    assert sorted(left.ops.tolist()) == list(range(len(sequence.graph.ops)))


def shared_input() -> Graph:
    """`big` and `small` are made from `x`, read at once, and read once more at the end, after `wide`."""
    return graph_of(
        op("x", "", "x"),
        op("big", "x", "tb", time=5),
        op("small", "x", "ts", time=5),
        op("use", "tb ts", "u"),
        op("wide", "u", "w"),
        op("end", "x tb ts w", "e"),
        sizes={"tb": 4, "ts": 2, "w": 6},
    )


@pytest.mark.parametrize(
    ("budget", "again"),
    # x and u, w and what is kept of tb and ts, while `wide` runs: 8 bytes and 0, 2 or 6 more.
    [(13, ["big"]), (14, [])],
)
def test_what_saves_most_time_for_its_bytes_is_kept(budget: int, again: list[str]) -> None:
    graph = shared_input()
    left = without_needless_reruns(RematSequence.of(graph, [0, 1, 2, 3, 4, 1, 2, 5]), budget)
    assert left.names == ("x", "big", "small", "use", "wide", *again, "end")


def test_runs_for_the_sake_of_others_go_with_them() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "x", "y"), op("c", "y", "z"), op("d", "y z", "end"))
    shrinking = _ShrinkingSequence(RematSequence.of(graph, [0, 1, 2, 0, 1, 3]))
    assert shrinking.leave_out(4, budget_bytes=3)
    assert shrinking.left().ops.tolist() == [0, 1, 2, 3]


def test_an_input_that_is_kept_is_not_taken_over() -> None:
    graph = in_place()
    again = graph_of(*graph.ops, op("last", "x z", "end"), sizes={"x": 4, "y": 4, "z": 1})
    sequence = RematSequence.of(again, [0, 1, 2, 0, 3])
    assert judged(sequence).peak_bytes == 6
    shrinking = _ShrinkingSequence(sequence)
    # Keeping x costs the 4 bytes that `relu` saved by working in place.
    assert not shrinking.leave_out(3, budget_bytes=8)
    assert shrinking.leave_out(3, budget_bytes=9)
    assert np.max(shrinking.memory) == judged(RematSequence.plain(again)).peak_bytes == 9
