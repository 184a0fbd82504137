"""The flat arrays of a graph: the numbers that all planners share."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from remat_cli.core.graph import Graph
from remat_cli.planners.shared.numbering import GraphReads, Ragged, sums
from tests.graphs import graph_of, op, small_graphs


@given(small_graphs())
def test_every_read_is_one_of_the_graph_in_its_numbers(graph: Graph) -> None:
    reader, tensor = GraphReads.of(graph).every_read
    names = graph.arrays.tensor_names
    read = [(graph.ops[op].name, names[t]) for op, t in zip(reader.tolist(), tensor.tolist(), strict=True)]
    assert read == [(each.name, name) for each in graph.ops for name in each.inputs]


def test_tensors_that_can_always_stay_do_not_count() -> None:
    graph = graph_of(op("a", "given", "x empty"), op("b", "x empty given", "y"), sizes={"given": 3, "x": 2, "empty": 0})
    reads, number = GraphReads.of(graph), graph.arrays.tensor_index
    assert [reads.inputs[each].tolist() for each in range(2)] == [[], [number["x"]]]
    assert reads.outputs[0].tolist() == [number["x"]]
    assert reads.kept.tolist() == [number["y"]]


def test_lists_of_numbers_are_summed_and_laid_end_to_end() -> None:
    ragged = Ragged.of(np.array([0, 0, 2]), np.array([4, 1, 3]), 3)
    assert ragged.sums(np.array([0, 10, 20, 30, 40])).tolist() == [50, 0, 30]
    position, values = ragged.expand(np.array([2, 0, 1]))
    assert (position.tolist(), values.tolist()) == ([0, 1, 1], [3, 4, 1])
    assert sums(np.array([1, 1, 0]), np.array([2, 3, 4]), 3).tolist() == [4, 5, 0]
