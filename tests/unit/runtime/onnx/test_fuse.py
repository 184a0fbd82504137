"""Fuse first, plan second: models as onnxruntime's optimiser leaves them are planned and run."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

from remat_cli.core.schedule import input_order
from remat_cli.errors import GraphError, UsageError
from remat_cli.formats import Aliasing, ReadOptions, read_graph
from remat_cli.formats.onnx.contrib import is_fused
from remat_cli.formats.onnx.external_data import external_tensors
from remat_cli.formats.onnx.half_precision import WITH_KERNEL
from remat_cli.runtime.onnx.apply import model_bytes
from remat_cli.runtime.onnx.fuse import fuse
from tests.unit.formats.onnx.models import Model, elsewhere, float_input, integers, node, value
from tests.unit.runtime.onnx.rewriting import assert_follows, planned, rewritten, stored
from tests.unit.runtime.onnx.test_execution import run

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


@pytest.mark.parametrize("for_this_machine", [False, True])
@pytest.mark.parametrize("model", [CONVOLUTIONS, TRANSFORMER], ids=["convolutions", "transformer"])
def test_a_fused_model_is_sized_planned_and_run(model: Model, for_this_machine: bool, tmp_path: Path) -> None:
    fused = fuse(model.save(tmp_path), for_this_machine=for_this_machine)
    assert (fused.nodes_before, fused.version) == (len(model.nodes), onnxruntime.__version__)
    path = tmp_path / "fused.onnx"
    onnx.save(fused.proto, path)
    reading = read_graph(path, ReadOptions(aliasing=Aliasing.ORT_CPU))
    assert not reading.estimated
    assert fused.fused == Counter(op.type for op in reading.graph.ops if op.type.startswith("com.microsoft."))
    assert fused.fused
    computes = input_order(planned(path))
    again = [name for index, name in enumerate(computes) for name in computes[max(0, index - 1) : index + 1]]
    assert_follows(rewritten(path, again), onnx.load(path), tmp_path)


def test_the_same_model_gives_the_same_file(tmp_path: Path) -> None:
    path = TRANSFORMER.save(tmp_path)
    assert len({model_bytes(fuse(path).proto) for _ in range(2)}) == 1


def test_a_fused_model_says_so_once(tmp_path: Path) -> None:
    path = tmp_path / "fused.onnx"
    onnx.save(fuse(TRANSFORMER.save(tmp_path)).proto, path)
    again = fuse(path).proto
    assert [entry.value for entry in again.metadata_props] == [f"onnxruntime {onnxruntime.__version__}"]
    assert is_fused(again)
    assert not is_fused(TRANSFORMER.proto())


def test_sizes_stay_open(tmp_path: Path) -> None:
    fused = fuse(replace(CONVOLUTIONS, inputs=[float_input("x", "batch", 3, 16, 16)]).save(tmp_path))
    path = tmp_path / "fused.onnx"
    onnx.save(fused.proto, path)
    assert planned(path, dims={"batch": 5}).tensors["y"].shape == (5, 10)


def test_ops_of_half_precision_are_run_as_onnxruntime_runs_them(tmp_path: Path) -> None:
    half = Model(
        [
            node("Concat", ["x"], ["a"], "copy", axis=0),
            node("Exp", ["a"], ["b"], "exp"),
            node("Mul", ["b", "w"], ["y"]),
        ],
        inputs=[value("x", [4, 512, 512], TensorProto.FLOAT16)],
        stored=[numpy_helper.from_array(np.ones((512, 512), np.float16), "w")],
    )
    proto = half.proto()
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    path, fused = tmp_path / "half.onnx", tmp_path / "fused.onnx"
    onnx.save(proto, path)
    onnx.save(fuse(path).proto, fused)
    assert [note for note in read_graph(path, ReadOptions(mode="inference")).notes if "2 ops of float16 (Exp" in note]
    assert not [note for note in read_graph(fused, ReadOptions(mode="inference")).notes if "float16" in note]
    assert {one.op_type for one in onnx.load(fused).graph.node} == {"Cast", "Concat", "Exp", "Mul"}
    assert [tensor.data_type for tensor in onnx.load(fused).graph.initializer] == [TensorProto.FLOAT]
    assert run(fused).holds


def test_the_ops_with_a_kernel_of_half_precision_are_those_that_onnxruntime_lists() -> None:
    kernels = [one for one in get_all_opkernel_def() if one.domain == "" and one.provider == "CPUExecutionProvider"]
    types = ((one.op_name, kind) for one in kernels for kind in chain(*one.type_constraints.values()))
    assert {name for name, kind in types if "(float16)" in kind} == WITH_KERNEL


def test_weights_have_to_be_there(tmp_path: Path) -> None:
    model = Model([node("MatMul", ["x", "w"], ["y"], "one")], stored=[elsewhere("w", [3, 8], "weights.bin")])
    path = model.save(tmp_path)
    with pytest.raises(UsageError, match=r"weights that the model refers to are not there: weights\.bin"):
        fuse(path)
    (tmp_path / "weights.bin").write_bytes(bytes(3 * 8 * 4))
    assert [tensor.name for tensor in external_tensors(fuse(path).proto)] == ["w"]


def test_a_model_that_onnxruntime_refuses(tmp_path: Path) -> None:
    model = Model([node("Frobnicate", ["x"], ["y"], "op", domain="com.acme")], other_opsets={"com.acme": 1})
    with pytest.raises(GraphError, match=r"does not run in onnxruntime: .*Frobnicate"):
        fuse(model.save(tmp_path))


def test_without_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match="needs onnxruntime"):
        fuse(TRANSFORMER.save(tmp_path))
