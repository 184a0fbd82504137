"""What cannot be applied, and what onnx's checker says of what was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from remat_cli.config import GraphOptions
from remat_cli.core.schedule import Compute, Free, Offload, Prefetch, Schedule, Wait
from remat_cli.errors import UsageError
from remat_cli.formats.reader import Aliasing, Workspace
from remat_cli.runtime.onnx.apply import check_can_apply, checked
from tests.unit.formats.onnx.models import Model, elsewhere, float_input, node, value, weight
from tests.unit.runtime.onnx.rewriting import rewritten_model

INFERENCE = GraphOptions(mode="inference")
ONE = Schedule((Compute("neg"), Free("a")))


def test_a_plan_for_inference_by_recomputation_can_be_applied(tmp_path: Path) -> None:
    path = Model([node("Neg", ["x"], ["y"], "neg")]).save(tmp_path)
    check_can_apply(path, INFERENCE, ONE)
    check_can_apply(path, replace(INFERENCE, aliasing=Aliasing.ORT_CPU), ONE)


@pytest.mark.parametrize(
    ("options", "schedule", "message", "remedy"),
    [
        (GraphOptions(mode="training"), ONE, "for training, and the backward pass is not", "--mode inference"),
        (replace(INFERENCE, aliasing=Aliasing.TORCH), ONE, "shared as by torch", "plan without --aliasing"),
        (replace(INFERENCE, workspace=Workspace.NONE), ONE, "no workspace of kernels", "plan without --workspace"),
        (INFERENCE, Schedule((Compute("neg"), Offload("a"))), "moves 'a'", "only recomputes"),
        (INFERENCE, Schedule((Prefetch("b"), Wait("b"))), "moves 'b'", "only recomputes"),
    ],
)
def test_what_cannot_be_applied_is_refused_with_the_remedy(
    tmp_path: Path, options: GraphOptions, schedule: Schedule, message: str, remedy: str
) -> None:
    path = Model([node("Neg", ["x"], ["y"], "neg")]).save(tmp_path)
    with pytest.raises(UsageError) as refused:
        check_can_apply(path, options, schedule)
    assert message in refused.value.message
    assert remedy in refused.value.hint


def test_a_graph_in_json_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps({"format": "remat.graph/1"}))
    with pytest.raises(UsageError, match="no ONNX model"):
        check_can_apply(path, INFERENCE, ONE)


def test_the_checker_does_not_look_for_weights(tmp_path: Path) -> None:
    model = Model(
        [node("MatMul", ["x", "w"], ["a"], "one"), node("MatMul", ["a", "v"], ["y"], "two")],
        inputs=[float_input("x", 2, 100)],
        stored=[elsewhere("w", [100, 100], "absent.bin"), weight("v", 100, 100)],
    )
    assert len(rewritten_model(tmp_path, model, ["one", "two"]).proto.graph.input) == 1


def test_what_the_checker_says_before_and_after_is_told(tmp_path: Path) -> None:
    # The checker wants a shape of every output.
    model = Model([node("Frobnicate", ["x"], ["y"], "custom", domain="com.acme")], other_opsets={"com.acme": 1})
    result = rewritten_model(tmp_path, model, ["custom"], passes=False)
    (note,) = checked(result.proto, tmp_path / "model.onnx")
    assert "does not pass onnx's checker, before or after" in note


def test_what_the_checker_says_after_only_is_a_fault_of_ours(tmp_path: Path) -> None:
    model = Model([node("Neg", ["x"], ["y"], "neg")])
    result = rewritten_model(tmp_path, model, ["neg"])
    sound = tmp_path / "sound.onnx"
    onnx.save(result.proto, sound)
    result.proto.graph.output[0].CopyFrom(value("y", [9, 9]))
    with pytest.raises(RuntimeError, match="does not pass onnx's checker"):
        checked(result.proto, sound)
