"""The model of onnxruntime's memory against onnxruntime: views, in-place ops, scratch memory, unread values.

Each case is one node in the middle of a small model. What the reader predicts of the model is compared with what a
child process measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.config import GraphOptions
from remat_cli.prepare import prepare
from remat_cli.runtime.onnx.apply import apply_schedule
from remat_cli.schedule import plain_run
from remat_cli.simulate import simulate
from tests.unit.formats.onnx.models import integers, node
from tests.unit.runtime.onnx.measuring import measured

MIB = 2**20
# What pages, the allocator's books and small tensors come to.
TOLERANCE = 0.6 * MIB

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A node that makes y of h, a tensor that a node before it made, and constants.

    Attributes:
        op: of the node.
        h: shape of h.
        constants: further inputs, in order; a shape stands for random float32 of that shape, None for an absent input.
        first: position of h among the inputs.
        copies: how often h is an input, in a row.
        element: type of h.
        outputs: number of outputs; only the first one is read.
        attributes: of the node; `domain` too.
        opset: version of ONNX's own operator set.
        keep: whether h is read again after the node.
    """

    op: str
    h: Sequence[int] = (2, 4, 256, 256)
    constants: Sequence[Any] = ()
    first: int = 0
    copies: int = 1
    element: int = TensorProto.FLOAT
    outputs: int = 1
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 21
    keep: bool = False

    def __str__(self) -> str:
        told = [self.op, *(f"{key}={value}" for key, value in self.attributes.items()), "x".join(map(str, self.h))]
        return "-".join([*told, *(["kept"] if self.keep else [])])

    def model(self) -> onnx.ModelProto:
        """x is copied to h; y, and h where it is kept, are read by a Gather of their first element."""
        constants = {f"c{i}": _array(one) for i, one in enumerate(self.constants) if one is not None}
        inputs = [f"c{i}" if one is not None else "" for i, one in enumerate(self.constants)]
        inputs[self.first : self.first] = ["h"] * self.copies
        outputs = ["y", *(f"y{i}" for i in range(1, self.outputs))]
        nodes = [node("Concat", ["x"], ["h"], "copy", axis=0), node(self.op, inputs, outputs, "op", **self.attributes)]
        read = ["y", *(["h"] if self.keep else [])]
        for name in read:
            nodes.append(node("Reshape", [name, "flat"], [f"{name}.flat"], f"{name}.flat"))
            nodes.append(node("Gather", [f"{name}.flat", "zero"], [f"{name}.first"], f"{name}.first"))
        graph = helper.make_graph(
            nodes,
            "one-op",
            [helper.make_tensor_value_info("x", self.element, self.h)],
            [helper.make_empty_tensor_value_info(f"{name}.first") for name in read],
            [integers("flat", -1), integers("zero", 0)],
        )
        graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
        domains = {"": self.opset, "com.microsoft": 1}
        imports = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _array(given: Any) -> Array:
    if isinstance(given, tuple):
        return np.random.default_rng(0).random(given, dtype=np.float32)
    return np.asarray(given)


def ints(*dims: int, dtype: type = np.int64) -> Array:
    return np.random.default_rng(0).integers(0, 2, dims).astype(dtype)


# fmt: off
F16, I64, U8, BOOL = TensorProto.FLOAT16, TensorProto.INT64, TensorProto.UINT8, TensorProto.BOOL
IN_PLACE = ("Celu", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "Selu", "Shrink", "Sigmoid", "Softmax",
            "Softplus", "Softsign", "Tanh", "ThresholdedRelu", "Trilu")
ROWS, CHANNEL = (512, 8, 64), {"axis": 1}
HEADS = {"num_heads": 8, "domain": "com.microsoft"}

CASES = [
    *(Case(op, keep=keep) for op in (*IN_PLACE, "Identity", "Flatten", "Neg", "Exp", "Erf") for keep in (False, True)),
    *(Case("Cast", attributes={"to": to}, keep=keep) for to in (1, F16, I64) for keep in (False, True)),
    *(Case("Clip", constants=[np.float32(0.2)], keep=keep) for keep in (False, True)),
    *(Case("Add", constants=[(1, 4, 1, 1)], keep=keep) for keep in (False, True)),
    *(Case(op, attributes=CHANNEL, keep=keep) for op in ("Softmax", "LogSoftmax") for keep in (False, True)),
    Case("Hardmax", (2, 64, 64, 64), attributes=CHANNEL),
    Case("Softmax", attributes=CHANNEL, opset=11),
    Case("Dropout"),
    *(Case(op, copies=copies) for op in ("Max", "Mean", "Min", "Sum") for copies in (2, 3, 5)),
    Case("MeanVarianceNormalization"),
    Case("LRN", (1, 32, 128, 128), attributes={"size": 5}),
    Case("Where", constants=[ints(2, 4, 256, 256, dtype=np.bool_), np.float32(1)], first=1),
    Case("Where", constants=[ints(1, 1, 256, 256, dtype=np.bool_), (2, 4, 256, 256)], first=1),
    Case("Where", constants=[ints(1, 4, 1, 1, dtype=np.bool_), (2, 4, 256, 256)], first=1),
    *(
        Case("ScatterElements", (4, 256, 512), [ints(4, 128, 512), (4, 128, 512)], attributes=CHANNEL, keep=keep)
        for keep in (False, True)
    ),
    Case("NonZero", (4, 512, 512), element=BOOL),
    Case("OneHot", (1024, 256), [np.int64(2), np.array([0, 1], np.float32)], element=I64),
    Case("Split", outputs=2, attributes={"axis": 1, "num_outputs": 2}),
    Case("TopK", constants=[ints(1) * 0 + 3], outputs=2),
    Case("Transpose", attributes={"perm": [0, 2, 3, 1]}),
    Case("Expand", constants=[np.array([2, 2, 4, 256, 256])]),
    Case("LayerNormalization", constants=[(256,), (256,)]),
    Case("InstanceNormalization", constants=[(4,), (4,)]),
    Case("BatchNormalization", constants=[(4,)] * 4),
    Case("RMSNormalization", constants=[(256,)], opset=23),
    Case("MatMul", (512, 512), [(512, 1024)]),
    Case("MatMul", (4, 256, 256), copies=2),
    Case("Gemm", (1024, 512), [(1024, 512), (1024,)], attributes={"transB": 1}),
    Case("Gemm", (512, 1024), [(512, 256), (256, 1024)], first=2),
    Case("QLinearMatMul", (1024, 512), [np.float32(0.1), np.uint8(0), ints(512, 512, dtype=np.uint8), np.float32(0.1),
                                        np.uint8(0), np.float32(0.1), np.uint8(0)], element=U8),
    Case("MatMulInteger", (1024, 512), [ints(512, 512, dtype=np.uint8)], element=U8),
    # Convolutions: pointwise; more pixels than filters; more filters than pixels; in groups; of several images.
    Case("Conv", (1, 32, 128, 128), [(32, 32, 1, 1)]),
    Case("Conv", (1, 32, 128, 128), [(32, 32, 1, 1)], attributes={"strides": [2, 2]}),
    Case("Conv", (1, 32, 128, 128), [(32, 32, 3, 3)], attributes={"pads": [1] * 4}),
    Case("Conv", (1, 256, 16, 16), [(512, 256, 3, 3)], attributes={"pads": [1] * 4}),
    Case("Conv", (4, 256, 16, 16), [(512, 256, 3, 3)], attributes={"pads": [1] * 4}),
    Case("Conv", (1, 256, 16, 16), [(256, 256, 3, 3)], attributes={"pads": [1] * 4}),
    Case("Conv", (1, 512, 16, 16), [(1024, 256, 3, 3)], attributes={"pads": [1] * 4, "group": 2}),
    Case("Conv", (1, 32, 128, 128), [(32, 1, 3, 3)], attributes={"pads": [1] * 4, "group": 32}),
    Case("Conv", (1, 128, 512), [(1024, 128, 3)], attributes={"pads": [1] * 2}),
    Case("Conv", (1, 512, 32, 32), [(1024, 512, 1, 1)], attributes={"strides": [2, 2]}),
    Case("ConvInteger", (1, 16, 128, 128), [ints(8, 16, 3, 3, dtype=np.uint8)], element=U8),
    Case("ConvTranspose", (1, 64, 64, 64), [(64, 32, 2, 2)], attributes={"strides": [2, 2]}),
    Case("ConvTranspose", (4, 64, 64, 64), [(64, 32, 2, 2)], attributes={"strides": [2, 2]}),
    Case("ConvTranspose", (1, 64, 64, 64), [(64, 16, 2, 2)], attributes={"strides": [2, 2], "group": 2}),
    Case("ConvTranspose", (1, 32, 64, 64), [(32, 16, 3, 3)], attributes={"pads": [1] * 4}),
    *(Case(op, (1, 32, 128, 128), attributes={"kernel_shape": [2, 2]}) for op in ("MaxPool", "AveragePool")),
    Case("GridSample", (1, 8, 256, 256), [(1, 256, 256, 2)]),
    *(
        Case(op, ROWS, [(2 if way == "bidirectional" else 1, gates * 64, 64)] * 2,
             attributes={"hidden_size": 64, "direction": way, **activations})
        for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
        for way in ("forward", "reverse", "bidirectional")
        for activations in [{"activations": ["Tanh"] * (1 + (way == "bidirectional"))} if op == "RNN" else {}]
    ),
    Case("Attention", (1, 8, 256, 64), copies=3, opset=23),
    Case("Attention", (2, 256, 256), copies=3, attributes={"q_num_heads": 4, "kv_num_heads": 4}, opset=23),
    Case("Attention", (1, 8, 128, 64), [(1, 4, 512, 64)] * 2, opset=23),
    Case("FusedConv", (1, 256, 16, 16), [(512, 256, 3, 3)],
         attributes={"pads": [1] * 4, "activation": "Relu", "domain": "com.microsoft"}),
    *(
        Case("FusedConv", (1, 32, 128, 128), [(1, 32, 128, 128), (32, 32, 1, 1), (32,)], first=3, keep=keep,
             attributes={"activation": "Relu", "domain": "com.microsoft"})
        for keep in (False, True)
    ),
    *(Case(op, attributes={"domain": "com.microsoft"}) for op in ("FastGelu", "QuickGelu")),
    Case("BiasGelu", constants=[(256,)], attributes={"domain": "com.microsoft"}),
    Case("SkipLayerNormalization", (4, 256, 512), [(4, 256, 512), (512,), (512,)],
         attributes={"domain": "com.microsoft"}),
    *(
        Case("Attention", (1, 512, 256), [(256, 768), (768,), *mask], attributes=HEADS)
        for mask in ([], [ints(1, 512, dtype=np.int32)])
    ),
    Case("Attention", (2, 256, 256), [(256, 768), (768,)], attributes=HEADS),
    *(
        Case("MultiHeadAttention", (1, 512, 256), further, copies=3, attributes=HEADS)
        for further in ([], [None, None, (1, 8, 512, 512)], [None, ints(1, 512, dtype=np.int32)])
    ),
    Case("FusedMatMul", (4, 256, 256), [(4, 256, 256)], attributes={"transB": 1, "domain": "com.microsoft"}),
]
# fmt: on


@pytest.fixture(scope="module")
def peaks(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, dict[str, Any]]]:
    """What is predicted of each case's model, and what was measured."""
    folder = tmp_path_factory.mktemp("kernels")
    predicted, requests = [], []
    for number, case in enumerate(CASES):
        path, ran = folder / f"{number}.onnx", folder / f"{number}.rewritten.onnx"
        onnx.save(case.model(), path)
        value_shapes = {"y": (3, 524_288)} if case.op == "NonZero" else {}
        options = GraphOptions(mode="inference", value_shapes=value_shapes)
        graph = prepare(path, options).graph
        schedule = plain_run(graph)
        predicted.append(simulate(graph, schedule).peak_bytes - graph.fixed_bytes)
        onnx.save(apply_schedule(path, options, graph, schedule, {}).proto, ran)
        kind = helper.tensor_dtype_to_np_dtype(case.element).name
        requests.append({"model": str(ran), "inputs": [("x", kind, case.h)]})
    return list(zip(predicted, measured(requests, folder), strict=True))


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: str(CASES[number]))
def test_memory_is_as_predicted(number: int, peaks: Sequence[tuple[int, dict[str, Any]]]) -> None:
    predicted, answer = peaks[number]
    assert "error" not in answer, answer
    assert abs(answer["peak_bytes"] - predicted) <= TOLERANCE, (answer["peak_bytes"] / MIB, predicted / MIB)
