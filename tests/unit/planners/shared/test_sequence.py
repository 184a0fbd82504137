"""Sequences of runs: the memory that they are said to take, and what is left out of them as useless."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Compute, Inplace, with_frees
from remat_cli.core.simulate import Trace, simulate
from remat_cli.planners.shared.sequence import RematSequence
from tests.graphs import chain, compute_sequences, graph_of, multi_output, op, small_graphs, training_graphs


def useful_runs(graph: Graph, computes: tuple[str, ...]) -> tuple[str, ...]:
    return RematSequence.of_names(graph, computes).without_useless_runs().names


def replayed(graph: Graph, computes: tuple[str, ...]) -> Trace:
    return simulate(graph, with_frees(graph, computes))


@given(data=st.data(), graph=small_graphs() | training_graphs())
def test_memory_of_each_run_is_what_the_judge_measures(data: st.DataObject, graph: Graph) -> None:
    sequence = RematSequence.of_names(graph, data.draw(compute_sequences(graph)))
    schedule = sequence.schedule()
    trace = simulate(graph, schedule)
    while_running = zip(trace.memory_bytes[1:], schedule.steps, strict=True)
    assert sequence.memory.tolist() == [memory for memory, step in while_running if isinstance(step, Compute | Inplace)]
    assert (sequence.peak, sequence.time) == (max(sequence.memory.tolist()), trace.time)


@given(data=st.data(), graph=small_graphs())
def test_what_is_left_is_valid_and_needs_no_more(data: st.DataObject, graph: Graph) -> None:
    computes = data.draw(compute_sequences(graph))
    left = useful_runs(graph, computes)
    before, after = replayed(graph, computes), replayed(graph, left)
    assert after.peak_bytes <= before.peak_bytes
    assert after.time <= before.time
    assert useful_runs(graph, left) == left


@given(data=st.data(), graph=small_graphs())
def test_each_run_that_is_left_is_an_ops_only_one_or_read(data: st.DataObject, graph: Graph) -> None:
    left = useful_runs(graph, data.draw(compute_sequences(graph)))
    for position, name in enumerate(left):
        later = left[position + 1 :]
        assert left.count(name) == 1 or any(is_read(graph, tensor, later) for tensor in graph.op[name].outputs)


def is_read(graph: Graph, tensor: str, later: tuple[str, ...]) -> bool:
    """Tell whether `tensor` is read, or there at the end, before it is made again."""
    for name in later:
        if tensor in graph.op[name].inputs:
            return True
        if tensor in graph.op[name].outputs:
            return False
    return tensor in graph.outputs


def test_a_run_that_only_serves_a_useless_one_goes_with_it() -> None:
    graph = chain(1, 1, 1)
    assert useful_runs(graph, ("f1", "f2", "f3", "f1", "f2")) == ("f1", "f2", "f3")


def test_a_run_is_useful_by_any_of_its_outputs() -> None:
    computes = ("split", "use_left", "split", "use_right")
    assert useful_runs(multi_output(), computes) == computes


def test_of_ops_run_for_nothing_the_first_run_stays() -> None:
    graph = graph_of(op("log", "x", ""), op("make", "x", "y"))
    assert useful_runs(graph, ("log", "make", "log")) == ("log", "make")


def test_takes_long_sequences() -> None:
    graph = chain(*[1] * 2000)
    names = [each.name for each in graph.ops]
    rng = random.Random(0)
    twice = tuple(name for name in names for _ in range(rng.choice([1, 2])))
    assert useful_runs(graph, twice) == tuple(names)
