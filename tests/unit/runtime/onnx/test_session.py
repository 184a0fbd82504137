"""The options that make onnxruntime follow a file, and what it does without them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import remat_cli
from remat_cli import session_options
from tests.unit.formats.onnx.models import Model, float_input, node
from tests.unit.runtime.onnx.rewriting import KERNEL_TIME, rewritten_model

MODEL = Model(
    [
        node("MatMul", ["x", "x"], ["a"], "first"),
        node("Sin", ["a"], ["b"], "second"),
        node("MatMul", ["b", "x"], ["c"], "third"),
        node("Add", ["c", "a"], ["y"], "last"),
    ],
    inputs=[float_input("x", 4, 4)],
)
COMPUTES = ["first", "second", "third", "first", "last"]


def runs(folder: Path, options: onnxruntime.SessionOptions) -> list[str]:
    """The types of the nodes that onnxruntime runs of the rewritten model."""
    model = rewritten_model(folder, MODEL, COMPUTES).proto.SerializeToString()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.ones((4, 4), np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    return [one["args"]["op_name"] for one in events if one.get("cat") == "Node" and one["name"].endswith(KERNEL_TIME)]


def test_every_repeat_runs_with_them(tmp_path: Path) -> None:
    assert runs(tmp_path, session_options()) == ["MatMul", "Sin", "MatMul", "MatMul", "Add"]


def test_repeats_are_merged_without_them(tmp_path: Path) -> None:
    assert runs(tmp_path, onnxruntime.SessionOptions()).count("MatMul") < 3


def test_the_package_exports_nothing_else() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sesion_options'"):
        _ = remat_cli.sesion_options
