"""Ops that onnxruntime runs as the nodes that define them. (That it does so, and that they give the same bits, is held
against onnxruntime itself in tests/unit/runtime.)
"""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto

from remat_cli.formats.reader import Aliasing
from tests.unit.formats.onnx.models import Model, float_input, integers, node, op_types, tensor, value, weight

ORT = Aliasing.ORT_CPU


def test_they_are_single_ops_with_a_name_of_their_own(tmp_path: Path) -> None:
    reading = Model([node("HardSwish", ["x"], ["y"], name="act")]).read(tmp_path, aliasing=ORT)
    assert [(one.name, one.type) for one in reading.graph.ops] == [
        ("act/HardSigmoid_0", "HardSigmoid"),
        ("act/Mul_1", "Mul"),
    ]
    assert [tensor(reading, name).bytes for name in ("act/HS_X", "y")] == [24, 24]
    assert reading.graph.outputs == ("y",)


@pytest.mark.parametrize("profile", [Aliasing.TORCH, Aliasing.NONE])
def test_other_runtimes_run_them_as_they_are(tmp_path: Path, profile: Aliasing) -> None:
    assert op_types(Model([node("HardSwish", ["x"], ["y"])]).read(tmp_path, aliasing=profile)) == ["HardSwish"]


def test_attributes_of_the_node_and_defaults_of_its_op_are_filled_in(tmp_path: Path) -> None:
    nodes = [node("Swish", ["x"], ["h"], alpha=2.0), node("Swish", ["h"], ["y"])]
    reading = Model(nodes, opset=24).read(tmp_path, aliasing=ORT)
    # The factor is a constant of the definition, cast to the type of x: no op.
    assert op_types(reading) == ["Mul", "Sigmoid", "Mul"] * 2


def test_what_the_definition_leaves_open_follows_from_the_types(tmp_path: Path) -> None:
    model = Model(
        [node("CastLike", ["x", "other"], ["y"])],
        inputs=[float_input("x", 2, 3), value("other", [1], TensorProto.INT64)],
    )
    reading = model.read(tmp_path, aliasing=ORT)
    assert op_types(reading) == ["Cast"]
    assert tensor(reading, "y").bytes == 48
    # The other operand gives nothing but its type.
    assert reading.graph.ops[0].inputs == ("x",)


@pytest.mark.parametrize("opset", [18, 20, 21, 22])
def test_group_normalization_is_expanded_whatever_its_version(tmp_path: Path, opset: int) -> None:
    scales = weight("scale", 2 if opset < 21 else 4), weight("bias", 2 if opset < 21 else 4)
    model = Model(
        [node("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=2)],
        inputs=[float_input("x", 1, 4, 8, 8)],
        stored=scales,
        opset=opset,
    )
    reading = model.read(tmp_path, aliasing=ORT)
    assert not reading.estimated
    assert "GroupNormalization" not in op_types(reading)
    assert tensor(reading, "y").shape == (1, 4, 8, 8)


def test_a_definition_that_has_such_ops_itself_is_expanded_to_the_end(tmp_path: Path) -> None:
    model = Model(
        [node("SoftmaxCrossEntropyLoss", ["x", "labels"], ["y"])],
        inputs=[float_input("x", 2, 3), value("labels", [2], TensorProto.INT64)],
    )
    types = op_types(model.read(tmp_path, aliasing=ORT))
    assert {"LogSoftmax", "GatherElements"} <= set(types)
    assert not {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "CastLike"} & set(types)


def test_new_names_are_told_apart_from_those_of_the_file(tmp_path: Path) -> None:
    model = Model([node("HardSwish", ["x"], ["act/HS_X"], name="act"), node("Relu", ["act/HS_X"], ["y"], "act/Mul_1")])
    reading = model.read(tmp_path, aliasing=ORT)
    assert [one.name for one in reading.graph.ops] == ["act/HardSigmoid_0", "act/Mul_1_", "act/Mul_1"]
    assert [one.outputs for one in reading.graph.ops] == [("act/HS_X_",), ("act/HS_X",), ("y",)]


def test_an_absent_input_stays_absent(tmp_path: Path) -> None:
    model = Model([node("CenterCropPad", ["x", "size"], ["y"], axes=[1])], stored=[integers("size", 5)], opset=18)
    assert tensor(model.read(tmp_path, aliasing=ORT), "y").shape == (2, 5)
