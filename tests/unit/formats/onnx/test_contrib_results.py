"""Types of results of onnxruntime's own ops, held against what its CPU provider makes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from remat_cli.formats.onnx import read
from remat_cli.formats.reader import Aliasing, ReadOptions
from remat_cli.formats.source import Source

DTYPES = {"f": "float32", "u": "uint8", "i": "int8", "w": "int32", "l": "int64", "b": "bool", "s": "int16"}


@dataclass(frozen=True)
class Case:
    """A node: its inputs as `f2,3` for floats of shape [2, 3], `=1` behind for elements that are all 1.

    An input `""` is absent. A minus in front makes it an initializer. `?` stands for an output that is not asked for.
    """

    op: str
    inputs: Sequence[str]
    outputs: int | str = 1
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 17
    domain: str = "com.microsoft"


def quantized(*shape: int, constant: bool = False) -> list[str]:
    """Return the inputs that make a quantized tensor: elements, scale and zero point."""
    dims = ",".join(map(str, shape))
    return [f"{'-' if constant else ''}u{dims}=3", "-f=0.5", "-u=1"]


SCALE = ["-f=0.5", "-u=1"]
EMBEDDING = ["w2,5=1", "w2,5=1", "-f30,8", "-f20,8", "-f2,8", "-f8", "-f8"]
CASES = [
    *(
        Case(op, [*quantized(2, 1, 4), *quantized(3, 4), *SCALE], opset=opset)
        for op in ("QLinearAdd", "QLinearMul")
        for opset in (11, 13, 17)
    ),
    Case("QLinearConcat", [*SCALE, *quantized(2, 3, 4), *quantized(2, 5, 4)], attributes={"axis": 1}),
    Case("QLinearConcat", [*SCALE, *quantized(2, 3), *quantized(2, 5), *quantized(2, 1)], attributes={"axis": -1}),
    Case(
        "QLinearAveragePool", [*quantized(1, 3, 9, 9), *SCALE], attributes={"kernel_shape": [3, 3], "strides": [2, 2]}
    ),
    Case(
        "QLinearAveragePool",
        [*quantized(1, 10, 9, 3), *SCALE],
        attributes={"kernel_shape": [3, 2], "strides": [2, 3], "channels_last": 1, "ceil_mode": 1},
    ),
    Case("QLinearGlobalAveragePool", [*quantized(2, 3, 9, 7), *SCALE]),
    Case("QLinearGlobalAveragePool", [*quantized(2, 9, 7, 3), *SCALE], attributes={"channels_last": 1}),
    Case("QLinearLeakyRelu", [*quantized(2, 3), *SCALE], attributes={"alpha": 0.1}),
    Case("QLinearSigmoid", [*quantized(2, 3), *SCALE]),
    Case("QLinearSoftmax", [*quantized(2, 3), *SCALE], attributes={"opset": 13, "axis": -1}),
    Case("QLinearWhere", ["b3,1=1", *quantized(3, 4), *quantized(1, 4), *SCALE]),
    Case(
        "QLinearConv",
        [*quantized(1, 8, 8, 3), *quantized(5, 3, 3, 3, constant=True), *SCALE],
        attributes={"channels_last": 1, "pads": [1, 1, 1, 1], "strides": [2, 2]},
        opset=13,
    ),
    Case("QGemm", [*quantized(3, 4), *quantized(4, 5, constant=True), "", *SCALE]),
    Case("QGemm", [*quantized(3, 4), *quantized(5, 4, constant=True)], attributes={"transB": 1}),
    Case("QuantizeLinear", ["f2,3", *SCALE]),
    Case("DequantizeLinear", quantized(2, 3)),
    Case("DynamicQuantizeMatMul", ["f2,3,4", "-u4,5=2", "-f=0.5", "-u=1"]),
    Case("MatMulIntegerToFloat", ["u2,3,4=2", "-u4,5=2", "-f=0.5", "-f=0.5", "-u=1", "-u=1"]),
    Case("MatMulInteger16", ["s2,3,4=2", "s4,5=2"]),
    Case("MatMulNBits", ["f2,3,32", "-u6,2,8=1", "-f12"], attributes={"K": 32, "N": 6, "bits": 4, "block_size": 16}),
    Case("GatherBlockQuantized", ["-u9,16=1", "w2,3=1", "-f9,2"], attributes={"block_size": 16, "bits": 4}),
    Case("EmbedLayerNormalization", EMBEDDING, 2),
    Case("EmbedLayerNormalization", [*EMBEDDING, "w2,5=1"], 3),
    Case("EmbedLayerNormalization", ["w2,5=1", "", "-f30,8", "-f20,8", "", "-f8", "-f8"], 2),
    Case(
        "QEmbedLayerNormalization",
        [
            "w2,5=1",
            "w2,5=1",
            "-u30,8=1",
            "-u20,8=1",
            "-u2,8=1",
            "-u8=1",
            "-u8=1",
            "w2,5=1",
            *["-f=0.5"] * 5,
            *["-u=1"] * 5,
        ],
        2,
    ),
    Case("SkipLayerNormalization", ["f2,5,8", "f2,5,8", "-f8", "-f8", "-f8"], "y??t"),
    Case("SkipLayerNormalization", ["f2,5,8", "f2,5,8", "-f8"]),
    Case("SkipSimplifiedLayerNormalization", ["f2,5,8", "f2,5,8", "-f8"], "y??t"),
    Case("SimplifiedLayerNormalization", ["f2,5,8", "-f8"], "y", {"axis": -1}, domain=""),
    Case("Attention", ["f2,5,8", "-f8,24", "-f24"], 1, {"num_heads": 2}),
    Case("Attention", ["f2,5,8", "-f8,24", "-f24", "w2=5"], 1, {"num_heads": 2}),
    Case("Attention", ["f2,5,8", "-f8,24", "-f24", "", "f2,2,2,3,4"], 2, {"num_heads": 2, "unidirectional": 1}),
    Case("Attention", ["f2,5,8", "-f8,20", "-f20"], 1, {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}),
    Case(
        "QAttention",
        ["u2,5,8=2", "-u8,24=2", "-f24", "-f=0.5", "-f=0.5", "w2=5", "-u=1", "-u=1"],
        attributes={"num_heads": 2},
    ),
    Case("MultiHeadAttention", ["f2,5,8", "f2,7,8", "f2,7,8"], 1, {"num_heads": 2}),
    Case("MultiHeadAttention", ["f2,5,8", "f2,7,8", "f2,7,12"], 1, {"num_heads": 2}),
    Case("MultiHeadAttention", ["f2,5,8", "f2,2,7,4", "f2,2,7,4"], 1, {"num_heads": 2}),
    Case("MultiHeadAttention", ["f2,5,8", "f2,5,8", "f2,5,8", "", "", "", "f2,2,3,4", "f2,2,3,4"], 3, {"num_heads": 2}),
    Case("MultiHeadAttention", ["f2,5,8", "f2,5,8", "f2,5,8"], 3, {"num_heads": 2}),
    Case("BiasGelu", ["f2,5,8", "-f8"]),
    Case("FastGelu", ["f2,5,8", "-f8"]),
    Case("Gelu", ["f2,5,8"]),
    Case("QuickGelu", ["f2,5,8"]),
    Case("FusedMatMul", ["f4,2,3", "-f3,5"], attributes={"alpha": 0.5}),
    Case("FusedMatMul", ["f4,3,2", "f4,5,3"], attributes={"transA": 1, "transB": 1}),
    Case("FusedMatMul", ["f3,4,2", "f4,2,5"], attributes={"transBatchA": 1}),
    Case("RotaryEmbedding", ["f2,5,8", "l2,5=1", "-f9,2", "-f9,2"], attributes={"num_heads": 2}),
    Case("NhwcMaxPool", ["u1,9,8,3=2"], attributes={"kernel_shape": [3, 3], "strides": [2, 2]}),
    Case(
        "DynamicQuantizeLSTM",
        ["f4,2,3", "-u1,3,20=1", "-u1,5,20=1", "", "", "", "", "", *["-f1=0.5", "-u1=1"] * 2],
        3,
        {"hidden_size": 5},
    ),
    Case("Inverse", ["f3,3=0"]),
    Case("Trilu", ["f3,4"]),
    Case(
        "GroupQueryAttention",
        ["f2,5,32", "f2,5,16", "f2,5,16", "f2,2,0,8", "f2,2,0,8", "w2=4", "-w=5"],
        3,
        {"num_heads": 4, "kv_num_heads": 2},
    ),
]


def parsed(text: str) -> np.ndarray[Any, Any]:
    match = re.fullmatch(r"-?([a-z])([\d,]*)(?:=(.*))?", text)
    assert match is not None
    letter, dims, element = match.groups()
    shape = tuple(int(one) for one in dims.split(",") if one)
    if element is None:
        return np.random.default_rng(0).standard_normal(shape).astype(DTYPES[letter])
    return np.full(shape, float(element)).astype(DTYPES[letter])


def model_of(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]]]:
    """Return a model of one node, and what it is fed."""
    names = [f"x{at}" if text else "" for at, text in enumerate(case.inputs)]
    given = {name: parsed(text) for name, text in zip(names, case.inputs, strict=True) if name}
    stored = {name for name, text in zip(names, case.inputs, strict=True) if text.startswith("-")}
    wanted = case.outputs if isinstance(case.outputs, str) else "abcde"[: case.outputs]
    results = ["" if one == "?" else one for one in wanted]
    graph = helper.make_graph(
        [helper.make_node(case.op, names, results, "op", domain=case.domain, **case.attributes)],
        "graph",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in given.items()
            if name not in stored
        ],
        [onnx.ValueInfoProto(name=name) for name in results if name],
        [numpy_helper.from_array(given[name], name) for name in stored],
    )
    opsets = [helper.make_opsetid("", case.opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model, {name: array for name, array in given.items() if name not in stored}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.opset}")
def test_results_are_those_of_onnxruntime(tmp_path: Path, case: Case) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, feeds = model_of(case)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    reading = read(Source(path), ReadOptions(aliasing=Aliasing.NONE, mode="inference"))
    assert reading.estimated == ()
    tensors = reading.graph.tensors
    predicted = {one.name: (tensors[one.name].shape, tensors[one.name].dtype) for one in model.graph.output}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    measured = dict(zip(names, session.run(names, feeds), strict=True))
    assert predicted == {name: (array.shape, str(array.dtype)) for name, array in measured.items()}
