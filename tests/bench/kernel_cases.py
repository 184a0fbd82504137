"""One model or more for each op type that onnxruntime's CPU provider has, at a medium size.

What has no case here is named in `WITHOUT_CASE`, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from remat_cli.formats.onnx.workspace import WITHOUT_RULE
from tests.unit.runtime.onnx.one_op import Case, ints

I64, I32, U8, F16, BOOL = (getattr(TensorProto, name) for name in ("INT64", "INT32", "UINT8", "FLOAT16", "BOOL"))
OWN, BLOCKED = {"domain": "com.microsoft"}, {"domain": "com.microsoft.nchwc"}
TENTH = np.float32(0.1)
SCALE = [TENTH, np.uint8(0)]
IMAGE, MAP, ROWS, VOLUME = (2, 4, 256, 256), (1, 32, 128, 128), (1024, 512), (64, 64, 256)
WINDOW = {"kernel_shape": [2, 2]}
PADDED = {"pads": [1] * 4}


def floats(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


# fmt: off
UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu GlobalAveragePool GlobalLpPool "
    "GlobalMaxPool HardSigmoid Hardmax Identity IsInf IsNaN LeakyRelu Log LogSoftmax LpNormalization "
    "MeanVarianceNormalization Neg Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softmax Softplus Softsign "
    "Sqrt Tan Tanh ThresholdedRelu Trilu Dropout RandomNormalLike RandomUniformLike Flatten"
)
BINARY = "Add Sub Mul Div Pow PRelu Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mean Sum"
REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)


def elementwise() -> Iterator[Case]:
    """Ops that go through their operands one element at a time."""
    yield from (Case(op, attributes={"seed": 1.0} if op.startswith("Random") else {}) for op in UNARY.split())
    yield from (Case(op, constants=[shape]) for op in BINARY.split() for shape in (IMAGE, (1, 1, 256, 256)))
    yield Case("Mod", constants=[IMAGE], attributes={"fmod": 1})
    yield from (Case(op, IMAGE, [ints(*IMAGE, dtype=np.bool_)], element=BOOL) for op in ("And", "Or", "Xor"))
    yield Case("Not", (2, 4, 512, 512), element=BOOL)
    yield from (Case(f"Bitwise{op}", constants=[ints(*IMAGE)], element=I64) for op in ("And", "Or", "Xor"))
    yield Case("BitwiseNot", element=I64)
    yield Case("BitShift", constants=[ints(*IMAGE, dtype=np.uint8)], element=U8, attributes={"direction": "LEFT"})
    yield Case("BitCast", attributes={"to": I32}, opset=26)
    yield from (Case("Cast", attributes={"to": to}) for to in (F16, I64, TensorProto.DOUBLE, TensorProto.INT8))
    yield Case("Clip", constants=[np.float32(0.2)])
    yield Case("Where", constants=[ints(*IMAGE, dtype=np.bool_), np.float32(1)], first=1)
    yield Case("QuantizeLinear", constants=SCALE)
    yield Case("DequantizeLinear", (2, 4, 512, 512), SCALE, element=U8)
    yield Case("DynamicQuantizeLinear", (2, 4, 512, 512), outputs=3)


def reductions() -> Iterator[Case]:
    """Sums, norms and searches along axes."""
    yield from (Case(op, VOLUME, [np.array(axes)]) for op in REDUCTIONS.split() for axes in ([0], [1], [2], [0, 2]))
    yield from (Case(op, VOLUME, attributes={"axis": axis}) for op in ("ArgMax", "ArgMin") for axis in (0, 1, 2))
    yield from (Case("CumSum", VOLUME, [np.array(axis)]) for axis in (0, 1, 2))
    yield Case("CumProd", VOLUME, [np.array(1)], opset=26)
    yield from (Case("TopK", h, [np.array([512])], outputs=2, attributes={"axis": axis})
                for h, axis in (((256, 1024), 1), ((1024, 256), 0)))
    yield Case("BatchNormalization", constants=[(4,)] * 4)
    yield Case("InstanceNormalization", constants=[(4,), (4,)])
    yield from (Case("LayerNormalization", constants=[(256,), (256,)], outputs=outputs) for outputs in (1, 3))
    yield Case("RMSNormalization", constants=[(256,)], opset=23)
    yield Case("SimplifiedLayerNormalization", (4, 256, 512), [(512,)])
    yield Case("LRN", MAP, attributes={"size": 5})
    yield Case("NonZero", (4, 512, 512), element=BOOL)
    yield Case("NonMaxSuppression", (1, 4096, 4),
               [(1, 8, 4096), np.array([100]), floats(0.5), floats(0.1)])
    yield Case("Multinomial", (256, 4096), attributes={"sample_size": 1024, "seed": 1.0})
    yield Case("Det", (4096, 16, 16))
    yield Case("DFT", (64, 1024, 1), attributes={"axis": 1}, opset=19)


def movements() -> Iterator[Case]:
    """Ops that copy, pick and put."""
    edges = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    yield from (Case("Pad", constants=[edges], attributes={"mode": mode})
                for mode in ("constant", "reflect", "edge", "wrap"))
    yield from (Case("Slice", constants=[np.array([0]), np.array([end]), np.array([3]), np.array([step])])
                for end, step in ((128, 1), (256, 2)))
    yield from (Case("Split", attributes={"axis": axis, "num_outputs": 2}, outputs=2) for axis in (1, 3))
    yield from (Case("Concat", copies=2, attributes={"axis": axis}) for axis in (0, 1, 3))
    yield from (Case("Transpose", (8, 64, 32, 64), attributes={"perm": perm})
                for perm in ([0, 2, 3, 1], [3, 2, 1, 0], [0, 1, 3, 2], [1, 0, 2, 3]))
    yield Case("Expand", (2, 1, 256, 256), [np.array(IMAGE)])
    yield from (Case("Tile", constants=[np.array(times)]) for times in ([1, 2, 1, 1], [1, 1, 1, 2]))
    yield from (Case("Gather", ROWS, [ints(512)], attributes={"axis": axis}) for axis in (0, 1))
    yield Case("GatherElements", ROWS, [ints(*ROWS)])
    yield Case("GatherND", ROWS, [ints(1024, 1)])
    yield from (Case("ScatterElements", ROWS, [ints(512, 512), (512, 512)], attributes={"reduction": kind})
                for kind in ("none", "add"))
    yield Case("Scatter", ROWS, [ints(512, 512), (512, 512)], opset=10)
    yield Case("ScatterND", ROWS, [ints(512, 1), (512, 512)])
    yield Case("TensorScatter", (4, 8, 256, 64), [(4, 8, 16, 64), ints(4)], opset=24)
    yield Case("Compress", (2048, 512), [np.arange(2048) % 2 == 0], attributes={"axis": 0})
    yield Case("OneHot", (1024, 256), [np.int64(2), floats(0, 1)], element=I64)
    yield Case("EyeLike", ROWS)
    yield Case("DepthToSpace", (2, 16, 128, 128), attributes={"blocksize": 2})
    yield Case("SpaceToDepth", IMAGE, attributes={"blocksize": 2})
    yield Case("ReverseSequence", (64, 32, 256), [np.full(32, 64)])
    yield Case("Squeeze", (1, *IMAGE), [np.array([0])])
    yield Case("Unsqueeze", IMAGE, [np.array([0])])
    yield Case("Reshape", IMAGE, [np.array([-1])])


def pictures() -> Iterator[Case]:
    """Ops on images: pooled, resized, sampled."""
    yield from (Case(op, MAP, attributes={**WINDOW, **more}) for op in ("MaxPool", "AveragePool", "LpPool")
                for more in ({}, {"strides": [2, 2]}))
    yield Case("MaxPool", MAP, attributes=WINDOW, outputs=2)
    yield Case("MaxUnpool", MAP, [ints(*MAP)], attributes={**WINDOW, "strides": [2, 2]})
    yield Case("MaxRoiPool", MAP, [floats(*[0, 0, 0, 64, 64] * 64).reshape(64, 5)],
               attributes={"pooled_shape": [14, 14]})
    yield from (Case("RoiAlign", (1, 64, 128, 128), [floats(*[0, 0, 64, 64] * 64).reshape(64, 4), np.zeros(64, int)],
                     attributes={"output_height": 14, "output_width": 14, "mode": mode, "sampling_ratio": 2})
                for mode in ("avg", "max"))
    yield from (Case("Resize", h, [None, floats(1, 1, scale, scale)], attributes={"mode": mode, **more})
                for h, scale in (((1, 32, 64, 64), 2), ((1, 32, 256, 256), 0.5))
                for mode, more in (("nearest", {}), ("linear", {}), ("linear", {"antialias": 1}), ("cubic", {}),
                                   ("cubic", {"antialias": 1})))
    yield Case("Resize", (1, 8, 32, 32, 32), [None, floats(1, 1, 2, 2, 2)], attributes={"mode": "linear"})
    yield from (Case("Upsample", (1, 32, 64, 64), [floats(1, 1, 2, 2)], opset=9, attributes={"mode": mode})
                for mode in ("nearest", "linear"))
    yield from (Case("GridSample", (1, 8, 256, 256), [(1, 256, 256, 2)], attributes={"mode": mode})
                for mode in ("linear", "nearest", "cubic"))
    yield Case("GridSample", (1, 8, 32, 32, 32), [(1, 32, 32, 32, 3)], attributes={"mode": "linear"})
    yield Case("AffineGrid", (64, 2, 3), [np.array([64, 3, 64, 64])])
    yield Case("Col2Im", (1, 288, 16384), [np.array([128, 128]), np.array([3, 3])], attributes=PADDED)


def products() -> Iterator[Case]:
    """Matrix products, convolutions, recurrences, attention."""
    yield Case("MatMul", (512, 512), [(512, 1024)])
    yield Case("MatMul", (8, 256, 256), copies=2)
    yield Case("Gemm", ROWS, [(512, 1024), (1024,)])
    yield from (Case("Einsum", (2, 256, 8, 64), copies=2, attributes={"equation": equation})
                for equation in ("bihd,bjhd->bhij", "bihd,bihd->bih"))
    yield Case("MatMulInteger", ROWS, [ints(512, 512, dtype=np.uint8)], element=U8)
    yield Case("QLinearMatMul", ROWS, [*SCALE, ints(512, 512, dtype=np.uint8), *SCALE, *SCALE], element=U8)
    for h, weights, told in ((MAP, (32, 32, 3, 3), PADDED), (MAP, (32, 32, 1, 1), {}),
                             ((4, 32, 128, 128), (64, 32, 3, 3), {**PADDED, "strides": [2, 2]}),
                             ((1, 256, 16, 16), (512, 256, 3, 3), PADDED),
                             (MAP, (32, 1, 3, 3), {**PADDED, "group": 32})):
        yield Case("Conv", h, [weights], attributes=told)
        yield Case("ConvInteger", h, [ints(*weights, dtype=np.uint8)], element=U8, attributes=told)
        for kind in (np.uint8, np.int8):
            yield Case("QLinearConv", h, [*SCALE, ints(*weights, dtype=kind), TENTH, kind(0), *SCALE], element=U8,
                       attributes=told)
    yield Case("Conv", (1, 16, 32, 32, 32), [(16, 16, 3, 3, 3)], attributes={"pads": [1] * 6})
    yield Case("Conv", (1, 64, 4096), [(64, 64, 3)], attributes={"pads": [1] * 2})
    yield Case("ConvTranspose", (1, 64, 64, 64), [(64, 32, 2, 2)], attributes={"strides": [2, 2]})
    yield Case("DeformConv", (1, 32, 64, 64), [(32, 32, 3, 3), (1, 18, 64, 64)],
               attributes={**PADDED, "kernel_shape": [3, 3]})
    yield from (Case(op, (512, 8, 64), [(1, gates * 64, 64)] * 2, attributes={"hidden_size": 64})
                for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    yield from (Case("Attention", (1, 8, 512, 64), mask, copies=3, opset=23, attributes=told)
                for mask in ([], [(512, 512)], [(1, 8, 512, 512)], [ints(1, 8, 512, 512, dtype=np.bool_)])
                for told in ({}, {"is_causal": 1}))
    yield Case("Attention", (1, 8, 512, 64), copies=3, opset=23, element=F16)
    yield Case("RotaryEmbedding", (2, 8, 256, 64), [(256, 32), (256, 32), np.tile(np.arange(256), (2, 1))], opset=23)


def own() -> Iterator[Case]:
    """Ops of onnxruntime's own."""
    yield from (Case(op, attributes=OWN) for op in ("FastGelu", "Gelu", "QuickGelu", "Trilu"))
    yield from (Case(op, constants=[(256,)], attributes=OWN) for op in ("BiasGelu", "FastGelu"))
    yield Case("ExpandDims", constants=[np.array(0, np.int32)], attributes=OWN)
    yield Case("SkipLayerNormalization", (4, 256, 512), [(4, 256, 512), (512,), (512,)], attributes=OWN)
    yield Case("SkipSimplifiedLayerNormalization", (4, 256, 512), [(4, 256, 512), (512,)], attributes=OWN)
    yield from (Case("FusedMatMul", (8, 256, 256), copies=2, attributes={**OWN, side: 1})
                for side in ("transA", "transB"))
    yield Case("TransposeMatMul", (8, 256, 256), copies=2, attributes={**OWN, "transB": 1})
    yield Case("FusedGemm", ROWS, [(512, 1024), (1024,)], attributes={**OWN, "activation": "Relu"})
    yield Case("FusedConv", MAP, [(32, 32, 3, 3)], attributes={**OWN, **PADDED, "activation": "Relu"})
    yield Case("Attention", (2, 256, 256), [(256, 768), (768,)], attributes={**OWN, "num_heads": 8})
    yield Case("QAttention", (2, 256, 256),
               [ints(256, 768, dtype=np.uint8), (768,), TENTH, TENTH, None, *[np.uint8(0)] * 2], element=U8,
               attributes={**OWN, "num_heads": 8})
    yield Case("MultiHeadAttention", (2, 256, 256), copies=3, attributes={**OWN, "num_heads": 8})
    yield Case("GroupQueryAttention", (2, 256, 512),
               [(2, 256, 128), (2, 256, 128), None, None, np.full(2, 255, np.int32), np.array(256, np.int32)],
               attributes={**OWN, "num_heads": 8, "kv_num_heads": 2}, outputs=3)
    yield Case("RotaryEmbedding", (2, 8, 256, 64), [np.tile(np.arange(256), (2, 1)), (256, 32), (256, 32)],
               attributes=OWN)
    yield Case("DynamicQuantizeLSTM", (512, 8, 64),
               [*[ints(1, 64, 256, dtype=np.uint8)] * 2, *[None] * 5, *[floats(0.1), np.zeros(1, np.uint8)] * 2],
               attributes={**OWN, "hidden_size": 64})
    yield Case("DynamicQuantizeMatMul", ROWS, [ints(512, 1024, dtype=np.uint8), floats(0.1), np.zeros(1, np.uint8)],
               attributes=OWN)
    yield Case("MatMulIntegerToFloat", ROWS, [ints(512, 1024, dtype=np.uint8), TENTH, TENTH, *[np.uint8(0)] * 2],
               element=U8, attributes=OWN)
    yield Case("QGemm", ROWS, [*SCALE, ints(512, 1024, dtype=np.uint8), *SCALE, None, *SCALE], element=U8,
               attributes=OWN)
    yield from (Case("MatMulNBits", ROWS, [ints(1024, 16, 16, dtype=np.uint8), (1024, 16)],
                     attributes={**OWN, "K": 512, "N": 1024, "bits": 4, "block_size": 32, "accuracy_level": level})
                for level in (0, 4))
    large = (2, 4, 512, 512)
    yield from (Case(op, large, [*SCALE, ints(*large, dtype=np.uint8), *SCALE, *SCALE], element=U8, attributes=OWN)
                for op in ("QLinearAdd", "QLinearMul"))
    yield from (Case(op, large, [*SCALE, *SCALE], element=U8, attributes=OWN)
                for op in ("QLinearLeakyRelu", "QLinearSigmoid"))
    yield Case("QLinearSoftmax", (1024, 1024), [*SCALE, *SCALE], element=U8,
               attributes={**OWN, "axis": -1, "opset": 13})
    yield from (Case("QLinearGlobalAveragePool", (4, 64, 128, 128), [*SCALE, *SCALE], element=U8,
                     attributes={**OWN, "channels_last": last}) for last in (0, 1))
    yield Case("QLinearAveragePool", (4, 64, 128, 128), [*SCALE, *SCALE], element=U8, attributes={**OWN, **WINDOW})
    yield Case("QLinearConv", (1, 128, 128, 32), [*SCALE, ints(32, 32, 3, 3, dtype=np.int8), TENTH, np.int8(0), *SCALE],
               element=U8, attributes={**OWN, **PADDED, "channels_last": 1})
    yield Case("NhwcMaxPool", (4, 128, 128, 64), element=U8, attributes={**OWN, **WINDOW})
    yield Case("MaxpoolWithMask", MAP, [ints(*MAP, dtype=np.int32)], attributes={**OWN, **WINDOW})
    yield Case("CDist", (1024, 64), [(1024, 64)], attributes={**OWN, "metric": "euclidean"})
    yield Case("Inverse", (1024, 16, 16), attributes=OWN)
    yield Case("UnfoldTensor", (64, 4096), attributes={**OWN, "dim": 1, "size": 16, "step": 8})
    yield Case("Pad", constants=[np.array([0, 0, 1, 1, 0, 0, 1, 1])], attributes=OWN)
    yield Case("GridSample", (1, 8, 256, 256), [(1, 256, 256, 2)], attributes=OWN)
    yield Case("GatherND", ROWS, [ints(1024, 1)], attributes=OWN)
    yield Case("CropAndResize", MAP, [floats(*[0, 0, 1, 1] * 16).reshape(16, 4), np.zeros(16, np.int32),
                                      np.array([32, 32], np.int32)], attributes=OWN)
    yield Case("MoE", (1024, 256), [(1024, 4), (4, 512, 256), None, (4, 256, 512)],
               attributes={**OWN, "k": 2, "activation_type": "relu"})
    yield Case("ReorderInput", MAP, attributes=BLOCKED)
    yield Case("ReorderOutput", MAP, attributes={**BLOCKED, "channels": 32})
    yield Case("Conv", MAP, [(32, 32, 3, 3)], attributes={**BLOCKED, **PADDED})
    yield from (Case(op, MAP, attributes={**BLOCKED, **WINDOW}) for op in ("MaxPool", "AveragePool"))
    yield from (Case(op, MAP, attributes=BLOCKED) for op in ("GlobalAveragePool", "GlobalMaxPool"))
    yield Case("Upsample", (1, 32, 64, 64), attributes={**BLOCKED, "scales": [1, 1, 2, 2]})


def in_many_pieces() -> Iterator[Case]:
    """What leaves the heap full of holes, which tensors would fill that are measured in the same process later."""
    yield Case("Unique", (262_144,), outputs=4)
    yield Case("Unique", (32_768, 8), outputs=4, attributes={"axis": 0})


# What has no case, by reason. Names with a domain are those of onnxruntime's own.
WITHOUT_CASE: Mapping[str, str] = {
    "sequences, optionals and bodies": (
        "ConcatFromSequence If Loop Optional OptionalGetElement OptionalHasElement Scan SequenceAt SequenceConstruct "
        "SequenceEmpty SequenceErase SequenceInsert SequenceLength SplitToSequence"
    ),
    "text": (
        "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer com.microsoft.MurmurHash3 "
        "com.microsoft.Tokenizer"
    ),
    "made of sizes, not of tensors": (
        "BlackmanWindow ConstantOfShape HammingWindow HannWindow MelWeightMatrix RandomNormal RandomUniform Range "
        "Shape Size com.microsoft.Range"
    ),
    "between devices": "MemcpyFromHost MemcpyToHost",
    "of early or experimental operator sets": (
        "Affine Crop DynamicSlice ImageScaler ParametricSoftplus Scale ScaledTanh com.microsoft.BifurcationDetector"
    ),
    "whole decoders": (
        "com.microsoft.BeamSearch com.microsoft.GreedySearch com.microsoft.Sampling com.microsoft.WhisperBeamSearch"
    ),
    "onnx and onnxruntime give its result another size": "STFT",
    "not tried": " ".join(sorted(WITHOUT_RULE)),
}
# fmt: on


def kernel_cases() -> list[Case]:
    """All cases."""
    groups = (elementwise, reductions, movements, pictures, products, own, in_many_pieces)
    return [case for group in groups for case in group()]
