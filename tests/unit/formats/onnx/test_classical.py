"""Ops of `ai.onnx.ml` have the shapes that onnxruntime gives them; what has no rule is a flagged estimate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from remat_cli.errors import GraphError
from tests.unit.formats.onnx.models import Model, float_input, node, tensor, value

TREE = {
    "nodes_falsenodeids": [2, 0, 0],
    "nodes_featureids": [0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_nodeids": [0, 1, 2],
    "nodes_treeids": [0, 0, 0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0],
}
VOTES = {"class_ids": [0, 1], "class_nodeids": [1, 2], "class_treeids": [0, 0], "class_weights": [1.0, 2.0]}
TARGETS = {"target_ids": [0, 1], "target_nodeids": [1, 2], "target_treeids": [0, 0], "target_weights": [1.0, 2.0]}
SUPPORT: dict[str, Any] = {"coefficients": [1.0, 1.0], "kernel_params": [0.1, 0.0, 3.0], "support_vectors": [1.0] * 8}
LINEAR = {"classlabels_ints": [0, 1], "coefficients": [0.1] * 8, "kernel_params": [0.0, 0.0, 3.0], "rho": [0.0] * 2}
PAIRS: dict[str, Any] = {
    "classlabels_ints": [0, 1, 2, 3],
    "coefficients": [0.1] * 12,
    "kernel_params": [0.0, 0.0, 3.0],
    "rho": [0.0] * 6,
    "support_vectors": [0.1] * 16,
    "vectors_per_class": [1] * 4,
}
SCORES = {"coefficients": [1.0] * 12, "intercepts": [0.0] * 3, "classlabels_ints": [0, 1, 2]}
FLOATS = (TensorProto.FLOAT,)
LABELS = (TensorProto.INT64, TensorProto.FLOAT)


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize(
    ("op_type", "shapes", "results", "attributes"),
    [
        ("Scaler", [(3, 4)], FLOATS, {"offset": [0.0], "scale": [1.0]}),
        ("Scaler", [(2, 3, 4)], FLOATS, {"offset": [0.0], "scale": [1.0]}),
        ("Normalizer", [(3, 4)], FLOATS, {"norm": "L2"}),
        ("Imputer", [(3, 4)], FLOATS, {"imputed_value_floats": [0.0]}),
        ("Binarizer", [(3, 4)], FLOATS, {"threshold": 0.5}),
        ("FeatureVectorizer", [(3, 4), (3, 2)], FLOATS, {"inputdimensions": [4, 2]}),
        ("FeatureVectorizer", [(4,), (2,)], FLOATS, {"inputdimensions": [4, 2]}),
        ("LinearRegressor", [(3, 4)], FLOATS, {"coefficients": [1.0] * 8, "targets": 2}),
        ("LinearRegressor", [(4,)], FLOATS, {"coefficients": [1.0] * 4}),
        ("LinearClassifier", [(3, 4)], LABELS, SCORES),
        ("SVMRegressor", [(3, 4)], FLOATS, SUPPORT | {"kernel_type": "RBF", "n_supports": 2, "rho": [0.0]}),
        ("SVMClassifier", [(3, 4)], LABELS, LINEAR),
        ("SVMClassifier", [(3, 4)], LABELS, PAIRS),
        ("SVMClassifier", [(3, 4)], LABELS, PAIRS | {"prob_a": [0.5] * 6, "prob_b": [0.1] * 6}),
        ("TreeEnsembleRegressor", [(3, 4)], FLOATS, TREE | TARGETS | {"n_targets": 2}),
        ("TreeEnsembleClassifier", [(3, 4)], LABELS, TREE | VOTES | {"classlabels_int64s": [0, 1, 2]}),
        ("TreeEnsembleClassifier", [(3, 4)], LABELS, TREE | VOTES | {"classlabels_int64s": [0, 1]}),
    ],
)
def test_shapes_are_those_of_onnxruntime(
    op_type: str,
    shapes: list[tuple[int, ...]],
    results: tuple[int, ...],
    attributes: dict[str, Any],
    version: int,
    tmp_path: Path,
) -> None:
    inputs = [float_input(f"x{number}", *shape) for number, shape in enumerate(shapes)]
    outputs = [f"y{number}" for number in range(len(results))]
    op = node(op_type, [each.name for each in inputs], outputs, domain="ai.onnx.ml", **attributes)
    declared = [value(name, None, element) for name, element in zip(outputs, results, strict=True)]
    graph = helper.make_graph([op], "g", inputs, declared)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    session = onnxruntime.InferenceSession(
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString(),
        providers=["CPUExecutionProvider"],
    )
    made = session.run(None, {f"x{number}": np.ones(shape, np.float32) for number, shape in enumerate(shapes)})
    reading = Model([op], inputs, outputs, other_opsets={"ai.onnx.ml": version}).read(tmp_path)
    assert reading.estimated == ()
    for name, array in zip(outputs, made, strict=True):
        assert tensor(reading, name).shape == array.shape
        assert tensor(reading, name).bytes == array.nbytes


@pytest.mark.parametrize("shape", [(7,), (2, 7)])
def test_extracted_columns_have_the_shape_of_onnxruntime(shape: tuple[int, ...], tmp_path: Path) -> None:
    nodes = [
        node("ArgMax", ["x"], ["columns"], "argmax", axis=1, keepdims=0),
        node("ArrayFeatureExtractor", ["table", "columns"], ["y"], domain="ai.onnx.ml"),
    ]
    inputs = [float_input("x", 3, 4), float_input("table", *shape)]
    model = Model(nodes, inputs, ["y"], other_opsets={"ai.onnx.ml": 3})
    reading = model.read(tmp_path)
    session = onnxruntime.InferenceSession(model.proto().SerializeToString(), providers=["CPUExecutionProvider"])
    (array,) = session.run(None, {"x": np.ones((3, 4), np.float32), "table": np.ones(shape, np.float32)})
    assert reading.estimated == ()
    assert tensor(reading, "y").shape == array.shape


def test_a_shape_without_a_rule_is_an_estimate_that_strict_refuses(tmp_path: Path) -> None:
    op = node("SVMClassifier", ["x"], ["y", "scores"], domain="ai.onnx.ml", **SUPPORT)
    model = Model([op], outputs=["y", "scores"], other_opsets={"ai.onnx.ml": 3})
    reading = model.read(tmp_path)
    assert reading.estimated == ("SVMClassifier_0",)
    assert tensor(reading, "scores").shape == (2, 3)
    with pytest.raises(GraphError, match="strict forbids"):
        model.read(tmp_path, strict=True)


def test_a_size_that_no_tensor_has_is_refused(tmp_path: Path) -> None:
    op = node("LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", coefficients=[1.0], targets=-5)
    with pytest.raises(GraphError, match="'y', which op 'LinearRegressor_0' produces"):
        Model([op], other_opsets={"ai.onnx.ml": 3}).read(tmp_path)
