from __future__ import annotations

from remat_cli.core.bounds import WorkingSet, largest_working_set, working_set_bytes
from tests.graphs import chain, diamond, graph_of, in_place, op, with_view, with_workspace


def test_largest_op_with_inputs_and_outputs_together() -> None:
    assert largest_working_set(chain(1, 5, 3, 1)) == WorkingSet(8, "f3", ("t2", "t3"))


def test_workspace_counts() -> None:
    assert largest_working_set(with_workspace()) == WorkingSet(2 + 3 + 7, "b", ("y", "x"))


def test_first_of_two_equal_ops_is_named() -> None:
    assert largest_working_set(diamond()).op == "b"


def test_resident_bytes_and_graph_inputs_are_there_for_every_op() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "in", "y"), sizes={"in": 10, "x": 5, "y": 1}, resident_bytes=100)
    assert largest_working_set(graph) == WorkingSet(100 + 10 + 6, None, ("x", "y"))
    assert working_set_bytes(graph, graph.op["a"]) == 100 + 10 + 5


def test_graph_input_that_the_op_reads_counts_once() -> None:
    graph = graph_of(op("a", "in", "x"), sizes={"in": 10, "x": 1})
    assert working_set_bytes(graph, graph.op["a"]) == 11


def test_outputs_are_there_together_at_the_end() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "", "y"), op("c", "", "z"), sizes={"x": 2, "y": 3, "z": 4})
    assert largest_working_set(graph) == WorkingSet(9, None, ("z", "y", "x"))


def test_graph_input_among_the_outputs_counts_once() -> None:
    graph = graph_of(op("a", "in", "x"), sizes={"in": 10, "x": 1}, outputs=["in", "x"])
    assert largest_working_set(graph).bytes == 11


def test_op_that_works_in_place_needs_the_larger_of_the_two() -> None:
    graph = in_place()
    assert working_set_bytes(graph, graph.op["relu"]) == 4
    growing = graph_of(op("a", "", "x"), op("cast", "x", "y mask", inplace="x"), sizes={"x": 4, "y": 6, "mask": 1})
    assert working_set_bytes(growing, growing.op["cast"]) == 7


def test_op_cannot_work_in_place_on_a_graph_input() -> None:
    graph = graph_of(op("relu", "in", "y", inplace="in"), sizes={"in": 4, "y": 4})
    assert working_set_bytes(graph, graph.op["relu"]) == 8


def test_view_adds_nothing_but_its_base() -> None:
    graph = with_view()
    assert working_set_bytes(graph, graph.op["use"]) == 6 + 1
