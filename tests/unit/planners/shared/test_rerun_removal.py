"""Reruns that the budget has room to do without, against the judge."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.graph import Graph
from remat_cli.planners.shared.rerun_removal import Timeline, without_needless_reruns
from remat_cli.schedule import Compute, Inplace, with_frees
from remat_cli.simulate import Trace, simulate
from tests.graphs import compute_sequences, graph_of, in_place, op, small_graphs, training_graphs


def judged(graph: Graph, runs: Sequence[int]) -> Trace:
    return simulate(graph, with_frees(graph, (graph.ops[number].name for number in runs)))


def memory_of_runs(graph: Graph, runs: Sequence[int]) -> list[int]:
    """What the judge measures while each run is carried out."""
    schedule = with_frees(graph, (graph.ops[number].name for number in runs))
    memory = simulate(graph, schedule).memory_bytes[1:]
    return [each for each, step in zip(memory, schedule.steps, strict=True) if isinstance(step, Compute | Inplace)]


@st.composite
def sequences(draw: st.DrawFn) -> tuple[Graph, list[int]]:
    graph = draw(small_graphs() | training_graphs())
    return graph, [graph.arrays.op_index[name] for name in draw(compute_sequences(graph))]


@given(sequence=sequences())
def test_timeline_has_the_memory_that_the_judge_measures(sequence: tuple[Graph, list[int]]) -> None:
    graph, runs = sequence
    assert Timeline(graph, runs).memory.tolist() == memory_of_runs(graph, runs)


@given(sequence=sequences(), seed=st.integers(0, 1000))
def test_timeline_stays_right_when_runs_are_left_out(sequence: tuple[Graph, list[int]], seed: int) -> None:
    graph, runs = sequence
    timeline = Timeline(graph, runs)
    reruns = list(timeline.reruns())
    random.Random(seed).shuffle(reruns)
    for at in reruns:
        before = timeline.left()
        budget = max(memory_of_runs(graph, before)) + seed % 4 - 2
        if timeline.leave_out(at, budget):
            assert timeline.memory[at] < 0
        else:
            assert timeline.left() == before
        assert timeline.memory[timeline.memory >= 0].tolist() == memory_of_runs(graph, timeline.left())


@given(sequence=sequences(), spare=st.integers(0, 6))
def test_what_is_left_runs_within_the_budget_in_no_more_time(sequence: tuple[Graph, list[int]], spare: int) -> None:
    graph, runs = sequence
    before = judged(graph, runs)
    after = judged(graph, without_needless_reruns(graph, runs, before.peak_bytes + spare))
    assert after.peak_bytes <= before.peak_bytes + spare
    assert after.time <= before.time


@given(sequence=sequences())
def test_without_a_limit_nothing_is_run_twice(sequence: tuple[Graph, list[int]]) -> None:
    graph, runs = sequence
    assert sorted(without_needless_reruns(graph, runs, 2**60)) == list(range(len(graph.ops)))


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
    runs = [0, 1, 2, 3, 4, 1, 2, 5]
    left = [graph.ops[number].name for number in without_needless_reruns(graph, runs, budget)]
    assert left == ["x", "big", "small", "use", "wide", *again, "end"]


def test_runs_for_the_sake_of_others_go_with_them() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "x", "y"), op("c", "y", "z"), op("d", "y z", "end"))
    runs = [0, 1, 2, 0, 1, 3]
    timeline = Timeline(graph, runs)
    assert timeline.leave_out(4, budget_bytes=3)
    assert timeline.left() == [0, 1, 2, 3]


def test_an_input_that_is_kept_is_not_taken_over() -> None:
    graph = in_place()
    again = graph_of(*graph.ops, op("last", "x z", "end"), sizes={"x": 4, "y": 4, "z": 1})
    runs = [0, 1, 2, 0, 3]
    assert judged(again, runs).peak_bytes == 6
    timeline = Timeline(again, runs)
    # Keeping x costs the 4 bytes that `relu` saved by working in place.
    assert not timeline.leave_out(3, budget_bytes=8)
    assert timeline.leave_out(3, budget_bytes=9)
    assert np.max(timeline.memory) == judged(again, [0, 1, 2, 3]).peak_bytes == 9
