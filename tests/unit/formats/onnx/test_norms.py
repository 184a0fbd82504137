"""Batch norms that an export folded away: told by what the exporters leave behind."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.unit.formats.onnx.models import Model, float_input, node, weight

RULE = "pkg.onnxscript.rewriter.rule_name"
FX_NODE = "pkg.torch.onnx.fx_node"


def conv(weights: str, bias: str = "", name: str = "", **notes: str) -> onnx.NodeProto:
    made = node("Conv", ["x", weights, *([bias] if bias else [])], [f"of_{weights}"], name=name)
    for key, noted in notes.items():
        made.metadata_props.add(key={"rule": RULE, "fx": FX_NODE}[key], value=noted)
    return made


def notes(folder: Path, *nodes: onnx.NodeProto) -> tuple[str, ...]:
    stored = [weight("b", 4), weight("onnx::Conv_7", 4), weight("w_bias", 4)]
    stored += [weight(name, 4, 4, 1, 1) for name in ("w", "onnx::Conv_6", "other")]
    model = Model(list(nodes), inputs=[float_input("x", 2, 4, 8, 8)], outputs=nodes[-1].output, stored=stored)
    return model.read(folder).training_notes


@pytest.mark.parametrize(
    "folded",
    [
        conv("w", "b", rule="FuseBatchNormIntoConv, RemoveOptionalBiasFromConv", fx="batch_norm"),
        conv("w", "w_bias"),
        conv("onnx::Conv_6", "onnx::Conv_7", name="/conv1/Conv"),
    ],
)
def test_a_fold_is_counted_even_where_other_norms_are_left(tmp_path: Path, folded: onnx.NodeProto) -> None:
    norm = node("BatchNormalization", [f"of_{folded.input[1]}", "b", "b", "b", "b"], ["normal"])
    (note,) = notes(tmp_path, folded, norm, conv("other", "b"))
    assert note.startswith("the exporter folded a batch norm into 1 of 2 convolutions")
    assert "optimize=False" in note
    assert note.endswith("plan it with --mode inference")


@pytest.mark.parametrize(
    "kept",
    [
        conv("w", "b", rule="RemoveOptionalBiasFromConv", fx="conv2d"),
        conv("w", "b", fx="conv2d"),
        conv("w", "b", name="/conv1/Conv"),
        conv("onnx::Conv_6", "b", name="/conv1/Conv"),  # weight norm: the weight is computed, too
    ],
)
def test_a_model_whose_exporter_would_have_left_a_trace_has_all_of_its_norms(
    tmp_path: Path, kept: onnx.NodeProto
) -> None:
    assert notes(tmp_path, kept) == ()


def test_a_file_without_any_trace_may_lack_norms(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, conv("w", "b"))
    assert note.startswith("there is no norm beside the convolutions: if the model has batch norms")


def test_a_norm_that_is_spelled_out_is_one(tmp_path: Path) -> None:
    mean = node("ReduceMean", ["of_w"], ["mean"])
    assert notes(tmp_path, conv("w", "b"), mean, node("Sqrt", ["mean"], ["root"])) == ()


def test_layer_norm_beside_a_convolution_is_no_sign_of_a_fold(tmp_path: Path) -> None:
    stored = node("GroupNormalization", ["of_w", "b", "b"], ["y"], num_groups=2)
    assert notes(tmp_path, conv("w", "b"), stored) == ()


def test_a_convolution_that_only_an_activation_reads_may_lack_its_norm(tmp_path: Path) -> None:
    norm = node("BatchNormalization", ["of_w", "b", "b", "b", "b"], ["normal"])
    other = node("Conv", ["normal", "other"], ["conv"])
    (note,) = notes(tmp_path, conv("w"), norm, other, node("Relu", ["conv"], ["y"]))
    assert note.startswith("1 of 2 convolutions have no bias, and no batch norm before their activation")


@pytest.mark.parametrize("last", ["Add", "Relu"])
def test_a_convolution_with_a_bias_or_another_reader_lacks_nothing(tmp_path: Path, last: str) -> None:
    norm = node("BatchNormalization", ["of_w", "b", "b", "b", "b"], ["normal"])
    bias = ["b"] if last == "Relu" else []
    other = node("Conv", ["normal", "other", *bias], ["conv"])
    read = node(last, ["conv"] if last == "Relu" else ["conv", "normal"], ["y"])
    assert notes(tmp_path, conv("w"), norm, other, read) == ()


def test_without_convolutions_there_is_nothing_to_fold_into(tmp_path: Path) -> None:
    assert notes(tmp_path, node("Relu", ["x"], ["y"])) == ()
