"""The memory of schedules at other sizes is the judge's to the byte, whatever the sizes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.config import GraphOptions, Request
from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.core.schedule import Schedule, plain_run, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import activations_of, baseline_of
from remat_cli.errors import GraphError
from remat_cli.pytorch.plan.budget_source import BudgetSource, OwnState
from remat_cli.pytorch.plan.sized_memory import ResizedGraph, SizedMemory
from remat_cli.units import parse_budget
from tests.graphs import chain, compute_sequences, in_place, small_graphs, training_graphs
from tests.property.test_links import moving

GRAPHS = small_graphs(max_ops=7) | training_graphs(max_forward_ops=3)
SIZES = st.sampled_from([0, 1, 2, 3, 7, 10, 64, 1000, 12345])


@st.composite
def resizing(draw: st.DrawFn, graph: Graph) -> tuple[Graph, ResizedGraph]:
    """Draw workspaces for a graph, and other sizes of its tensors, one of which counts for none."""
    ops = tuple(replace(op, workspace_bytes=draw(SIZES)) for op in graph.ops)
    graph = replace(graph, ops=ops)
    sizes = {name: draw(SIZES) for name in graph.tensors if draw(st.integers(0, 5))}
    return graph, ResizedGraph(graph, sizes)


def with_places(graph: Graph) -> Graph:
    """Return the graph with ops that work in place where they can."""
    ops = (replace(op, inplace=op.inputs[0] if op.inputs and op.outputs else None) for op in graph.ops)
    return replace(graph, ops=tuple(ops))


def assert_as_judged(graph: Graph, schedule: Schedule, there: ResizedGraph, link: Link | None = None) -> None:
    memory = SizedMemory(graph, schedule)
    trace = simulate(there.graph, schedule, link=link)
    assert there.peak_bytes(memory) == trace.peak_bytes
    assert there.fixed_bytes == there.graph.fixed_bytes
    assert memory.time == trace.time - trace.idle_time


@given(st.data())
def test_peak_at_other_sizes_is_the_judges(data: st.DataObject) -> None:
    graph = data.draw(GRAPHS.map(with_places) | GRAPHS)
    computes = data.draw(compute_sequences(graph))
    graph, there = data.draw(resizing(graph))
    assert_as_judged(graph, with_frees(graph, computes), there)


@given(st.data())
def test_peak_with_copies_to_the_host_is_the_judges(data: st.DataObject) -> None:
    graph, schedule = data.draw(moving())
    graph, there = data.draw(resizing(graph))
    assert_as_judged(graph, schedule, there, Link(Fraction(1)))


@given(st.data())
def test_plain_run_at_other_sizes_is_that_of_the_other_graph(data: st.DataObject) -> None:
    """With other sizes, ops may save nothing by working in place: then the plain run has another schedule."""
    _, there = data.draw(resizing(data.draw(GRAPHS.map(with_places) | GRAPHS)))
    assert there.plain_peak_bytes == baseline_of(there.graph).peak_bytes
    assert there.activations == activations_of(there.graph)


@given(st.data(), st.sampled_from(["60%", "60% of activations"]), st.integers(0, 5))
def test_share_at_other_sizes_is_that_of_the_other_graph(data: st.DataObject, budget: str, missed: int) -> None:
    graph = replace(data.draw(GRAPHS), resident_bytes=10)
    _, there = data.draw(resizing(graph))
    source = BudgetSource(Request(parse_budget(budget)), GraphOptions(), own=OwnState(missed_bytes=missed))
    assert source.share_at(there) == source.request_for(there.graph).budget_bytes(there.graph)


def test_op_in_place_counts_the_larger_of_input_and_output() -> None:
    graph = in_place()
    for sizes in ({"x": 9}, {"y": 9}, {"x": 1, "y": 9, "z": 20}, {"x": 0}):
        assert_as_judged(graph, plain_run(graph), ResizedGraph(graph, sizes))


def test_sizes_beyond_all_memory_are_refused_as_in_the_graph() -> None:
    with pytest.raises(GraphError, match="more than 2\\^60"):
        ResizedGraph(chain(1, 1), {"t1": 2**70})
