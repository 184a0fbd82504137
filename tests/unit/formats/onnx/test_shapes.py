"""Inference and folding: what is known of each value, and from where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.errors import GraphError, UsageError
from remat_cli.formats.reader import Reading
from tests.unit.formats.onnx.models import (
    Model,
    body,
    elsewhere,
    float_input,
    integers,
    node,
    op_types,
    scalar,
    tensor,
    value,
    weight,
)

ENDLESS_BODY = body(
    [node("Identity", ["go"], ["on"]), node("Neg", ["s"], ["t"])],
    [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("s")],
    ["on", "t"],
)


def shape_of_y(reading: Reading) -> tuple[int, ...] | None:
    return tensor(reading, "y").shape


def test_convolution_of_a_weight_in_another_file(tmp_path: Path) -> None:
    model = Model(
        [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2])],
        inputs=[float_input("x", "batch", 3, 8, 8)],
        stored=[elsewhere("w", [16, 3, 3, 3], "absent.bin")],
    )
    reading = model.read(tmp_path, dims={"batch": 2})
    assert shape_of_y(reading) == (2, 16, 4, 4)
    assert tensor(reading, "y").dtype == "float32"


def test_shape_arithmetic_is_folded_away(tmp_path: Path) -> None:
    model = Model(
        [
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "zero"], ["batch"]),
            node("Mul", ["batch", "two"], ["double"]),
            node("Unsqueeze", ["double", "axes"], ["first"]),
            node("Concat", ["first", "rest"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["y"]),
        ],
        inputs=[float_input("x", "batch", 8)],
        stored=[scalar("zero", 0), scalar("two", 2), integers("axes", 0), integers("rest", 4)],
    )
    reading = model.read(tmp_path, dims={"batch": 3})
    assert shape_of_y(reading) == (6, 4)
    assert op_types(reading) == ["Reshape"]
    assert reading.notes == ("5 of 6 nodes only compute constants or shapes, and are no ops",)


def test_range_and_expand_chains_need_no_second_round(tmp_path: Path) -> None:
    model = Model(
        [
            node("Size", ["x"], ["size"]),
            node("Range", ["zero", "size", "one"], ["positions"]),
            node("Max", ["positions", "one"], ["most"]),
            node("Slice", ["most", "first", "second"], ["piece"]),
            node("ConstantOfShape", ["piece"], ["y"]),
        ],
        inputs=[float_input("x", "seq")],
        stored=[scalar("zero", 0), scalar("one", 1), integers("first", 3), integers("second", 6)],
        outputs=["y"],
    )
    model.nodes = [*model.nodes, node("Add", ["x", "x"], ["z"])]
    reading = Model(model.nodes, model.inputs, ["y", "z"], model.stored).read(tmp_path, dims={"seq": 9})
    # [3, 4, 5] zeros: folded itself, so no tensor, but memory.
    assert "y" not in reading.graph.tensors
    assert reading.graph.resident_bytes == 8 + 8 + 8 + 8 + 3 * 4 * 5 * 4


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [({}, (2, 3, 5)), ({"start": 1}, (3, 5)), ({"start": -2, "end": -1}, (3,)), ({"end": 99}, (2, 3, 5))],
)
def test_shape_takes_a_range_of_axes(tmp_path: Path, attributes: dict[str, Any], expected: tuple[int, ...]) -> None:
    model = Model(
        [node("Shape", ["x"], ["s"], **attributes), node("Expand", ["one", "s"], ["e"]), node("Neg", ["x"], ["y"])],
        inputs=[float_input("x", 2, 3, 5)],
        outputs=["e", "y"],
        stored=[numpy_helper.from_array(np.ones((1,), dtype=np.float32), "one")],
    )
    reading = model.read(tmp_path)
    assert reading.graph.resident_bytes - 4 == 4 * np.prod(expected)


@pytest.mark.parametrize("opset", [9, 10, 13, 18, 21])
def test_axes_may_be_attributes_or_inputs(tmp_path: Path, opset: int) -> None:
    if opset < 13:
        squeeze, stored = node("Squeeze", ["x"], ["y"], axes=[1]), []
    else:
        squeeze, stored = node("Squeeze", ["x", "axes"], ["y"]), [integers("axes", 1)]
    model = Model([squeeze], inputs=[float_input("x", 4, 1, 5)], stored=stored, opset=opset)
    assert shape_of_y(model.read(tmp_path)) == (4, 5)


def test_result_beyond_the_limit_stays_an_op(tmp_path: Path) -> None:
    model = Model(
        [node("Range", ["zero", "count", "one"], ["r"]), node("Neg", ["r"], ["y"])],
        stored=[scalar("zero", 0), scalar("one", 1), scalar("count", 5000)],
    )
    reading = model.read(tmp_path)
    assert op_types(reading) == ["Range", "Neg"]
    assert shape_of_y(reading) == (5000,)


@pytest.mark.parametrize("count", [2**40, 2**55])
def test_small_file_cannot_ask_for_a_large_constant(tmp_path: Path, count: int) -> None:
    model = Model([node("ConstantOfShape", ["n"], ["c"]), node("Neg", ["c"], ["y"])], stored=[integers("n", count)])
    assert shape_of_y(model.read(tmp_path)) == (count,)


def test_results_with_data_dependent_shape_are_folded_too(tmp_path: Path) -> None:
    model = Model(
        [node("NonZero", ["mask"], ["where"]), node("Gather", ["x", "where"], ["y"])],
        inputs=[float_input("x", 9)],
        stored=[integers("mask", 0, 1, 1, 0, 1)],
    )
    assert shape_of_y(model.read(tmp_path)) == (1, 3)


@pytest.mark.parametrize("element", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT32])
def test_cast_like_needs_no_more_than_the_other_s_type(tmp_path: Path, element: int) -> None:
    model = Model(
        [node("CastLike", ["three", "x"], ["c"]), node("Add", ["x", "c"], ["y"])],
        inputs=[value("x", [2, 3], element)],
        stored=[scalar("three", 3)],
    )
    reading = model.read(tmp_path)
    assert op_types(reading) == ["Add"]
    assert reading.graph.ops[0].inputs == ("x",)


def test_cast_like_itself_keeps_its_elements(tmp_path: Path) -> None:
    model = Model(
        [node("CastLike", ["target", "target"], ["c"]), node("Reshape", ["x", "c"], ["y"])],
        stored=[integers("target", 3, 2)],
    )
    assert shape_of_y(model.read(tmp_path)) == (3, 2)


@pytest.mark.parametrize(
    "endless",
    [
        node("MaxPool", ["c"], ["y"], kernel_shape=[2**40], strides=[2**40], pads=[2**40 - 1, 0]),
        node("Einsum", ["e"] * 26, ["y"], equation=",".join("abcdefghijklmnopqrstuvwxyz") + "->"),
        node("Pad", ["e", "pads"], ["y"]),
        node("Loop", ["trips", "", "e"], ["y"], body=ENDLESS_BODY),
    ],
    ids=lambda endless: str(endless.op_type),
)
def test_effort_is_bounded(tmp_path: Path, endless: onnx.NodeProto) -> None:
    stored = [weight("c", 1, 1, 4), weight("e", 8), integers("pads", 2**50, -(2**50)), scalar("trips", 2**50)]
    reading = Model([endless, node("Neg", ["x"], ["z"])], outputs=["y", "z"], stored=[*stored]).read(tmp_path)
    assert op_types(reading) == [endless.op_type, "Neg"]


@pytest.mark.parametrize(
    "strange",
    [node("ReduceMean", ["nothing"], ["y"]), node("Div", ["one", "nil"], ["y"]), node("Exp", ["huge"], ["y"])],
    ids=lambda strange: str(strange.op_type),
)
def test_arithmetic_of_the_model_warns_nobody(tmp_path: Path, strange: onnx.NodeProto) -> None:
    huge = numpy_helper.from_array(np.array([1e30], dtype=np.float32), "huge")
    stored = [weight("nothing", 0), weight("nil", 1), huge, numpy_helper.from_array(np.ones(1, np.float32), "one")]
    model = Model([strange, node("Neg", ["x"], ["z"])], outputs=["y", "z"], stored=stored)
    assert op_types(model.read(tmp_path)) == ["Neg"]  # a warning would be an error here


def test_random_constants_are_not_folded(tmp_path: Path) -> None:
    model = Model([node("RandomUniformLike", ["c"], ["r"]), node("Neg", ["r"], ["y"])], stored=[weight("c", 3)])
    assert op_types(model.read(tmp_path)) == ["RandomUniformLike", "Neg"]


def test_op_on_a_weight_is_not_folded_away(tmp_path: Path) -> None:
    model = Model([node("Neg", ["w"], ["n"]), node("Add", ["x", "n"], ["y"])], stored=[weight("w", 3)])
    assert op_types(model.read(tmp_path)) == ["Neg", "Add"]


def test_shape_that_follows_from_a_weight_s_values_is_still_known(tmp_path: Path) -> None:
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], dtype=np.float32), "scales")
    model = Model(
        [
            node("Mul", ["sizes", "scales"], ["scaled"]),
            node("Cast", ["scaled"], ["target"], to=TensorProto.INT64),
            node("Resize", ["x", "", "", "target"], ["y"]),
        ],
        inputs=[float_input("x", 1, 3, 4, 5)],
        stored=[scales, numpy_helper.from_array(np.array([1, 3, 4, 5], dtype=np.float32), "sizes")],
    )
    assert shape_of_y(model.read(tmp_path)) == (1, 3, 8, 10)


def test_overridable_initializer_is_not_relied_on(tmp_path: Path) -> None:
    model = Model(
        [node("Reshape", ["x", "target"], ["y"])],
        inputs=[float_input("x", 2, 3), value("target", [2], TensorProto.INT64)],
        stored=[integers("target", 3, 2)],
    )
    with pytest.raises(UsageError, match=r"'y' .* Reshape"):
        model.read(tmp_path)
    assert shape_of_y(model.read(tmp_path, value_shapes={"y": (3, 2)})) == (3, 2)


def test_initializer_that_ir_version_3_lists_as_input_is_relied_on(tmp_path: Path) -> None:
    model = Model(
        [node("Reshape", ["x", "target"], ["y"])],
        inputs=[float_input("x", 2, 3), value("target", [2], TensorProto.INT64)],
        stored=[integers("target", 3, 2)],
        opset=8,
        ir_version=3,
    )
    assert shape_of_y(model.read(tmp_path)) == (3, 2)


@pytest.mark.parametrize(
    ("attributes", "expected_bytes"),
    [
        ({"value": helper.make_tensor("t", TensorProto.FLOAT16, [3], [1, 2, 3])}, 6),
        ({"value_float": 1.0}, 4),
        ({"value_floats": [1.0, 2.0]}, 8),
        ({"value_int": 1}, 8),
        ({"value_ints": [1, 2, 3]}, 24),
        ({"value_string": "text"}, 32),
        ({"value_strings": ["a", "b"]}, 64),
    ],
)
def test_constant_is_resident_and_no_op(tmp_path: Path, attributes: dict[str, Any], expected_bytes: int) -> None:
    model = Model([node("Constant", [], ["c"], **attributes), node("Neg", ["x"], ["y"])], outputs=["y", "c"])
    reading = model.read(tmp_path)
    assert op_types(reading) == ["Neg"]
    assert reading.graph.resident_bytes == expected_bytes
    assert reading.graph.outputs == ("y",)


def test_sparse_constant_has_its_dense_shape(tmp_path: Path) -> None:
    elements = helper.make_tensor("v", TensorProto.FLOAT, [1], [7.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [2])
    sparse = helper.make_sparse_tensor(elements, indices, [3])
    model = Model([node("Constant", [], ["c"], sparse_value=sparse), node("Add", ["x", "c"], ["y"])])
    assert shape_of_y(model.read(tmp_path)) == (2, 3)


def test_constant_without_value(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"Constant 'empty'.* has no value"):
        Model([node("Constant", [], ["y"], name="empty")]).read(tmp_path)


def test_stale_value_info_is_not_trusted(tmp_path: Path) -> None:
    model = Model([node("Relu", ["x"], ["h"]), node("Neg", ["h"], ["y"])], declared=[value("h", [1, 4])])
    reading = model.read(tmp_path)
    assert tensor(reading, "h").shape == (2, 3)
    assert shape_of_y(reading) == (2, 3)


def test_value_info_serves_where_nothing_can_be_inferred(tmp_path: Path) -> None:
    model = Model(
        [node("NonZero", ["x"], ["h"]), node("Neg", ["h"], ["y"])], declared=[value("h", [2, 4], TensorProto.INT64)]
    )
    assert shape_of_y(model.read(tmp_path)) == (2, 4)


def test_value_info_in_bound_symbols(tmp_path: Path) -> None:
    model = Model(
        [node("NonZero", ["x"], ["h"]), node("Neg", ["h"], ["y"])],
        inputs=[float_input("x", "n", 3)],
        declared=[value("h", [2, "n"], TensorProto.INT64)],
    )
    assert shape_of_y(model.read(tmp_path, dims={"n": 5})) == (2, 5)


def test_shapes_that_depend_on_data_are_all_listed(tmp_path: Path) -> None:
    model = Model(
        [node("NonZero", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Unique", ["x"], ["y"])], outputs=["b", "y"]
    )
    with pytest.raises(UsageError) as caught:
        model.read(tmp_path)
    assert "'a' (op 'NonZero_0', NonZero), 'y' (op 'Unique_2', Unique)" in caught.value.message
    assert "'b'" not in caught.value.message
    assert "--value-shape a:" in caught.value.hint


def test_given_value_shapes_let_inference_go_on(tmp_path: Path) -> None:
    model = Model([node("NonZero", ["x"], ["a"]), node("Transpose", ["a"], ["y"])])
    reading = model.read(tmp_path, value_shapes={"a": (2, 5)})
    assert shape_of_y(reading) == (5, 2)
    assert tensor(reading, "y").bytes == 80
    assert not reading.estimated


def test_given_shape_that_contradicts_inference(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'y' is given the shape \[3,2\], but it is \[2,3\]"):
        Model([node("Relu", ["x"], ["y"])]).read(tmp_path, value_shapes={"y": (3, 2)})


def test_given_shape_of_an_unknown_value(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="given for 'why', and the model has no such value"):
        Model([node("Relu", ["x"], ["y"])]).read(tmp_path, value_shapes={"why": (3, 2)})


def test_negative_given_shape(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="negative"):
        Model([node("NonZero", ["x"], ["y"])]).read(tmp_path, value_shapes={"y": (2, -1)})


@pytest.mark.parametrize(
    "faulty",
    [
        node("MatMul", ["x", "w"], ["y"], name="faulty"),
        node("Transpose", ["x"], ["y"], name="faulty", perm=[0, 7]),
        node("Concat", ["x", "x"], ["y"], name="faulty"),
        node("Conv", ["x"], ["y"], name="faulty"),
        node("Relu", ["x", "w"], ["y"], name="faulty"),
        node("Relu", [""], ["y"], name="faulty"),
        node("Relu", ["x"], [], name="faulty"),
        node("Split", ["x"], ["y", "z", "u"], name="faulty", num_outputs=2),
        node("GatherND", ["x", "w"], ["y"], name="faulty", batch_dims=-1),
        node("LayerNormalization", ["x", "w"], ["y"], name="faulty", axis=2**62),
        *(
            node("Einsum", ["x", "w"], ["y"], name="faulty", equation=equation)
            for equation in (
                "ij,\njk->ik",
                "ij,jk-",
                "i.j,jk->ik",
                "...i...,jk->ik",
                "...," * 4000,
                "a" * 50_000 + "\n",
            )
        ),
    ],
    ids=lambda faulty: str(faulty.op_type),
)
def test_node_that_breaks_its_op_s_rules_is_named(tmp_path: Path, faulty: object) -> None:
    model = Model([node("Relu", ["x"], ["ok"]), faulty], outputs=["ok"], stored=[weight("w", 7, 5)])  # type: ignore[list-item]
    with pytest.raises(GraphError, match="op 'faulty'") as caught:
        model.read(tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("equation", "shape"),
    [("ij,jk->ik", (4, 5)), (" i j, jk - > ik ", (4, 5)), ("...j,jk", (4, 5)), ("Aj,j...->A...", (4, 5))],
)
def test_an_equation_may_hold_spaces_capitals_and_dots(tmp_path: Path, equation: str, shape: tuple[int, ...]) -> None:
    einsum = node("Einsum", ["x", "w"], ["y"], equation=equation)
    model = Model([einsum], inputs=[float_input("x", 4, 7)], stored=[weight("w", 7, 5)])
    assert shape_of_y(model.read(tmp_path)) == shape


def test_baked_in_batch_size_is_found_at_its_reshape(tmp_path: Path) -> None:
    model = Model(
        [node("Reshape", ["x", "target"], ["y"], name="baked")],
        inputs=[float_input("x", "batch", 6)],
        stored=[integers("target", 2, 6)],
    )
    assert shape_of_y(model.read(tmp_path, dims={"batch": 2})) == (2, 6)
    with pytest.raises(GraphError, match=r"op 'baked' .* \[2,6\] of 'x', which is \[5,6\]"):
        model.read(tmp_path, dims={"batch": 5})


@pytest.mark.parametrize("type_", ["GroupNormalization", "MeanVarianceNormalization"])
def test_ops_that_onnx_defines_by_a_function_only(tmp_path: Path, type_: str) -> None:
    normalize = node(type_, ["x"], ["y"])
    if type_ == "GroupNormalization":
        normalize = node(type_, ["x", "w", "w"], ["y"], num_groups=2)
    model = Model(
        [normalize],
        inputs=[float_input("x", 1, 4, 5, 5)],
        stored=[weight("w", 4)],
    )
    assert shape_of_y(model.read(tmp_path)) == (1, 4, 5, 5)


def test_absent_optional_inputs_and_outputs_are_skipped(tmp_path: Path) -> None:
    model = Model([node("Split", ["x"], ["a", "", "b"], axis=1, num_outputs=3), node("Clip", ["a", "", ""], ["y"])])
    reading = Model(model.nodes, outputs=["y", "b"]).read(tmp_path)
    assert reading.graph.ops[0].outputs == ("a", "b")
    assert reading.graph.ops[1].inputs == ("a",)


def test_unused_outputs_are_tensors(tmp_path: Path) -> None:
    model = Model([node("TopK", ["x", "k"], ["y", "indices"])], stored=[integers("k", 2)])
    assert tensor(model.read(tmp_path), "indices").bytes == 2 * 2 * 8


@pytest.mark.parametrize(("opset", "dtype"), [(6, "float32"), (7, "float32"), (9, "float32"), (10, "bool")])
def test_masks_of_old_dropouts_are_as_wide_as_their_input(tmp_path: Path, opset: int, dtype: str) -> None:
    reading = Model([node("Dropout", ["x"], ["y", "mask"])], opset=opset).read(tmp_path)
    assert tensor(reading, "mask").shape == (2, 3)
    assert tensor(reading, "mask").dtype == dtype


@pytest.mark.parametrize("op_type", ["GreaterOrEqual", "LessOrEqual"])
@pytest.mark.parametrize("opset", [12, 15, 16])
def test_comparisons_that_operator_sets_define_by_others(tmp_path: Path, op_type: str, opset: int) -> None:
    model = Model([node(op_type, ["x", "w"], ["y"])], stored=[weight("w", 4, 1, 3)], opset=opset)
    y = tensor(model.read(tmp_path), "y")
    assert (y.shape, y.dtype) == ((4, 2, 3), "bool")


def test_statistics_of_old_batch_norms_have_an_element_a_channel(tmp_path: Path) -> None:
    names = ["scale", "bias", "mean", "var"]
    results = ["y", "new_mean", "new_var", "saved_mean", "saved_var"]
    model = Model(
        [node("BatchNormalization", ["x", *names], results)],
        inputs=[float_input("x", 2, 3, 4, 4)],
        stored=[weight(name, 3) for name in names],
        opset=9,
    )
    reading = model.read(tmp_path)
    assert {tensor(reading, name).shape for name in results[1:]} == {(3,)}


@pytest.mark.parametrize("opset", [1, 6])
def test_ops_of_the_first_operator_sets_with_hints(tmp_path: Path, opset: int) -> None:
    hints: dict[str, Any] = {"consumed_inputs": [0]} if opset == 1 else {}
    model = Model([node("Add", ["x", "w"], ["y"], broadcast=1, **hints)], stored=[weight("w", 3)], opset=opset)
    assert shape_of_y(model.read(tmp_path)) == (2, 3)


def test_all_shapes_behind_unopened_files_are_asked_for_at_once(tmp_path: Path) -> None:
    """Also those after a shape whose example does not fit what follows."""
    nodes = [
        node("Concat", ["four", "rest"], ["s"], axis=0),
        node("Reshape", ["x", "s"], ["a"]),
        node("Add", ["a", "bias"], ["b"]),
        node("Reshape", ["b", "t"], ["y"]),
    ]
    stored = [
        elsewhere("bias", [12], "weights.bin"),
        *(elsewhere(name, [1], "weights.bin", TensorProto.INT64) for name in ("four", "rest")),
        elsewhere("t", [2], "weights.bin", TensorProto.INT64),
    ]
    model = Model(nodes, inputs=[float_input("x", 8, 6)], stored=stored)
    with pytest.raises(UsageError, match=r"'a' .*'y' .*not opened, and hold 'four', 'rest', 't'$") as refused:
        model.read(tmp_path)
    assert "depend on data" not in str(refused.value)
    assert model.read(tmp_path, value_shapes={"a": (4, 12), "y": (2, 24)}).graph.tensors
