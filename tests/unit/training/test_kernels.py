"""Ops of several nodes, in the forms in which exporters and models write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from remat_cli.core.operators import Operand
from remat_cli.training import FusedGraph, Kernels, annotate_saves, kept_for_backward, training_graph, with_kernels
from tests.operators import Model, constant, value, weight

SHAPE = (2, 4, 8, 16)
HEADS = (2, 4, 8, 8)


class Net:
    """Nodes of one shape between a first and a last matrix product."""

    def __init__(self) -> None:
        self.model = Model()
        self.x = self.linear(value("in", *SHAPE))

    def add(self, type_: str, *inputs: Operand | float, shape: tuple[int, ...] = SHAPE, **attributes: int) -> Operand:
        """Add a node; a number is a constant."""
        number = len(self.model.operators)
        operands = [each if isinstance(each, Operand) else constant(f"c{number}") for each in inputs]
        return self.model.add(type_, operands, value(f"t{number}", *shape), attributes=attributes)

    def linear(self, x: Operand) -> Operand:
        return self.add("MatMul", x, weight(f"w{len(self.model.operators)}", SHAPE[-1], SHAPE[-1]))

    def fused(self, which: Kernels, *outputs: Operand) -> FusedGraph:
        return with_kernels(self.model.graph(*outputs), self.model.operators, which)


def swish(net: Net) -> Operand:
    return net.add("Mul", net.x, net.add("Sigmoid", net.x))


def gelu_of_dynamo(net: Net) -> Operand:
    half = net.add("Mul", 0.5, net.add("Add", net.add("Erf", net.add("Div", net.x, 1.4)), 1.0))
    return net.add("Mul", net.x, half)


def gelu_of_the_legacy_exporter(net: Net) -> Operand:
    product = net.add("Mul", net.x, net.add("Add", net.add("Erf", net.add("Div", net.x, 1.4)), 1.0))
    return net.add("Mul", product, 0.5)


def gelu_spelled_out(net: Net) -> Operand:
    half = net.add("Mul", net.x, 0.5)
    return net.add("Mul", half, net.add("Add", net.add("Erf", net.add("Div", net.x, 1.4)), 1.0))


def tanh(net: Net, cube: Operand) -> Operand:
    sum_ = net.add("Add", net.x, net.add("Mul", cube, 0.044))
    return net.add("Add", net.add("Tanh", net.add("Mul", sum_, 0.8)), 1.0)


def tanh_gelu_of_dynamo(net: Net) -> Operand:
    return net.add("Mul", net.x, net.add("Mul", 0.5, tanh(net, net.add("Pow", net.x, 3.0))))


def tanh_gelu_of_the_legacy_exporter(net: Net) -> Operand:
    cube = net.add("Mul", net.x, net.add("Mul", net.x, net.x))
    return net.add("Mul", 0.5, net.add("Mul", net.x, tanh(net, cube)))


def tanh_gelu_of_gpt2(net: Net) -> Operand:
    return net.add("Mul", net.add("Mul", net.x, 0.5), tanh(net, net.add("Pow", net.x, 3.0)))


ROWS = (*SHAPE[:-1], 1)


def layer_norm(net: Net) -> Operand:
    centred = net.add("Sub", net.x, net.add("ReduceMean", net.x, shape=ROWS))
    variance = net.add("ReduceMean", net.add("Pow", centred, 2.0), shape=ROWS)
    normal = net.add("Div", centred, net.add("Sqrt", net.add("Add", variance, 1e-5, shape=ROWS), shape=ROWS))
    return net.add("Add", net.add("Mul", normal, weight("scale", 16)), weight("bias", 16))


def rms_norm_of_llama(net: Net) -> Operand:
    mean = net.add("ReduceMean", net.add("Pow", net.x, 2.0), shape=ROWS)
    root = net.add("Sqrt", net.add("Add", mean, 1e-5, shape=ROWS), shape=ROWS)
    normal = net.add("Mul", net.x, net.add("Reciprocal", root, shape=ROWS))
    return net.add("Mul", weight("scale", 16), normal)


def group_norm(net: Net) -> Operand:
    groups = net.add("Reshape", net.x, shape=(2, 2, 256))
    normal = net.add("InstanceNormalization", groups, 1.0, 0.0, shape=(2, 2, 256))
    joined = net.add("Reshape", normal)
    return net.add("Add", net.add("Mul", joined, weight("scale", 4, 1, 1)), weight("bias", 4, 1, 1))


def attention(
    net: Net,
    *,
    scaled: str = "both",
    mask: Operand | None = None,
    guard: bool = False,
    masked_by: str = "Add",
    dropout: bool = False,
) -> Operand:
    q, k, v = net.linear(net.x), net.linear(net.x), net.linear(net.x)
    turned = net.add("Transpose", k, shape=(2, 4, 16, 8))
    if scaled in ("both", "queries"):
        q = net.add("Mul", q, 0.5)
    if scaled == "both":
        turned = net.add("Mul", turned, 0.5, shape=(2, 4, 16, 8))
    scores = net.add("MatMul", q, turned, shape=HEADS)
    if scaled == "scores":
        scores = net.add("Div", scores, 4.0, shape=HEADS)
    if mask is not None:
        operands = (scores, mask) if masked_by == "Add" else (mask, -1e9, scores)
        scores = net.add(masked_by, *operands, shape=HEADS)
    weights = net.add("Softmax", scores, shape=HEADS)
    if guard:
        weights = net.add("Where", net.add("IsNaN", weights, shape=HEADS), 0.0, weights, shape=HEADS)
    if dropout:
        weights = net.add("Dropout", weights, 0.1, shape=HEADS)
    return net.add("MatMul", weights, v)


def masked_attention(net: Net) -> Operand:
    return attention(net, mask=value("mask", 8, 8), guard=True, dropout=True)


def eager_attention(net: Net) -> Operand:
    return attention(net, scaled="scores", mask=value("mask", 8, 8), dropout=True)


def filled_attention(net: Net) -> Operand:
    return attention(net, scaled="scores", mask=value("mask", 8, 8, dtype="bool"), masked_by="Where")


def attention_of_scaled_queries(net: Net) -> Operand:
    return attention(net, scaled="queries")


Form = Callable[[Net], Operand]
OF_EXPORTERS: list[tuple[Form, str, set[str]]] = [
    (swish, "Swish", {"x"}),
    (gelu_of_dynamo, "Gelu", {"x"}),
    (gelu_of_the_legacy_exporter, "Gelu", {"x"}),
    (tanh_gelu_of_dynamo, "Gelu", {"x"}),
    (tanh_gelu_of_the_legacy_exporter, "Gelu", {"x"}),
    (layer_norm, "LayerNormalization", {"x", "mean", "inv_std"}),
    (group_norm, "GroupNormalization", {"x", "mean", "inv_std"}),
    (attention, "Attention", {"q", "k", "v", "y", "logsumexp"}),
    (masked_attention, "Attention", {"q", "k", "v", "mask", "y", "logsumexp"}),
]
SPELLED_OUT: list[tuple[Form, str, set[str]]] = [
    (gelu_spelled_out, "Gelu", {"x"}),
    (tanh_gelu_of_gpt2, "Gelu", {"x"}),
    (rms_norm_of_llama, "RMSNormalization", {"x", "inv_rms"}),
    (eager_attention, "Attention", {"q", "k", "v", "mask", "y", "logsumexp"}),
    (filled_attention, "Attention", {"q", "k", "v", "mask", "y", "logsumexp"}),
    (attention_of_scaled_queries, "Attention", {"q", "k", "v", "y", "logsumexp"}),
]


def saved_by_the_one_op(net: Net, y: Operand, found: FusedGraph, type_: str) -> set[str]:
    """Return what the op of this type saves, by what it is; there is one."""
    (op,) = (op for op in found.graph.ops if op.type == type_)
    annotated, guessed = annotate_saves(found.graph, found.operators)
    assert guessed == ()
    inputs = found.operators[op.name].inputs
    letters = dict(zip((each.name for each in inputs if each is not None), ("q", "k", "v", "mask"), strict=False))
    named = {net.x.name: "x", y.name: "y"} | (letters if type_ == "Attention" else {})
    return {named.get(name, name.removeprefix(f"{op.name}.")) for name in annotated.op[op.name].saves or ()}


@pytest.mark.parametrize("which", [Kernels.ORIGINAL, Kernels.FUSED])
@pytest.mark.parametrize(("form", "type_", "saved"), OF_EXPORTERS)
def test_what_an_exporter_takes_apart_saves_what_the_one_op_saves(
    form: Form, type_: str, saved: set[str], which: Kernels
) -> None:
    net = Net()
    y = form(net)
    net.linear(y)
    found = net.fused(which)
    assert found.groups == {type_: 1}
    assert saved_by_the_one_op(net, y, found, type_) == saved
    assert len(found.graph.ops) == len(net.model.operators) - found.nodes + 1
    assert found.graph.producer[y.name].type == type_


@pytest.mark.parametrize(("form", "type_", "saved"), SPELLED_OUT)
def test_what_a_model_spells_out_is_one_op_where_that_is_asked_for(form: Form, type_: str, saved: set[str]) -> None:
    net = Net()
    y = form(net)
    net.linear(y)
    assert net.fused(Kernels.ORIGINAL).groups == {}
    found = net.fused(Kernels.FUSED)
    assert found.groups == {type_: 1}
    assert saved_by_the_one_op(net, y, found, type_) == saved


@pytest.mark.parametrize("form", [form for form, *_ in (*OF_EXPORTERS, *SPELLED_OUT)])
def test_nothing_is_put_together_where_the_nodes_are_meant_as_they_stand(form: Form) -> None:
    net = Net()
    net.linear(form(net))
    graph = net.model.graph()
    found = with_kernels(graph, net.model.operators, Kernels.WRITTEN)
    assert (found.graph, found.operators, found.groups) == (graph, net.model.operators, {})


@pytest.mark.parametrize("form", [form for form, *_ in (*OF_EXPORTERS, *SPELLED_OUT)])
def test_nodes_whose_inner_value_is_a_result_of_the_graph_stay_as_they_are(form: Form) -> None:
    for inner in range(1, len(net_of(form).model.operators) - 1):
        net = net_of(form)
        made = [operator.outputs[0] for operator in net.model.operators.values()]
        leaked, last = made[inner], made[-1]
        assert leaked is not None
        assert last is not None
        found = net.fused(Kernels.FUSED, leaked, last)
        assert leaked.name in found.graph.producer
        assert leaked.name in found.graph.outputs


def net_of(form: Form) -> Net:
    net = Net()
    form(net)
    return net


def test_a_product_of_two_sigmoids_is_no_swish() -> None:
    net = Net()
    net.add("Mul", net.linear(net.x), net.add("Sigmoid", net.x))
    assert net.fused(Kernels.FUSED).groups == {}


def test_a_norm_over_other_dimensions_than_the_last_is_none_of_these() -> None:
    net = Net()
    channels = (2, 1, 8, 16)
    mean = net.add("ReduceMean", net.add("Pow", net.x, 2.0), shape=channels)
    root = net.add("Sqrt", net.add("Add", mean, 1e-5, shape=channels), shape=channels)
    net.add("Mul", net.x, net.add("Reciprocal", root, shape=channels))
    assert net.fused(Kernels.FUSED).groups == {}


def test_attention_with_dropout_is_not_run_twice() -> None:
    net = Net()
    masked_attention(net)
    graph = net.model.graph()
    drawn = replace(graph, ops=tuple(replace(op, recomputable=op.type != "Dropout") for op in graph.ops))
    found = with_kernels(drawn, net.model.operators, Kernels.ORIGINAL)
    assert [op.type for op in found.graph.ops if not op.recomputable] == ["Attention"]


def test_a_sequence_of_parts_is_one_split_with_one_gradient() -> None:
    model = Model()
    packed = model.add("MatMul", [value("in", 4, 8), weight("w", 8, 24)], value("packed", 4, 24))
    parts = model.add("SplitToSequence", [packed, constant("size")], value("parts", 3, 4, 8), view_of=packed)
    taken = [
        model.add("SequenceAt", [parts, constant(f"i{one}")], value(f"part{one}", 4, 8), view_of=packed)
        for one in range(3)
    ]
    model.add("Sum", [model.add("Tanh", [part], value(f"y{part.name}", 4, 8)) for part in taken], value("y", 4, 8))
    found = with_kernels(model.graph(), model.operators, Kernels.ORIGINAL)
    assert [op.type for op in found.graph.ops] == ["MatMul", "Split", "Tanh", "Tanh", "Tanh", "Sum"]
    annotated, guessed = annotate_saves(found.graph, found.operators)
    training = training_graph(annotated)
    assert guessed == ()
    assert training.tensors["packed.grad"].bytes == 4 * 24 * 4
    assert kept_for_backward(training).float_bytes == 3 * 4 * 8 * 4


def test_a_sequence_that_is_not_only_taken_apart_has_a_backward_too() -> None:
    model = Model()
    packed = model.add("MatMul", [value("in", 4, 8), weight("w", 8, 24)], value("packed", 4, 24))
    parts = model.add("SplitToSequence", [packed, constant("size")], value("parts", 3, 4, 8), view_of=packed)
    model.add("SequenceAt", [parts, constant("i")], value("part", 4, 8), view_of=packed)
    model.add("ConcatFromSequence", [parts], value("y", 4, 24))
    found = with_kernels(model.graph(), model.operators, Kernels.ORIGINAL)
    assert found.groups == {}
    annotated, guessed = annotate_saves(found.graph, found.operators)
    assert guessed == ()
    assert all(annotated.op[name].grad_inputs for name in ("SplitToSequence.parts", "ConcatFromSequence.y"))
