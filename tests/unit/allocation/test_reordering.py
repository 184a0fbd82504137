"""Other orders of a schedule's runs: they run, and their greedy arena is smaller."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.allocation.greedy import greedy_offsets
from remat_cli.allocation.instance import Instance
from remat_cli.allocation.lifetimes import needed_by
from remat_cli.allocation.reordering import reordered
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Free, Offload, Prefetch, Schedule, Wait, plain_run, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.generate.layered import Layered
from remat_cli.synthesis import synthesize
from tests.graphs import chain, compute_sequences, small_graphs


def never() -> bool:
    return False


def greedy_bytes(graph: Graph, schedule: Schedule) -> int:
    buffers = needed_by(graph, schedule).buffers
    if not buffers:
        return 0
    instance = Instance.of(buffers, 1)
    return min(int((offsets + instance.sizes).max()) for offsets in greedy_offsets(instance))


@settings(max_examples=25)
@given(st.data(), small_graphs())
def test_another_order_runs_the_same_ops_in_a_smaller_arena(data: st.DataObject, graph: Graph) -> None:
    schedule = with_frees(graph, data.draw(compute_sequences(graph)))
    tries = iter(range(40))
    other = reordered(graph, schedule, 0, 1, lambda: next(tries, None) is None)
    if other is None:
        return
    assert simulate(graph, other).time == simulate(graph, schedule).time
    assert sorted(other.computes) == sorted(schedule.computes)
    assert greedy_bytes(graph, other) < greedy_bytes(graph, schedule)


def test_random_graph_takes_less_than_its_plain_run_at_the_least() -> None:
    graph = synthesize(Layered(), ops=40).graph
    other = reordered(graph, plain_run(graph), 0, 1, never)
    assert other is not None
    assert greedy_bytes(graph, other) < simulate(graph, plain_run(graph)).peak_bytes - graph.resident_bytes
    assert reordered(graph, plain_run(graph), 0, 1, never) == other


def test_nothing_is_tried_where_the_arena_is_small_enough_or_the_search_over() -> None:
    graph = synthesize(Layered(), ops=60).graph
    assert reordered(graph, plain_run(graph), 2**60, 1, never) is None
    assert reordered(graph, plain_run(graph), 0, 1, lambda: True) is None


def test_what_moves_to_the_host_keeps_its_order() -> None:
    graph = chain(3, 4, 5)
    first, *rest = plain_run(graph).steps
    name = graph.ops[0].outputs[0]
    moves = (Offload(name), Wait(name), Free(name), Prefetch(name), Wait(name))
    assert reordered(graph, Schedule((first, *moves, *rest)), 0, 1, never) is None
