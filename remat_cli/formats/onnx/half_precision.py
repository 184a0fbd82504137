"""Ops of float16 without a kernel in onnxruntime's CPU provider.

It runs them in float32, with casts around them.
"""

from __future__ import annotations

from collections.abc import Iterable

from remat_cli.formats.onnx.structure import Node
from remat_cli.formats.onnx.values import Values

# What version 1.32 lists with a float16 type (get_all_opkernel_def); a test holds the two against each other.
# fmt: off
WITH_KERNEL = frozenset((
    "Attention", "BitCast", "Cast", "Celu", "Clip", "Compress", "Concat", "ConcatFromSequence", "ConstantOfShape",
    "DequantizeLinear", "Dropout", "DynamicSlice", "Expand", "Flatten", "Gather", "GatherElements", "GatherND",
    "Identity", "If", "IsInf", "IsNaN", "LayerNormalization", "Loop", "Max", "MemcpyFromHost", "MemcpyToHost", "Min",
    "Mod", "Optional", "OptionalGetElement", "OptionalHasElement", "QuantizeLinear", "RMSNormalization",
    "RandomNormalLike", "RandomUniformLike", "Reshape", "ReverseSequence", "RotaryEmbedding", "Round", "Scan",
    "Scatter", "ScatterElements", "ScatterND", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
    "SequenceInsert", "SequenceLength", "Shape", "Shrink", "Sign", "SimplifiedLayerNormalization", "Slice", "Split",
    "SplitToSequence", "Squeeze", "TensorScatter", "Transpose", "Unsqueeze",
))
# fmt: on


def run_in_float32(nodes: Iterable[Node], values: Values) -> list[Node]:
    """Return the nodes that read float16 but run in float32.

    They are of ONNX's own set.
    """
    return [
        node
        for node in nodes
        if node.proto.domain == ""
        and node.proto.op_type not in WITH_KERNEL
        and any(values[name].type.element.name == "float16" for name in node.proto.input if name)
    ]
