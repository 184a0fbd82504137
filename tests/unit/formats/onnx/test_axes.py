"""Rows of ONNX ops: run in parts along each of them, an op gives what it gives as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from remat_cli.formats.onnx import parts
from remat_cli.formats.onnx.axes import _RULES, axes_of
from remat_cli.formats.onnx.reader import read_sized
from remat_cli.formats.reader import ReadOptions
from remat_cli.formats.source import Source
from remat_cli.splitting import Region
from tests.unit.formats.onnx.models import Model, float_input, integers, node, value

X, Y = (4, 6, 4), (4, 1, 4)

# By name: the op, shapes of its inputs, initializers, attributes, and the rows along each axis. A shape is that of
# random numbers; a list are whole numbers, which are stored.
CASES: dict[str, tuple[str, list[tuple[int, ...] | list[int] | None], dict[str, Any], list[int]]] = {
    "elementwise": ("Add", [X, Y], {}, [4, 6, 4]),
    "a vector is added": ("Mul", [X, (4,)], {}, [4, 6, 4]),
    "one operand": ("Tanh", [X], {}, [4, 6, 4]),
    "bounds": ("Clip", [X, (), ()], {}, [4, 6, 4]),
    "choice": ("PRelu", [X, (6, 1)], {}, [4, 6, 4]),
    "dropout": ("Dropout", [X], {}, [4, 6, 4]),
    "convolution": ("Conv", [(4, 2, 6, 6), (3, 2, 3, 3), (3,)], {"pads": [1, 1, 1, 1]}, [4]),
    "transposed convolution": ("ConvTranspose", [(4, 2, 3, 3), (2, 3, 3, 3)], {}, [4]),
    "pooling": ("MaxPool", [(4, 3, 6, 6)], {"kernel_shape": [2, 2], "strides": [2, 2]}, [4, 3]),
    "pooling of all": ("GlobalAveragePool", [(4, 3, 6, 6)], {}, [4, 3]),
    "batch norm": ("BatchNormalization", [(4, 3, 5), (3,), (3,), (3,), "positive"], {}, [4, 5]),  # type: ignore[list-item]
    "instance norm": ("InstanceNormalization", [(4, 3, 5), (3,), (3,)], {}, [4]),
    "group norm": ("GroupNormalization", [(4, 6, 5), (6,), (6,)], {"num_groups": 3}, [4]),
    "layer norm": ("LayerNormalization", [X, (4,), (4,)], {}, [4, 6]),
    "layer norm of two": ("LayerNormalization", [X, (6, 4)], {"axis": 1}, [4]),
    "softmax": ("Softmax", [X], {"axis": 1}, [4, 4]),
    "log-softmax": ("LogSoftmax", [X], {}, [4, 6]),
    "places of maxima": ("ArgMax", [X], {"axis": 2}, [4, 6]),
    "largest": ("TopK", [X, [2]], {"axis": 1}, [4, 4]),
    "product and sum": ("Gemm", [(4, 6), (6, 8), (8,)], {}, [4, 8]),
    "transposed product": ("Gemm", [(6, 4), (8, 6), (4, 8)], {"transA": 1, "transB": 1}, [4, 8]),
    "matrices": ("MatMul", [(4, 6), (6, 8)], {}, [4, 8, 6]),
    "many matrices": ("MatMul", [(3, 4, 6), (3, 6, 8)], {}, [3, 4, 8, 6]),
    "matrices by one": ("MatMul", [(3, 4, 6), (6, 8)], {}, [3, 4, 8, 6]),
    "sum of some": ("ReduceSum", [X, [1]], {"keepdims": 0}, [4, 4, 6]),
    "mean": ("ReduceMean", [X, [-1]], {}, [4, 6]),
    "sum of all": ("ReduceSum", [X], {"keepdims": 0}, [4, 6, 4]),
    "transpose": ("Transpose", [X], {"perm": [2, 0, 1]}, [4, 4, 6]),
    "reversed": ("Transpose", [X], {}, [4, 6, 4]),
    "dimensions joined": ("Reshape", [X, [24, 4]], {}, [4, 4]),
    "dimensions parted": ("Reshape", [(24, 4), [4, 6, -1]], {}, [4, 4]),
    "flatten": ("Flatten", [X], {}, [4, 6]),
    "squeeze": ("Squeeze", [Y, [1]], {}, [4, 4]),
    "unsqueeze": ("Unsqueeze", [X, [0, 2]], {}, [4, 6, 4]),
    "expand": ("Expand", [Y, [4, 6, 4]], {}, [4, 4]),
    "concat": ("Concat", [X, (4, 2, 4)], {"axis": 1}, [4, 4]),
    "split": ("Split", [X, [2, 4]], {"axis": 1}, [4, 4]),
    "slice": ("Slice", [X, [1], [5], [1]], {}, [4, 4]),
    "rows of a table": ("Gather", [(5, 4), [3, 1, 4, 0]], {}, [4, 4]),
    "columns": ("Gather", [(5, 4), [3, 1]], {"axis": 1}, [2, 5]),
    "padding": ("Pad", [X, [0, 1, 0, 0, 1, 0]], {}, [4, 4]),
    "resize": ("Resize", [(4, 3, 2, 2), None, (1.0, 1.0, 2.0, 2.0)], {"mode": "nearest"}, [4, 3]),  # type: ignore[list-item]
    "quantized": ("QuantizeLinear", [X, "positive"], {}, [4, 6, 4]),  # type: ignore[list-item]
}


def written(case: str) -> tuple[Model, dict[str, np.ndarray[Any, Any]]]:
    """Return a model of one op, and its inputs."""
    type_, given, attributes, _ = CASES[case]
    random = np.random.default_rng(0)
    names, stored, inputs, fed = [], [], [], {}
    for place, each in enumerate(given):
        name = f"in{place}"
        names.append("" if each is None else name)
        if isinstance(each, list):
            stored.append(integers(name, *each))
        elif isinstance(each, str):  # positive numbers
            shape = (3,) if type_ == "BatchNormalization" else ()
            stored.append(numpy_helper.from_array(random.uniform(0.5, 1.5, shape).astype(np.float32), name))
        elif each is not None and any(isinstance(size, float) for size in each):
            stored.append(numpy_helper.from_array(np.array(each, np.float32), name))
        elif each is not None:
            fed[name] = random.standard_normal(each).astype(np.float32)
            inputs.append(float_input(name, *each))
    results = {"Split": 2, "TopK": 2}.get(type_, 1)
    outputs = [f"out{place}" for place in range(results)]
    return Model([node(type_, names, outputs, "op", **attributes)], inputs, outputs, stored), fed


def run(proto: onnx.ModelProto, fed: Mapping[str, Any]) -> list[Any]:
    return list(ReferenceEvaluator(proto).run(None, dict(fed)))


@pytest.mark.parametrize("case", CASES)
def test_an_op_gives_the_same_in_parts_along_each_axis(case: str, tmp_path: Path) -> None:
    model, fed = written(case)
    path = model.save(tmp_path)
    expected = run(model.proto(), fed)
    rows = CASES[case][3]
    for number, count in enumerate(rows):
        sized = read_sized(Source(path), ReadOptions(mode="inference"), keep_data=True)
        axes = axes_of(sized.model.graph.node[0], sized.graph.values, 21)
        assert [axis.rows for axis in axes] == rows
        axis = axes[number]
        parts.write(sized.model.graph, sized.graph.values, 21, [(Region(axis.rows, {"op": axis}), min(count, 3))])
        for one, other in zip(run(sized.model.proto, fed), expected, strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("type_", "shapes", "attributes", "rows"),
    [
        ("FusedConv", [(4, 2, 6, 6), (3, 2, 3, 3), (3,)], {"activation": "Relu", "pads": [1, 1, 1, 1]}, [4]),
        ("FusedConv", [(4, 2, 6, 6), (3, 2, 1, 1), (3,), (4, 3, 6, 6)], {"activation": "Relu"}, [4]),
        ("FusedGemm", [(4, 6), (6, 8), (8,)], {"activation": "Relu"}, [4, 8]),
        ("FusedMatMul", [(3, 4, 6), (3, 6, 8)], {"alpha": 0.5}, [3, 4, 8, 6]),
        ("FusedMatMul", [(6, 4), (6, 8)], {"transA": 1}, []),
        ("SkipLayerNormalization", [(2, 3, 4), (2, 3, 4), (4,)], {}, [2, 3]),
        ("BiasGelu", [(2, 3, 4), (4,)], {}, [2, 3, 4]),
    ],
)
def test_ops_of_onnxruntime_give_the_same_in_parts(
    type_: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any], rows: list[int], tmp_path: Path
) -> None:
    names = [f"in{place}" for place in range(len(shapes))]
    model = Model(
        [node(type_, names, ["y"], "op", domain="com.microsoft", **attributes)],
        [float_input(name, *shape) for name, shape in zip(names, shapes, strict=True)],
        other_opsets={"com.microsoft": 1},
    )
    random = np.random.default_rng(0)
    fed = {name: random.standard_normal(shape).astype(np.float32) for name, shape in zip(names, shapes, strict=True)}

    def result(proto: onnx.ModelProto) -> Any:
        return onnxruntime.InferenceSession(proto.SerializeToString()).run(None, fed)[0]

    expected = result(model.proto())
    for number in range(max(1, len(rows))):
        sized = read_sized(Source(model.save(tmp_path)), ReadOptions(mode="inference"), keep_data=True)
        axes = axes_of(sized.model.graph.node[0], sized.graph.values, 21)
        assert [axis.rows for axis in axes] == rows
        for axis in axes[number : number + 1]:
            parts.write(sized.model.graph, sized.graph.values, 21, [(Region(axis.rows, {"op": axis}), 2)])
            np.testing.assert_allclose(result(sized.model.proto), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("type_", "inputs", "attributes"),
    [
        ("MatMul", ["x", "x"], {}),  # one value has two roles
        ("CumSum", ["x", "k"], {}),  # no rule
        ("Reshape", ["x", "shape"], {}),  # a shape that is not known
        ("Dropout", ["x", "", "training"], {}),
    ],
)
def test_ops_without_independent_rows_have_no_axes(
    type_: str, inputs: list[str], attributes: dict[str, Any], tmp_path: Path
) -> None:
    given = [float_input("x", 4, 4), value("shape", [2], onnx.TensorProto.INT64)]
    given += [value("training", [], onnx.TensorProto.BOOL), value("k", [], onnx.TensorProto.INT64)]
    model = Model([node(type_, inputs, ["y"], "op", **attributes)], given)
    sized = read_sized(Source(model.save(tmp_path)), ReadOptions(mode="inference", value_shapes={"y": (4, 4)}))
    assert axes_of(sized.model.graph.node[0], sized.graph.values, 21) == ()


def test_softmax_of_old_operator_sets_sees_all_dimensions_from_its_axis_on(tmp_path: Path) -> None:
    model = Model([node("Softmax", ["x"], ["y"], "op")], [float_input("x", *X)], opset=11)
    sized = read_sized(Source(model.save(tmp_path)), ReadOptions(mode="inference"))
    assert [axis.rows for axis in axes_of(sized.model.graph.node[0], sized.graph.values, 11)] == [4]


def test_pooling_that_returns_places_has_no_rows(tmp_path: Path) -> None:
    pool = node("MaxPool", ["x"], ["y", "places"], "op", kernel_shape=[2])
    sized = read_sized(Source(Model([pool], [float_input("x", *X)]).save(tmp_path)), ReadOptions(mode="inference"))
    assert axes_of(sized.model.graph.node[0], sized.graph.values, 21) == ()


def test_every_rule_is_for_an_op_that_onnx_or_onnxruntime_has() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas()} | {"SimplifiedLayerNormalization"}
    assert {name for name in _RULES if "." not in name} <= known
