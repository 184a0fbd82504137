"""What holds for the training graph of any forward graph."""

from __future__ import annotations

import json

from hypothesis import given

from remat_cli.core.graph import Graph, Phase
from remat_cli.core.schedule import input_order, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.formats import native
from remat_cli.training import ACCUMULATION_TYPE, LOSS_TYPE, training_graph
from tests.graphs import forward_graphs


def gradient_readers(forward: Graph, graph: Graph, name: str) -> list[str]:
    """Return the ops that have a gradient for tensor `name`: the loss, and backward ops of those that read it."""
    differentiated = {op.grad_of: op.name for op in graph.ops if op.grad_of is not None}
    readers = []
    for op in forward.ops:
        receiving = op.grad_inputs
        if receiving is None:
            receiving = tuple(each for each in op.inputs if each in forward.producer)
        if op.name in differentiated and name in receiving:
            readers.append(differentiated[op.name])
    loss = next(op for op in graph.ops if op.type == LOSS_TYPE)
    return readers + ([loss.name] if name in loss.inputs and f"{name}.grad" in loss.outputs else [])


@given(forward_graphs())
def test_plain_run_is_a_valid_schedule(forward: Graph) -> None:
    graph = training_graph(forward)
    simulate(graph, with_frees(graph, input_order(graph)))


@given(forward_graphs())
def test_backward_ops_come_once_each_in_reverse_order(forward: Graph) -> None:
    graph = training_graph(forward)
    order = [op.grad_of for op in graph.ops if op.grad_of is not None]
    assert len(set(order)) == len(order)
    forward_order = [op.name for op in forward.ops if op.name in set(order)]
    assert order == forward_order[::-1]


@given(forward_graphs())
def test_forward_ops_come_first_and_unchanged_but_for_their_marks(forward: Graph) -> None:
    graph = training_graph(forward)
    count = len(forward.ops)
    for before, after in zip(forward.ops, graph.ops, strict=False):
        assert (before.name, before.inputs, before.outputs, before.time, before.inplace) == (
            after.name,
            after.inputs,
            after.outputs,
            after.time,
            after.inplace,
        )
    assert {op.phase for op in graph.ops[count:]} == {Phase.BACKWARD}


@given(forward_graphs())
def test_every_reader_contributes_once_to_the_gradient_that_the_producers_backward_reads(forward: Graph) -> None:
    graph = training_graph(forward)
    backward = {op.grad_of: op for op in graph.ops if op.grad_of is not None}
    for name, producer in forward.producer.items():
        readers = gradient_readers(forward, graph, name)
        parts = [each for each in graph.tensors if each == f"{name}.grad" or each.startswith(f"{name}.grad.")]
        sums = [each for each in parts if graph.producer[each].type == ACCUMULATION_TYPE]
        assert sorted(graph.producer[each].name for each in parts if each not in sums) == sorted(readers)
        assert len(sums) == max(0, len(readers) - 1)
        if readers:
            assert (sums or parts)[-1] in backward[producer.name].inputs


@given(forward_graphs())
def test_in_place_sums_only_take_storage_that_nobody_else_reads(forward: Graph) -> None:
    graph = training_graph(forward)
    bases = {tensor.view_of for tensor in graph.tensors.values()}
    for op in graph.ops:
        if op.type == ACCUMULATION_TYPE and op.inplace is not None:
            assert graph.consumers[op.inplace] == (op,)
            assert graph.tensors[op.inplace].view_of is None
            assert op.inplace not in bases
            assert op.inplace not in graph.outputs


@given(forward_graphs())
def test_written_and_read_again_gives_the_same_training_graph(forward: Graph) -> None:
    again = native.from_document(json.loads(native.graph_bytes(forward)), "test").graph
    assert native.graph_bytes(training_graph(again)) == native.graph_bytes(training_graph(forward))
