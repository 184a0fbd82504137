"""Which ops may be recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.unit.formats.onnx.models import Model, float_input, node, scalar, value

INPUTS = [float_input("x", 2, 3), value("dynamic", [], onnx.TensorProto.BOOL)]
STORED = [scalar("true", True), scalar("false", False)]


def recomputable(folder: Path, one: onnx.NodeProto, opset: int = 21) -> bool:
    (made,) = Model([one], inputs=INPUTS, stored=STORED, opset=opset).read(folder).graph.ops
    return made.recomputable


@pytest.mark.parametrize("type_", ["RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"])
def test_random_op_needs_a_seed_to_be_recomputed(tmp_path: Path, type_: str) -> None:
    assert not recomputable(tmp_path, node(type_, ["x"], ["y"]))
    assert recomputable(tmp_path, node(type_, ["x"], ["y"], seed=1.0))


@pytest.mark.parametrize("type_", ["RandomNormal", "RandomUniform"])
def test_random_op_without_inputs(tmp_path: Path, type_: str) -> None:
    assert not recomputable(tmp_path, node(type_, [], ["y"], shape=[2, 3]))


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["x"], True),
        (["x", "", "false"], True),
        (["x", "", "true"], False),
        (["x", "", "dynamic"], False),
    ],
)
def test_dropout_says_by_an_input_whether_it_trains(tmp_path: Path, inputs: list[str], expected: bool) -> None:
    assert recomputable(tmp_path, node("Dropout", inputs, ["y"])) is expected


@pytest.mark.parametrize(("ratio", "type_"), [("zero", "Identity"), ("half", "Dropout"), ("", "Dropout")])
def test_dropout_of_ratio_0_passes_its_input_through(tmp_path: Path, ratio: str, type_: str) -> None:
    stored = [*STORED, scalar("zero", 0.0), scalar("half", 0.5)]
    model = Model([node("Dropout", ["x", ratio, "true"], ["y"])], inputs=INPUTS, stored=stored)
    reading = model.read(tmp_path)
    (op,) = reading.graph.ops
    assert reading.operators[op.name].type == type_
    assert op.recomputable is (ratio == "zero")


def test_training_dropout_with_a_seed(tmp_path: Path) -> None:
    assert recomputable(tmp_path, node("Dropout", ["x", "", "true"], ["y"], seed=3))


@pytest.mark.parametrize(
    ("opset", "attributes", "expected"), [(10, {}, True), (7, {}, True), (6, {}, False), (6, {"is_test": 1}, True)]
)
def test_dropout_of_older_operator_sets(tmp_path: Path, opset: int, attributes: dict[str, Any], expected: bool) -> None:
    assert recomputable(tmp_path, node("Dropout", ["x"], ["y"], **attributes), opset) is expected


@pytest.mark.parametrize("type_", ["Relu", "Softmax", "CumSum"])
def test_deterministic_ops_are_recomputed(tmp_path: Path, type_: str) -> None:
    inputs = ["x", "axis"] if type_ == "CumSum" else ["x"]
    model = Model([node(type_, inputs, ["y"])], stored=[scalar("axis", 0)])
    assert model.read(tmp_path).graph.ops[0].recomputable
