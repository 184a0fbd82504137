"""FLOPs and moved bytes of ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from remat_cli.core.graph import Kind, Op
from remat_cli.core.operators import AttributeValue, Operand, Role
from remat_cli.costs import annotate_work
from remat_cli.training import annotate_saves
from tests.operators import Model, constant, value, weight


def op_of(
    type_: str,
    inputs: Sequence[Operand | None],
    *outputs: Operand | None,
    attributes: Mapping[str, AttributeValue] | None = None,
) -> Op:
    """Return one op with its work; the operator has a formula."""
    model = Model()
    model.add(type_, inputs, *outputs, attributes=attributes)
    graph, estimated = annotate_work(model.graph(kind=Kind.INFERENCE), model.operators)
    assert estimated == ()
    return graph.ops[0]


X = value("x", 2, 8, 4, 4)
Y = value("y", 2, 8, 4, 4)


@pytest.mark.parametrize(
    ("type_", "inputs", "output", "attributes", "multiply_adds"),
    [
        ("Conv", [X, weight("w", 16, 8, 3, 3)], value("y", 2, 16, 4, 4), {}, 2 * 16 * 4 * 4 * 8 * 9),
        ("Conv", [X, weight("w", 8, 1, 3, 3)], Y, {"group": 8}, 2 * 8 * 4 * 4 * 9),
        ("ConvTranspose", [X, weight("w", 8, 4, 2, 2)], value("y", 2, 4, 8, 8), {}, 2 * 8 * 4 * 4 * 4 * 4),
        ("MatMul", [value("a", 3, 5, 7), weight("b", 7, 11)], value("y", 3, 5, 11), {}, 3 * 5 * 7 * 11),
        ("MatMul", [value("a", 7), weight("b", 7)], value("y"), {}, 7),
        ("Gemm", [value("a", 5, 7), weight("b", 7, 11), weight("c", 11)], value("y", 5, 11), {}, 5 * 7 * 11),
        ("Gemm", [value("a", 7, 5), weight("b", 7, 11)], value("y", 5, 11), {"transA": 1}, 5 * 7 * 11),
        ("Einsum", [value("a", 2, 5, 7), value("b", 2, 7, 3)], value("y", 2, 5, 3), {"equation": "bij,bjk->bik"}, 210),
        (
            "Einsum",
            [value("a", 4, 1, 5, 7), value("b", 6, 7, 3)],
            value("y", 4, 6, 5, 3),
            {"equation": "...ij, ...jk -> ...ik"},
            4 * 6 * 5 * 7 * 3,
        ),
        ("MatMulInteger", [value("a", 5, 7, dtype="int8"), weight("b", 7, 11)], value("y", 5, 11), {}, 5 * 7 * 11),
        (
            "QLinearConv",
            [X, constant("s"), constant("z"), constant("w", 16, 8, 3, 3), constant("ws")],
            value("y", 2, 16, 4, 4),
            {},
            2 * 16 * 4 * 4 * 8 * 9,
        ),
        (
            "LSTM",
            [value("a", 6, 2, 3), weight("w", 1, 20, 3), weight("r", 1, 20, 5)],
            value("y", 6, 1, 2, 5),
            {},
            6 * 2 * 4 * 5 * (3 + 5),
        ),
        (
            "Attention",
            [value("q", 2, 4, 6, 8), value("k", 2, 4, 10, 8), value("v", 2, 4, 10, 8)],
            value("y", 2, 4, 6, 8),
            {},
            2 * 2 * 4 * 6 * 10 * 8,
        ),
        (
            "Attention",
            [value("q", 2, 6, 32), value("k", 2, 6, 32), value("v", 2, 6, 32), None, value("past", 2, 4, 4, 8)],
            value("y", 2, 6, 32),
            {"q_num_heads": 4},
            2 * 2 * 4 * 6 * 10 * 8,
        ),
        (
            "com.microsoft.Attention",
            [value("a", 2, 6, 32), weight("w", 32, 96)],
            value("y", 2, 6, 32),
            {},
            2 * 6 * 32 * 96 + 2 * 2 * 6 * 6 * 32,
        ),
    ],
)
def test_contraction_counts_two_flops_a_multiply_add(
    type_: str,
    inputs: list[Operand | None],
    output: Operand,
    attributes: Mapping[str, AttributeValue],
    multiply_adds: int,
) -> None:
    assert op_of(type_, inputs, output, attributes=attributes).flops == 2 * multiply_adds


@pytest.mark.parametrize(
    ("type_", "inputs", "output", "attributes", "flops"),
    [
        ("Relu", [X], Y, {}, 256),
        ("Tanh", [X], Y, {}, 8 * 256),
        ("Softmax", [X], Y, {}, 5 * 256),
        ("LayerNormalization", [X, weight("s", 4)], Y, {}, 8 * 256),
        ("Sum", [X, value("b", 2, 8, 4, 4), value("c", 4)], Y, {}, 2 * 256),
        ("MaxPool", [X], value("y", 2, 8, 2, 2), {"kernel_shape": (3, 3)}, 9 * 64),
        ("GlobalAveragePool", [X], value("y", 2, 8, 1, 1), {}, 256),
        ("ReduceMean", [X], value("y", 2, 8), {}, 256),
        ("Resize", [X, None, constant("scales", 4)], value("y", 2, 8, 8, 8), {"mode": "linear"}, 7 * 1024),
        ("Resize", [X, None, constant("scales", 4)], value("y", 2, 8, 8, 8), {}, 1024),
        ("TopK", [X, constant("k", 1)], value("y", 2, 8, 4, 4), {"axis": 1}, 256 * 3),
        ("Transpose", [X], Y, {}, 0),
    ],
)
def test_other_ops_count_by_element(
    type_: str,
    inputs: list[Operand | None],
    output: Operand,
    attributes: Mapping[str, AttributeValue],
    flops: int,
) -> None:
    assert op_of(type_, inputs, output, attributes=attributes).flops == flops


def test_bytes_are_inputs_with_weights_and_outputs() -> None:
    conv = op_of("Conv", [X, weight("w", 8, 8, 1, 1), weight("b", 8)], Y)
    assert conv.moved_bytes == 1024 + 256 + 32 + 1024


def test_operand_that_is_read_twice_is_moved_once() -> None:
    assert op_of("Mul", [X, X], Y).moved_bytes == 2048


@pytest.mark.parametrize(
    ("type_", "inputs", "output", "moved"),
    [
        ("Gather", [weight("table", 1000, 8), value("ids", 3, dtype="int64")], value("y", 3, 8), 96 + 24 + 96),
        ("Slice", [value("x", 1000), constant("starts", 1, dtype="int64")], value("y", 10), 40 + 8 + 40),
        ("Expand", [value("x", 1, 10), constant("shape", 2, dtype="int64")], value("y", 4, 10), 40 + 16 + 160),
        ("Shape", [value("x", 1000)], value("y", 1, dtype="int64"), 8),
    ],
)
def test_ops_that_read_a_part_of_their_input_move_that_part(
    type_: str, inputs: list[Operand | None], output: Operand, moved: int
) -> None:
    assert op_of(type_, inputs, output).moved_bytes == moved


def test_op_that_only_makes_views_does_no_work() -> None:
    model = Model()
    x = model.add("Exp", [value("in", 4)], value("x", 4))
    model.add("Reshape", [x], value("y", 2, 2), view_of=x)
    graph, _ = annotate_work(model.graph(), model.operators)
    view = graph.op["Reshape.y"]
    assert (view.flops, view.moved_bytes, view.grad_flops) == (0, 0, 0)


def test_view_of_a_weight_is_a_view_too() -> None:
    model = Model()
    turned = Operand("turned", Role.ACTIVATION, (4, 2), "float32", 0)
    model.add("Transpose", [weight("w", 2, 4)], turned)
    graph, _ = annotate_work(model.graph(), model.operators)
    assert (graph.ops[0].flops, graph.ops[0].moved_bytes) == (0, 0)


def test_empty_result_is_no_view() -> None:
    relu = op_of("Relu", [X], value("y", 0, 4))
    assert relu.moved_bytes == 1024


def test_unknown_operator_has_only_bytes_and_is_named() -> None:
    model = Model()
    model.add("my.domain.Swirl", [X], Y)
    graph, estimated = annotate_work(model.graph(), model.operators)
    assert estimated == ("my.domain.Swirl.y",)
    assert graph.ops[0].flops is None
    assert graph.ops[0].moved_bytes == 2048


@pytest.mark.parametrize(
    ("type_", "inputs", "attributes"),
    [
        (
            "Conv",
            [Operand("x", Role.ACTIVATION, (1,), "float32", 4), Operand("w", Role.PARAMETER, None, "float32", 4)],
            {},
        ),
        ("Conv", [X], {}),
        ("MaxPool", [X], {}),
        ("Einsum", [X], {"equation": "ij->i"}),
    ],
    ids=["shape not known", "no weights", "no kernel shape", "equation does not fit"],
)
def test_operator_of_which_too_little_is_known_is_an_estimate(
    type_: str, inputs: list[Operand], attributes: Mapping[str, AttributeValue]
) -> None:
    model = Model()
    model.add(type_, inputs, Y, attributes=attributes)
    _, estimated = annotate_work(model.graph(), model.operators)
    assert estimated == (f"{type_}.y",)


# --- Backward ---------------------------------------------------------------------------------------------------------


def backward_factors(model: Model) -> dict[str, float]:
    """Return the FLOPs of each op's backward over those of the op, after marking for training."""
    graph, _ = annotate_saves(model.graph(), model.operators)
    graph, _ = annotate_work(graph, model.operators)
    return {op.name: (op.grad_flops or 0) / op.flops for op in graph.ops if op.flops}


def test_backward_of_a_contraction_costs_one_forward_for_each_gradient_that_is_needed() -> None:
    model = Model()
    x = model.add("Conv", [value("image", 2, 3, 4, 4), weight("w", 8, 3, 1, 1), weight("b", 8)], X)
    h = model.add("Conv", [x, weight("v", 8, 8, 1, 1)], value("h", 2, 8, 4, 4))
    f = model.add("Conv", [h, constant("frozen", 8, 8, 1, 1)], value("f", 2, 8, 4, 4))
    model.add("MatMul", [f, x], value("y", 2, 8, 4, 4))
    assert backward_factors(model) == {"Conv.x": 1, "Conv.h": 2, "Conv.f": 1, "MatMul.y": 2}


def test_backward_of_other_ops_costs_two_forwards_and_of_fused_attention_two_and_a_half() -> None:
    model = Model()
    x = model.add("MatMul", [value("in", 2, 4, 6, 8), weight("w", 8, 8)], value("x", 2, 4, 6, 8))
    a = model.add("Attention", [x, x, x], value("a", 2, 4, 6, 8))
    model.add("Gelu", [a], value("y", 2, 4, 6, 8))
    assert backward_factors(model) == {"MatMul.x": 1, "Attention.a": 2.5, "Gelu.y": 2}


def test_op_without_a_backward_costs_nothing_there() -> None:
    model = Model()
    scaled = model.add("Exp", [value("in", 4, 4)], value("scaled", 4, 4))
    model.add("MatMul", [scaled, weight("w", 4, 4)], value("y", 4, 4))
    assert backward_factors(model)["Exp.scaled"] == 0


def test_statistics_that_training_adds_are_written_as_well() -> None:
    model = Model()
    x = model.add("MatMul", [value("in", 1, 4, 4), weight("w", 4, 4)], value("x", 1, 4, 4))
    model.add("MaxPool", [x], value("y", 1, 4, 2), attributes={"kernel_shape": (2,)})
    graph, _ = annotate_saves(model.graph(), model.operators)
    graph, _ = annotate_work(graph, model.operators)
    assert graph.op["MaxPool.y"].moved_bytes == 64 + 32 + 8 * 8
