"""Two versions of a graph: everything that their peaks differ by, and their ops matched by name and by shape."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from remat_cli.core.graph import Graph, Tensor, build_graph
from remat_cli.core.solve import baseline_of
from remat_cli.studies.difference import Difference, PeakContents, matched
from tests.graphs import graph_of, op, small_graphs, training_chain, training_graphs


@given(small_graphs(max_ops=7) | training_graphs(max_forward_ops=3), small_graphs(max_ops=7))
def test_changes_add_up_to_the_change_of_the_peak(old: Graph, new: Graph) -> None:
    for before, now in ((old, new), (new, old), (old, old)):
        changes = Difference(before, now).at_peak
        grown = baseline_of(now).peak_bytes - baseline_of(before).peak_bytes
        assert sum(change.bytes for change in changes) == grown
        assert not changes or before is not now


@given(training_graphs(max_forward_ops=3))
def test_what_is_at_the_peak_adds_up_to_it(graph: Graph) -> None:
    contents = PeakContents.of(graph)
    assert sum(contents.tensors.values()) + sum(contents.others.values()) == baseline_of(graph).peak_bytes


def renamed(graph: Graph, **names: str) -> Graph:
    return build_graph(
        name=graph.name,
        kind=graph.kind,
        time_unit=graph.time_unit,
        resident_bytes=graph.resident_bytes,
        tensors=graph.tensors.values(),
        ops=[replace(op, name=names.get(op.name, op.name)) for op in graph.ops],
        outputs=graph.outputs,
    )


def test_an_op_under_another_name_is_known_by_its_type_and_shapes() -> None:
    graph = training_chain(4)
    name = graph.ops[-1].name
    difference = Difference(graph, renamed(graph, **{name: "other"}))
    assert (difference.added, difference.gone, difference.resized) == ((), (), ())
    assert difference.renamed == 1
    assert difference.at_peak == ()


def test_ops_that_are_new_gone_and_of_other_shapes() -> None:
    first, last = (op("a", "", "x"), op("b", "x", "y")), op("c", "y", "z")
    old = graph_of(*first, last, sizes={"x": 4, "y": 4})
    new = graph_of(*first, replace(last, name="d", type="Other"), sizes={"x": 4, "y": 9})
    difference = Difference(old, new)
    assert [added.name for added in difference.added] == ["d"]
    assert [gone.name for gone in difference.gone] == ["c"]
    assert [(before.name, now.name) for before, now in difference.resized] == [("b", "b")]
    assert [(change.name, change.old_bytes, change.new_bytes) for change in difference.at_peak] == [("y", 4, 9)]


def test_what_is_alike_under_its_own_name_is_never_taken_for_another() -> None:
    assert matched({"a": 1, "b": 1}, {"b": 1, "c": 1}) == {"b": "b", "c": "a"}
    assert matched({"a": 1, "b": 2}, {"b": 1}) == {"b": "a"}
    assert matched({"a": 1}, {"a": 2}) == {"a": "a"}
    assert matched({"a": 1}, {"a": 2}, {"a": "Conv"}, {"a": "Relu"}) == {}


def test_a_tensor_of_an_input_that_grew() -> None:
    old, new = (
        build_graph(
            name="g",
            kind=training_chain(2).kind,
            time_unit="ns",
            resident_bytes=resident,
            tensors=[Tensor("i", size), Tensor("x", 1)],
            ops=[op("a", "i", "x")],
        )
        for size, resident in ((3, 10), (5, 11))
    )
    assert [(change.name, change.bytes) for change in Difference(old, new).at_peak] == [
        ("graph inputs", 2),
        ("resident bytes", 1),
    ]
