"""The model of onnxruntime's memory against onnxruntime: views, in-place ops, scratch memory, unread values.

Each case is one node in the middle of a small model. What the reader predicts of the model is compared with what a
child process measures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.unit.runtime.onnx.measuring import measured
from tests.unit.runtime.onnx.one_op import Case, ints, predicted

MIB = 2**20
# What pages, the allocator's books and small tensors come to.
TOLERANCE = 0.6 * MIB

# fmt: off
F16, I64, U8, I8 = TensorProto.FLOAT16, TensorProto.INT64, TensorProto.UINT8, TensorProto.INT8
BOOL = TensorProto.BOOL
IN_PLACE = ("Celu", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "Selu", "Shrink", "Sigmoid", "Softmax",
            "Softplus", "Softsign", "Tanh", "ThresholdedRelu", "Trilu")
ROWS, CHANNEL = (512, 8, 64), {"axis": 1}
SCALE, SIGNED = [np.float32(0.1), np.uint8(0)], [np.float32(0.1), np.int8(0)]
WAYS = {1: "forward", 2: "bidirectional"}
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
    # A mask of floats is made of one of booleans, and for causal attention; with past keys and values; in float16.
    *(Case("Attention", h, mask, copies=3, attributes={"is_causal": causal}, opset=23, element=element)
      for h, mask, causal, element in (
          ((1, 1, 1024, 64), [], 1, 1), ((1, 1, 1024, 64), [ints(1024, 1024, dtype=np.bool_)], 0, 1),
          ((1, 8, 512, 64), [(1, 8, 512, 512)], 0, 1), ((1, 8, 512, 64), [(1, 8, 512, 512)], 1, 1),
          ((2, 4, 256, 64), [ints(2, 4, 256, 256, dtype=np.bool_)], 0, 1), ((1, 8, 512, 64), [], 0, F16),
          ((1, 1, 1024, 64), [], 1, F16))),
    Case("Attention", (1, 4, 256, 64), [ints(1, 4, 256, 512, dtype=np.bool_), *[(1, 4, 256, 64)] * 2], copies=3,
         opset=23, outputs=3),
    *(Case("MoE", (rows, width),
           [np.tile(np.eye(experts, dtype=np.float32) + np.roll(np.eye(experts, dtype=np.float32), 1, 1),
                    (rows // experts, 1)), (experts, hidden * gates, width), None, (experts, width, hidden)],
           attributes={"k": 2, "domain": "com.microsoft", **told})
      for rows, width, hidden, experts, gates, told in (
          (1024, 256, 512, 4, 1, {"activation_type": "relu"}), (2048, 128, 256, 8, 1, {"activation_type": "gelu"}),
          (1024, 256, 512, 4, 2, {"activation_type": "swiglu", "swiglu_fusion": 1}))),
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
    *(Case(op, (4, 8, 256, 64), more, attributes=told, opset=26, keep=keep)
      for op, more, told in (("BitCast", [], {"to": 6}), ("TensorScatter", [(4, 8, 16, 64), ints(4)], {}))
      for keep in (False, True)),
    # Einsum: operands and results whose dimensions are in order or not, sums over one operand, three operands.
    *(
        Case("Einsum", h, others, attributes={"equation": equation})
        for equation, h, *others in (
            ("bij,bjk->bik", (4, 256, 512), (4, 512, 1024)), ("bij,bkj->bik", (4, 256, 512), (4, 1024, 512)),
            ("ij,jk->ki", (1024, 256), (256, 2048)), ("ji,jk->ik", (256, 1024), (256, 2048)),
            ("bihd,bjhd->bhij", (2, 256, 8, 32), (2, 512, 8, 32)),
            ("bhij,bjhd->bihd", (2, 8, 256, 512), (2, 512, 8, 32)),
            ("bijk,bij->bk", (4, 64, 64, 128), (4, 64, 64)), ("bijk,bk->bij", (4, 64, 64, 128), (4, 128)),
            ("ab,bc,cd->ad", (512, 256), (256, 1024), (1024, 128)), ("bij->bji", (8, 256, 512)),
            ("bij->b", (8, 256, 512)), ("i,j->ij", (1024,), (1024,)), ("bij,bij", (8, 256, 512), (8, 256, 512)),
        )
    ),
    *(
        Case("Resize", h, [None, np.array([1, 1, scale, scale], np.float32)], attributes={"mode": mode, **more})
        for h, scale in (((1, 32, 64, 64), 2), ((2, 8, 128, 256), 2), ((1, 8, 256, 128), 0.5), ((4, 16, 64, 64), 3))
        for mode, more in (("cubic", {}), ("cubic", {"antialias": 1}), ("linear", {"antialias": 1}), ("linear", {}))
    ),
    *(
        Case("DeformConv", (images, channels, size, size),
             [(filters, channels // groups, 3, 3), (images, 18 * sets, size, size)],
             attributes={"pads": [1] * 4, "kernel_shape": [3, 3], "group": groups, "offset_group": sets})
        for images, channels, filters, size, groups, sets in (
            (1, 32, 32, 64, 1, 1), (2, 16, 64, 64, 1, 1), (1, 16, 32, 96, 2, 1), (1, 32, 32, 64, 1, 2))
    ),
    # Quantized convolutions: patches, pointwise, strided, in groups, by channel, dilated, few channels.
    *(
        Case("QLinearConv", h, [*scale, ints(*weights, dtype=kind), np.float32(0.1), kind(0), *scale], element=element,
             attributes=told)
        for h, weights, told in (
            ((1, 32, 128, 128), (32, 32, 3, 3), {"pads": [1] * 4}), ((1, 32, 128, 128), (32, 32, 1, 1), {}),
            ((4, 32, 128, 128), (64, 32, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
            ((2, 64, 96, 96), (32, 64, 5, 5), {"pads": [2] * 4}),
            ((1, 3, 224, 224), (64, 3, 7, 7), {"strides": [2, 2]}),
            ((1, 32, 128, 128), (32, 1, 3, 3), {"pads": [1] * 4, "group": 32}),
            ((1, 64, 64, 64), (64, 32, 3, 3), {"pads": [1] * 4, "group": 2}),
            ((1, 64, 96, 96), (96, 64, 1, 1), {"strides": [2, 2]}),
            ((1, 16, 128, 128), (24, 16, 3, 3), {"pads": [2] * 4, "dilations": [2, 2]}),
            ((1, 40, 128, 128), (40, 1, 3, 3), {"pads": [1] * 4, "group": 40}),
        )
        for element, scale, kind in ((U8, SCALE, np.uint8), (U8, SCALE, np.int8), (I8, SIGNED, np.int8))
    ),
    Case("QLinearConv", (1, 128, 128, 32), [*SCALE, ints(64, 32, 3, 3, dtype=np.uint8), *SCALE, *SCALE], element=U8,
         attributes={"pads": [1] * 4, "channels_last": 1, "domain": "com.microsoft"}),
    *(
        Case("DynamicQuantizeLSTM", h,
             [ints(ways, h[2], 4 * hidden, dtype=np.uint8), ints(ways, hidden, 4 * hidden, dtype=np.uint8), *[None] * 5,
              *[np.full(ways, 0.1, np.float32), np.zeros(ways, np.uint8)] * 2],
             attributes={"hidden_size": hidden, "direction": WAYS[ways], "domain": "com.microsoft"})
        for h, hidden, ways in (
            ((512, 8, 64), 64, 1), ((256, 16, 128), 64, 1), ((128, 4, 512), 128, 2), ((512, 8, 64), 64, 2))
    ),
    *(Case("MatMulNBits", (rows, depth),
           [ints(columns, depth // 32, 16, dtype=np.uint8), (columns, depth // 32)],
           attributes={"K": depth, "N": columns, "bits": 4, "block_size": 32, "domain": "com.microsoft",
                       "accuracy_level": level})
      for rows, depth, columns in ((1024, 512, 1024), (2048, 1024, 256), (512, 2048, 512)) for level in (0, 4)),
    *(Case("FastGelu", constants=bias, attributes={"domain": "com.microsoft"}) for bias in ([], [(256,)])),
    Case("GridSample", (1, 8, 256, 256), [(1, 256, 256, 2)], attributes={"domain": "com.microsoft"}),
    Case("DynamicQuantizeMatMul", (4096, 512),
         [ints(512, 1024, dtype=np.uint8), np.full(1, 0.1, np.float32), np.zeros(1, np.uint8)],
         attributes={"domain": "com.microsoft"}),
    *(
        Case("QAttention", h,
             [ints(256, 768, dtype=np.uint8), (768,), np.float32(0.1), np.float32(0.1), None, np.uint8(0), np.uint8(0)],
             element=U8, attributes=HEADS)
        for h in ((1, 512, 256), (2, 256, 256))
    ),
    Case("MatMulIntegerToFloat", (1024, 512),
         [ints(512, 1024, dtype=np.uint8), np.float32(0.1), np.float32(0.1), np.uint8(0), np.uint8(0)], element=U8,
         attributes={"domain": "com.microsoft"}),
    # At the end: it leaves the heap full of holes, which later tensors would fill.
    *(Case("Unique", h, outputs=outputs, attributes=told)
      for h, outputs, told in (((65_536,), 4, {}), ((65_536,), 1, {}), ((32_768, 8), 4, {"axis": 0}),
                               ((64, 8192), 4, {"axis": 1}))),
]
# fmt: on


def _sizes_by_data(case: Case) -> dict[str, tuple[int, ...]]:
    """Shapes of results that depend on what is drawn: half of all booleans are true, no two numbers the same."""
    if case.op == "NonZero":
        return {"y": (3, 524_288)}
    if case.op != "Unique":
        return {}
    counted = case.h[case.attributes.get("axis", 0)]
    return {"y": tuple(case.h)} | {f"y{number}": (counted,) for number in range(1, case.outputs)}


# So many cases share a child process. If each worker measured all of them, most would be measured several times.
TOGETHER = 16


@pytest.fixture(name="peaks_from", scope="module")
def peaks_of_cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[tuple[int, dict[str, Any]]]]:
    """What is predicted of the models of the cases from this one on, and what was measured."""

    @cache
    def peaks_from(first: int) -> list[tuple[int, dict[str, Any]]]:
        folder = tmp_path_factory.mktemp("kernels")
        cases = enumerate(CASES[first : first + TOGETHER])
        models = [predicted(case, folder, str(number), _sizes_by_data(case)) for number, case in cases]
        answers = measured([model.request for model in models], folder)
        return [(model.peak_bytes, answer) for model, answer in zip(models, answers, strict=True)]

    return peaks_from


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: str(CASES[number]))
def test_memory_is_as_predicted(number: int, peaks_from: Callable[[int], list[tuple[int, dict[str, Any]]]]) -> None:
    place = number % TOGETHER
    peak_bytes, answer = peaks_from(number - place)[place]
    assert "error" not in answer, answer
    assert abs(answer["peak_bytes"] - peak_bytes) <= TOLERANCE, (answer["peak_bytes"] / MIB, peak_bytes / MIB)
