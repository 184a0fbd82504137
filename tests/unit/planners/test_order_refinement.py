"""Reordering plans that recompute: the same runs, valid, in less memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from remat_cli.graph import Graph
from remat_cli.planners.orders.refinement import aimed_at, reordered, unrolled
from remat_cli.planners.orders.search import OrderLimits
from remat_cli.planners.stages import Stages
from remat_cli.planners.useful_runs import useful_runs
from remat_cli.schedule import Compute, Inplace, with_frees
from remat_cli.simulate import simulate
from tests.graphs import graph_of, op, small_graphs, training_graphs

LIMITS = OrderLimits(float("inf"), work=300)


def judged(graph: Graph, computes: Sequence[str]) -> list[int]:
    """Memory while each run goes on, without the fixed bytes, as the judge measures it."""
    schedule = with_frees(graph, computes)
    memory = simulate(graph, schedule).memory_bytes[1:]
    return [
        used - graph.fixed_bytes
        for step, used in zip(schedule.steps, memory, strict=True)
        if isinstance(step, Compute | Inplace)
    ]


def excess(graph: Graph, computes: Sequence[str], room: int) -> int:
    return sum(max(0, used - room) for used in judged(graph, computes))


def random_plan(graph: Graph, rng: random.Random) -> list[str]:
    """The input order, and a few ops run again after it at random places."""
    computes = [each.name for each in graph.ops]
    for _ in range(rng.randint(0, 3)):
        each = rng.choice(graph.ops)
        if each.recomputable:
            computes.insert(rng.randint(computes.index(each.name) + 1, len(computes)), each.name)
    return computes


@given(small_graphs() | training_graphs(), st.randoms(use_true_random=False))
def test_instances_take_the_memory_of_the_plan(graph: Graph, rng: random.Random) -> None:
    computes = useful_runs(graph, random_plan(graph, rng))
    assert Stages.of(unrolled(graph, computes)).plain_bytes.tolist() == judged(graph, computes)


@given(small_graphs() | training_graphs(), st.integers(0, 20), st.integers(0, 5), st.randoms(use_true_random=False))
def test_the_same_runs_take_no_more_memory_above_what_is_aimed_at(
    graph: Graph, room: int, attempt: int, rng: random.Random
) -> None:
    computes = useful_runs(graph, random_plan(graph, rng))
    again = reordered(graph, computes, room, LIMITS, attempt)
    assert Counter(again) <= Counter(computes)
    assert set(again) == {each.name for each in graph.ops}
    aim = aimed_at(room, attempt)
    assert excess(graph, again, aim) <= excess(graph, computes, aim)
    assert again == reordered(graph, computes, room, LIMITS, attempt)


def test_it_leaves_memory_to_spare() -> None:
    # `x` is made again because `big` comes between its two uses; were `big` the first, nothing would have to be.
    graph = graph_of(
        op("make_x", "", "x"),
        op("use_x", "x", "a"),
        op("big", "", "b"),
        op("shrink", "b", "c"),
        op("use_x_again", "x c", "d"),
        op("end", "a d", "e"),
        sizes={"x": 5, "b": 9},
    )
    computes = ["make_x", "use_x", "big", "shrink", "make_x", "use_x_again", "end"]
    room = max(judged(graph, computes))
    assert room == 11
    again = reordered(graph, computes, room, LIMITS)
    assert again.index("big") < again.index("make_x")
    assert max(judged(graph, again)) == 10
