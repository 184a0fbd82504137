"""What the backward of each op reads, and which inputs receive a gradient."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from remat_cli.core.graph import Graph, Op
from remat_cli.core.operators import AttributeValue, Operand
from remat_cli.training import annotate_saves, trainable_parameters
from tests.operators import Model, constant, value, weight


def annotated(model: Model, *outputs: Operand) -> Graph:
    draft, guessed = annotate_saves(model.graph(*outputs), model.operators)
    assert guessed == ()
    return draft.checked()


def op_after_conv(
    type_: str,
    *others: Operand | None,
    y: Operand | None = None,
    opset: int = 20,
    attributes: Mapping[str, AttributeValue] | None = None,
) -> Op:
    """Return op `type_` of a differentiable activation x [2, 8, 4, 4] and `others`, marked for training."""
    model = Model()
    x = model.add("Conv", [value("image", 2, 3, 4, 4), weight("w", 8, 3, 1, 1)], value("x", 2, 8, 4, 4))
    y = model.add(type_, [x, *others], y or value("y", 2, 8, 4, 4), opset=opset, attributes=attributes)
    graph, _ = annotate_saves(model.graph(y), model.operators)
    return graph.op[f"{type_}.y"]


@pytest.mark.parametrize("type_", ["Relu", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Sqrt", "Exp", "Reciprocal"])
def test_saves_its_output(type_: str) -> None:
    assert op_after_conv(type_).saves == ("y",)


@pytest.mark.parametrize("type_", ["Gelu", "HardSwish", "Erf", "Log", "Sin", "Abs", "Elu", "Clip", "LeakyRelu"])
def test_saves_its_input(type_: str) -> None:
    assert op_after_conv(type_).saves == ("x",)


@pytest.mark.parametrize("type_", ["ReduceMax", "ReduceL2", "ReduceLogSumExp"])
def test_saves_input_and_output(type_: str) -> None:
    assert op_after_conv(type_).saves == ("x", "y")


@pytest.mark.parametrize("type_", ["Neg", "Cast", "Transpose", "Slice", "ReduceMean", "GlobalAveragePool", "Resize"])
def test_saves_nothing_but_passes_the_gradient_on(type_: str) -> None:
    op = op_after_conv(type_)
    assert op.saves == ()
    assert op.grad_inputs == ("x",)


@pytest.mark.parametrize("type_", ["Floor", "Sign", "QuantizeLinear"])
def test_op_without_gradient_stops_it(type_: str) -> None:
    op = op_after_conv(type_)
    assert op.saves == ()
    assert op.grad_inputs == ()


def test_product_with_a_constant_saves_nothing() -> None:
    assert op_after_conv("Mul", constant("c", 2, 8, 4, 4)).saves == ()


def test_product_with_a_weight_saves_the_activation() -> None:
    assert op_after_conv("Mul", weight("v", 8, 1, 1)).saves == ("x",)


def test_product_with_an_activation_without_gradient_saves_that_one_alone() -> None:
    op = op_after_conv("Mul", value("mask", 2, 8, 4, 4))
    assert op.saves == ("mask",)
    assert op.grad_inputs == ("x",)


def test_product_of_two_activations_saves_both() -> None:
    model = Model()
    x = model.add("MatMul", [value("a", 4, 4), weight("v", 4, 4)], value("x", 4, 4))
    z = model.add("MatMul", [value("a", 4, 4), weight("w", 4, 4)], value("z", 4, 4))
    y = model.add("MatMul", [x, z], value("y", 4, 4))
    op = annotated(model, y).op["MatMul.y"]
    assert set(op.saves or ()) == {"x", "z"}
    assert op.grad_inputs == ("x", "z")


def test_quotient_by_a_constant_saves_nothing() -> None:
    assert op_after_conv("Div", constant("c", 1)).saves == ()


def test_quotient_saves_the_dividend_only_for_the_divisors_gradient() -> None:
    assert op_after_conv("Div", value("d", 2, 8, 4, 4)).saves == ("d",)
    assert op_after_conv("Div", weight("d", 8, 4, 4)).saves == ("x",)


def test_first_convolution_saves_its_input_and_has_no_input_gradient() -> None:
    model = Model()
    model.add("Conv", [value("image", 2, 3, 4, 4), weight("w", 8, 3, 1, 1)], value("y", 2, 8, 4, 4))
    op = annotated(model).ops[0]
    assert op.saves == ("image",)
    assert op.grad_inputs == ()


def test_frozen_convolution_saves_nothing() -> None:
    assert op_after_conv("Conv", constant("frozen", 8, 8, 1, 1)).saves == ()


def test_einsum_saves_the_other_operands() -> None:
    equation = {"equation": "nchw,h,w->nc"}
    one_gradient = op_after_conv("Einsum", value("b", 4), constant("c", 4), attributes=equation)
    two_gradients = op_after_conv("Einsum", value("b", 4), weight("c", 4), attributes=equation)
    assert one_gradient.saves == ("b",)
    assert set(two_gradients.saves or ()) == {"b", "x"}


def test_where_saves_its_condition() -> None:
    model = Model()
    condition = value("condition", 2, 4, dtype="bool")
    x = model.add("MatMul", [value("a", 2, 4), weight("w", 4, 4)], value("x", 2, 4))
    y = model.add("Where", [condition, x, constant("low", 1)], value("y", 2, 4))
    assert annotated(model, y).op["Where.y"].saves == ("condition",)


def test_lookup_in_a_table_of_weights_saves_the_indices() -> None:
    model = Model()
    model.add("Gather", [weight("table", 100, 8), value("ids", 2, 4, dtype="int64")], value("y", 2, 4, 8))
    assert annotated(model).ops[0].saves == ("ids",)


def test_pooling_makes_and_saves_indices_of_8_bytes() -> None:
    model = Model()
    x = model.add("Conv", [value("image", 2, 3, 4, 4), weight("w", 8, 3, 1, 1)], value("x", 2, 8, 4, 4))
    y = model.add("MaxPool", [x], value("y", 2, 8, 2, 2), attributes={"kernel_shape": (2, 2)})
    graph = annotated(model, y)
    pool = graph.op["MaxPool.y"]
    assert pool.outputs == ("y", "MaxPool.y.indices")
    assert pool.saves == ("x", "MaxPool.y.indices")
    indices = graph.tensors["MaxPool.y.indices"]
    assert (indices.bytes, indices.shape, indices.dtype) == (2 * 8 * 2 * 2 * 8, (2, 8, 2, 2), "int64")


def test_pooling_that_has_indices_saves_those() -> None:
    model = Model()
    x = model.add("Conv", [value("image", 2, 3, 4, 4), weight("w", 8, 3, 1, 1)], value("x", 2, 8, 4, 4))
    y = model.add("MaxPool", [x], value("y", 2, 8, 2, 2), value("where", 2, 8, 2, 2, dtype="int64"))
    pool = annotated(model, y).op["MaxPool.y"]
    assert pool.outputs == ("y", "where")
    assert pool.saves == ("x", "where")


def test_average_pooling_saves_its_input_as_pytorch_does() -> None:
    assert op_after_conv("AveragePool").saves == ("x",)


def test_pooling_without_a_gradient_makes_no_indices() -> None:
    model = Model()
    pooled = model.add("MaxPool", [value("image", 2, 3, 4, 4)], value("pooled", 2, 3, 2, 2))
    y = model.add("Conv", [pooled, weight("w", 8, 3, 1, 1)], value("y", 2, 8, 2, 2))
    pool = annotated(model, y).op["MaxPool.pooled"]
    assert pool.outputs == ("pooled",)
    assert pool.saves == ()


@pytest.mark.parametrize(
    ("type_", "others", "opset", "attributes", "expected"),
    [
        # Mean and inverse deviation of each row, channel, group, instance; float32.
        ("LayerNormalization", [weight("s", 4), weight("b", 4)], 20, {"axis": -1}, {"mean": 256, "inv_std": 256}),
        ("LayerNormalization", [weight("s", 8, 4, 4)], 20, {"axis": 1}, {"mean": 8, "inv_std": 8}),
        (
            "BatchNormalization",
            [weight("s", 8), weight("b", 8), weight("m", 8), weight("v", 8)],
            20,
            {"training_mode": 1},
            {"mean": 32, "inv_std": 32},
        ),
        (
            "GroupNormalization",
            [weight("s", 8), weight("b", 8)],
            21,
            {"num_groups": 4},
            {"mean": 32, "inv_std": 32},
        ),
        ("InstanceNormalization", [weight("s", 8), weight("b", 8)], 20, {}, {"mean": 64, "inv_std": 64}),
        ("RMSNormalization", [weight("s", 4)], 23, {}, {"inv_rms": 256}),
        # One byte an element.
        ("Dropout", [constant("ratio")], 20, {}, {"mask": 256}),
        # As many logarithms as scores.
        ("SoftmaxCrossEntropyLoss", [value("labels", 2, 4, 4, dtype="int64")], 20, {}, {"log_prob": 1024}),
    ],
)
def test_statistics_become_outputs_of_the_forward_op(
    type_: str,
    others: list[Operand],
    opset: int,
    attributes: dict[str, AttributeValue],
    expected: dict[str, int],
) -> None:
    model = Model()
    x = model.add("Conv", [value("image", 2, 3, 4, 4), weight("w", 8, 3, 1, 1)], value("x", 2, 8, 4, 4))
    y = model.add(type_, [x, *others], value("y", 2, 8, 4, 4), opset=opset, attributes=attributes)
    graph = annotated(model, y)
    op = graph.op[f"{type_}.y"]
    made = {name.removeprefix(f"{op.name}."): graph.tensors[name].bytes for name in op.outputs[1:]}
    assert made == expected
    assert set(op.outputs[1:]) <= set(op.saves or ())


def test_fused_attention_saves_a_logarithm_for_each_query_instead_of_the_weights() -> None:
    model = Model()
    shape = (2, 4, 16, 8)  # batch, heads, queries, size
    q, k, v = (
        model.add("MatMul", [value("in", *shape), weight(f"w_{name}", 8, 8)], value(name, *shape)) for name in "qkv"
    )
    y = model.add("Attention", [q, k, v], value("y", *shape), opset=23)
    graph = annotated(model, y)
    assert graph.op["Attention.y"].saves == ("q", "k", "v", "y", "Attention.y.logsumexp")
    assert graph.tensors["Attention.y.logsumexp"].bytes == 2 * 4 * 16 * 4


def test_lstm_saves_what_goes_in_and_out_and_its_gates() -> None:
    model = Model()
    x = model.add("MatMul", [value("in", 5, 2, 3), weight("v", 3, 3)], value("x", 5, 2, 3))
    y = model.add(
        "LSTM", [x, weight("w", 1, 16, 3), weight("r", 1, 16, 4)], value("y", 5, 1, 2, 4), attributes={"hidden_size": 4}
    )
    graph = annotated(model, y)
    assert graph.op["LSTM.y"].saves == ("x", "y", "LSTM.y.gates")
    assert graph.tensors["LSTM.y.gates"].bytes == 5 * 2 * (5 * 4) * 4


def test_batch_normalization_in_the_form_for_inference_is_trained_with_statistics_of_the_batch() -> None:
    running = [weight(name, 8) for name in ("scale", "bias", "mean", "variance")]
    op = op_after_conv("BatchNormalization", *running)
    assert op.saves == ("x", "BatchNormalization.y.mean", "BatchNormalization.y.inv_std")


def test_batch_normalization_with_frozen_scale_saves_nothing() -> None:
    frozen = [constant(name, 8) for name in ("scale", "bias", "mean", "variance")]
    assert op_after_conv("BatchNormalization", *frozen).saves == ()


def test_batch_normalization_before_opset_14_trains_where_it_has_more_outputs() -> None:
    model = Model()
    x = model.add("Conv", [value("image", 2, 3, 4, 4), weight("w", 8, 3, 1, 1)], value("x", 2, 8, 4, 4))
    norm = [weight(name, 8) for name in ("scale", "bias", "mean", "variance")]
    outputs = (value("y", 2, 8, 4, 4), value("new_mean", 8), value("new_variance", 8))
    y = model.add("BatchNormalization", [x, *norm], *outputs, opset=9)
    saves = annotated(model, y).op["BatchNormalization.y"].saves
    assert saves == ("x", "BatchNormalization.y.mean", "BatchNormalization.y.inv_std")


@pytest.mark.parametrize("shape", [(16,), (1, 16, 1)])
def test_rotary_frequencies_are_not_trained_so_that_queries_are_not_saved_for_them(shape: tuple[int, ...]) -> None:
    model = Model()
    angles = model.add("MatMul", [weight("frequencies", *shape), value("place", 1, 8)], value("angles", 16, 8))
    wave = model.add("Cos", [angles], value("wave", 16, 8))
    doubled = model.add("Concat", [wave, wave], value("doubled", 32, 8))
    q = model.add("MatMul", [weight("v", 32, 32), value("in", 32, 8)], value("q", 32, 8))
    graph = annotated(model, model.add("Mul", [q, doubled], value("y", 32, 8)))
    assert graph.op["Cos.wave"].saves == ()
    assert graph.op["Mul.y"].saves == ("doubled",)


@pytest.mark.parametrize("others", [[weight("learned", 16, 16)], [weight("one", 16), weight("other", 16)]])
def test_sines_of_what_is_trained_have_a_gradient(others: list[Operand]) -> None:
    model = Model()
    learned = model.add("Sum", [value("in", 16, 16), *others], value("learned_sum", 16, 16))
    graph = annotated(model, model.add("Sin", [learned], value("y", 16, 16)))
    assert graph.op["Sin.y"].saves == ("learned_sum",)


def test_scatter_with_a_product_is_taken_to_read_everything() -> None:
    indices, updates = value("indices", 1, dtype="int64"), value("updates", 1)
    added = op_after_conv("ScatterND", indices, updates, attributes={"reduction": "add"})
    multiplied = op_after_conv("ScatterND", indices, updates, attributes={"reduction": "mul"})
    assert added.saves == ("indices",)
    assert multiplied.saves == ("x", "indices", "updates", "y")


def test_unknown_operator_saves_everything_and_is_named() -> None:
    model = Model()
    x = model.add("Conv", [value("image", 2, 3, 4, 4), weight("w", 8, 3, 1, 1)], value("x", 2, 8, 4, 4))
    y = model.add("my.domain.Swirl", [x, value("angle", 2)], value("y", 2, 8, 4, 4))
    graph, guessed = annotate_saves(model.graph(y), model.operators)
    assert graph.op["my.domain.Swirl.y"].saves == ("x", "angle", "y")
    assert guessed == ("my.domain.Swirl.y",)


def test_statistics_of_unknown_size_make_the_op_a_guess() -> None:
    model = Model()
    x = model.add("Conv", [value("image", 2, 3, 4, 4), weight("w", 8, 3, 1, 1)], value("x", 2, 8, 4, 4))
    y = Operand("y", x.role, None, "float32", 1000)
    model.add("MaxPool", [x], y)
    graph, guessed = annotate_saves(model.graph(), model.operators)
    assert guessed == ("MaxPool.y",)
    assert graph.op["MaxPool.y"].saves == ("x", "y")


def test_unknown_operator_without_a_gradient_is_no_guess() -> None:
    model = Model()
    model.add("my.domain.Swirl", [value("image", 2, 3)], value("y", 2, 3))
    graph, guessed = annotate_saves(model.graph(), model.operators)
    assert guessed == ()
    assert graph.ops[0].saves == ()


def test_branch_that_reaches_no_output_has_no_gradient() -> None:
    model = Model()
    x = model.add("MatMul", [value("a", 2, 4), weight("w", 4, 4)], value("x", 2, 4))
    y = model.add("Tanh", [x], value("y", 2, 4))
    model.add("Exp", [x], value("unused", 2, 4))
    graph = annotated(model, y)
    assert graph.op["Tanh.y"].saves == ("y",)
    assert graph.op["Exp.unused"].saves == ()
    assert graph.op["Exp.unused"].grad_inputs == ()


def test_activation_before_all_parameters_has_no_gradient() -> None:
    model = Model()
    scaled = model.add("Exp", [value("a", 2, 4)], value("scaled", 2, 4))
    y = model.add("MatMul", [scaled, weight("w", 4, 4)], value("y", 2, 4))
    graph = annotated(model, y)
    assert graph.op["Exp.scaled"].saves == ()
    assert graph.op["MatMul.y"].grad_inputs == ()


def test_integers_have_no_gradient() -> None:
    model = Model()
    x = model.add("MatMul", [value("a", 2, 4), weight("w", 4, 4)], value("x", 2, 4))
    whole = model.add("Cast", [x], value("whole", 2, 4, dtype="int64"))
    back = model.add("Cast", [whole], value("back", 2, 4))
    y = model.add("Mul", [x, back], value("y", 2, 4))
    graph = annotated(model, y)
    assert graph.op["Mul.y"].grad_inputs == ("x",)
    assert graph.op["Cast.whole"].grad_inputs == ()
    assert graph.op["Cast.back"].grad_inputs == ()


def test_only_the_first_result_of_a_normalisation_carries_a_gradient() -> None:
    model = Model()
    x = model.add("MatMul", [value("a", 2, 4), weight("w", 4, 4)], value("x", 2, 4))
    model.add("LayerNormalization", [x, weight("s", 4)], value("y", 2, 4), value("mean", 2, 1), value("inv", 2, 1))
    deviation = model.add("Exp", [value("mean", 2, 1)], value("deviation", 2, 1))
    graph = annotated(model, deviation)
    assert all(op.saves == () and op.grad_inputs == () for op in graph.ops)


def test_saving_a_view_saves_its_storage() -> None:
    model = Model()
    x = model.add("MatMul", [value("a", 2, 4), weight("w", 4, 4)], value("x", 2, 4))
    turned = model.add("Transpose", [x], value("turned", 4, 2), view_of=x)
    y = model.add("MatMul", [turned, weight("v", 2, 2)], value("y", 4, 2))
    op = annotated(model, y).op["MatMul.y"]
    assert op.saves == ("turned", "x")
    assert op.grad_inputs == ("turned",)


def test_statistic_gets_a_name_of_its_own() -> None:
    model = Model()
    x = model.add("MatMul", [value("MaxPool.y.indices", 2, 4), weight("w", 4, 4)], value("x", 1, 2, 4))
    model.add("MaxPool", [x], value("y", 1, 2, 2))
    assert annotated(model).op["MaxPool.y"].outputs == ("y", "MaxPool.y.indices.2")


def test_tensor_called_like_a_statistic_is_not_mistaken_for_it() -> None:
    model = Model()
    mean = model.add("MatMul", [value("a", 2, 4), weight("w", 4, 4)], value("mean", 2, 4))
    y = model.add("LayerNormalization", [mean, weight("s", 4)], value("y", 2, 4))
    saves = annotated(model, y).op["LayerNormalization.y"].saves
    assert saves == ("mean", "LayerNormalization.y.mean", "LayerNormalization.y.inv_std")


def test_running_statistics_are_not_trainable() -> None:
    model = Model()
    norm = [weight(name, 8) for name in ("scale", "bias", "mean", "variance")]
    model.add("BatchNormalization", [value("x", 2, 8, 4, 4), *norm], value("y", 2, 8, 4, 4))
    trained = trainable_parameters(model.operators, norm)
    assert [parameter.name for parameter in trained] == ["scale", "bias"]
