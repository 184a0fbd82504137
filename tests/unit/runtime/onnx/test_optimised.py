"""Optimise first, plan second: files that an optimising session of onnxruntime saved are planned and run."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest

from remat_cli.formats import Aliasing, ReadOptions, read_graph
from remat_cli.schedule import input_order
from tests.unit.formats.onnx.models import Model, float_input, integers, node
from tests.unit.runtime.onnx.rewriting import assert_follows, planned, rewritten, stored

LEVELS = {
    "EXTENDED": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "ALL": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


CONVOLUTIONS = Model(
    [
        node("Conv", ["x", "w1"], ["a"], "conv1", pads=[1] * 4),
        node("Relu", ["a"], ["b"], "relu1"),
        node("Conv", ["b", "w2"], ["c"], "conv2", pads=[1] * 4),
        node("Add", ["c", "b"], ["d"], "add"),
        node("Relu", ["d"], ["e"], "relu2"),
        node("MaxPool", ["e"], ["f"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["f"], ["g"], "average"),
        node("Flatten", ["g"], ["h"], "flatten"),
        node("Gemm", ["h", "w3", "b3"], ["y"], "head"),
    ],
    inputs=[float_input("x", 1, 3, 16, 16)],
    stored=[stored("w1", 32, 3, 3, 3), stored("w2", 32, 32, 3, 3), stored("w3", 32, 10), stored("b3", 10)],
)
TRANSFORMER = Model(
    [
        node("MatMul", ["x", "wq"], ["q"], "q"),
        node("MatMul", ["x", "wk"], ["k"], "k"),
        node("Transpose", ["k"], ["kt"], "kt", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s"], "scores"),
        node("Softmax", ["s"], ["p"], "softmax"),
        node("MatMul", ["p", "x"], ["o"], "weigh"),
        node("Add", ["o", "x"], ["r"], "skip"),
        node("LayerNormalization", ["r", "scale", "bias"], ["n"], "norm"),
        node("MatMul", ["n", "w1"], ["u"], "up"),
        node("Add", ["u", "b1"], ["v"], "bias1"),
        node("Gelu", ["v"], ["g"], "gelu"),
        node("MatMul", ["g", "w2"], ["y"], "down"),
    ],
    inputs=[float_input("x", 2, 8, 16)],
    stored=[
        *(stored(name, 16, 16) for name in ("wq", "wk")),
        *(stored(name, 16) for name in ("scale", "bias")),
        stored("w1", 16, 32),
        stored("b1", 32),
        stored("w2", 32, 16),
        integers("unused", 1),
    ],
)


def optimised(model: Model, level: str, folder: Path) -> Path:
    """Return the file that a session which optimises saves of a model."""
    path = folder / "optimised.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = LEVELS[level], 4
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(model.proto().SerializeToString(), options, providers=["CPUExecutionProvider"])
    return path


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("model", [CONVOLUTIONS, TRANSFORMER], ids=["convolutions", "transformer"])
def test_a_saved_file_is_sized_planned_and_run(model: Model, level: str, tmp_path: Path) -> None:
    path = optimised(model, level, tmp_path)
    reading = read_graph(path, ReadOptions(aliasing=Aliasing.ORT_CPU))
    assert not reading.estimated
    assert any(op.type.startswith("com.microsoft.") for op in reading.graph.ops)
    computes = input_order(planned(path))
    again = [name for index, name in enumerate(computes) for name in computes[max(0, index - 1) : index + 1]]
    assert_follows(rewritten(path, again), onnx.load(path), tmp_path)
