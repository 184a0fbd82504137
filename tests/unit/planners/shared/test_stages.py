"""A graph laid out in an order of first runs, against the judge and against plain sums."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Graph, Op
from remat_cli.core.schedule import Compute, Inplace, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.planners.shared.numbering import Ragged, sums
from remat_cli.planners.shared.stages import Stages
from tests.graphs import small_graphs, topological_orders, training_graphs


@st.composite
def orders(draw: st.DrawFn) -> tuple[Graph, list[Op]]:
    """A graph, and an order in which its ops can run."""
    graph = draw(small_graphs() | training_graphs())
    return graph, list(topological_orders(draw, graph))


@given(drawn=orders())
def test_plain_bytes_in_any_order_are_what_the_judge_measures(drawn: tuple[Graph, list[Op]]) -> None:
    graph, order = drawn
    numbers = np.array([graph.arrays.op_index[each.name] for each in order], dtype=np.int64)
    schedule = with_frees(graph, [each.name for each in order])
    steps = zip(simulate(graph, schedule).memory_bytes[1:], schedule.steps, strict=True)
    measured = [memory for memory, step in steps if isinstance(step, Compute | Inplace)]
    stages = Stages.of(graph, numbers)
    assert (stages.plain_bytes + graph.fixed_bytes).tolist() == measured
    assert stages.time.tolist() == [each.time for each in order]
    assert stages.recomputable.tolist() == [each.recomputable for each in order]


@given(graph=small_graphs())
def test_reads_are_those_of_the_ops_and_of_the_end(graph: Graph) -> None:
    stages = Stages.of(graph)
    names = graph.arrays.tensor_names
    real = {t for t in graph.producer if graph.tensors[t].bytes}
    for number, each in enumerate(graph.ops):
        assert {names[stages.tensor[t]] for t in stages.inputs[number]} == real & set(each.inputs)
        assert {names[stages.tensor[t]] for t in stages.outputs[number]} == real & set(each.outputs)
    at_the_end = stages.read_tensor[stages.read_stage == len(stages)]
    assert {names[stages.tensor[t]] for t in at_the_end} == real & set(graph.outputs)


LISTS = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6)


@given(lists=LISTS, weights=st.lists(st.integers(0, 2**58), min_size=10, max_size=10), data=st.data())
def test_ragged_lists_are_lists(lists: list[list[int]], weights: list[int], data: st.DataObject) -> None:
    index = np.array([i for i, each in enumerate(lists) for _ in each], dtype=np.int64)
    values = np.array([value for each in lists for value in each], dtype=np.int64)
    ragged = Ragged.of(index, values, len(lists))
    assert [ragged[i].tolist() for i in range(len(ragged))] == lists
    assert ragged.sums(np.array(weights)).tolist() == [sum(weights[value] for value in each) for each in lists]
    assert sums(index, np.array(weights)[values], len(lists)).tolist() == ragged.sums(np.array(weights)).tolist()
    some = data.draw(st.lists(st.sampled_from(range(len(lists))), max_size=5)) if lists else []
    position, found = ragged.expand(np.array(some, dtype=np.int64))
    assert list(zip(position.tolist(), found.tolist(), strict=True)) == [
        (at, value) for at, number in enumerate(some) for value in lists[number]
    ]
