"""Ops that onnxruntime's optimisers write into their files, and that onnx does not define.

Most of them are an op of ONNX's own set with something added (an activation, a bias, a transposed operand, another
layout of the same elements): their results are sized as that op's. What a rule does not tell stays unknown, as are the
results of ops that have no rule here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from remat_cli.formats.onnx.attributes import integer_attribute, integers_attribute
from remat_cli.formats.onnx.dtypes import FLOAT32
from remat_cli.formats.onnx.structure import Node
from remat_cli.formats.onnx.values import TensorType, Value, ValueType, broadcast

if TYPE_CHECKING:
    import onnx

# Metadata of a model that `remat fuse` wrote.
FUSED_BY = "remat_fused_by"

_Form = Callable[["onnx.NodeProto"], "onnx.NodeProto"]
_ACTIVATION = ("activation", "activation_params", "activation_alpha", "activation_beta", "activation_gamma")


def full_type(node: onnx.NodeProto) -> str:
    """Return the name of a node's op with its domain in front, where that is not ONNX's own."""
    return ".".join(filter(None, (node.domain, node.op_type)))


def is_contributed(node: onnx.NodeProto) -> bool:
    """Whether a node's op is one of onnxruntime's own."""
    return node.domain.split(".")[:2] == ["com", "microsoft"]


def is_fused(model: onnx.ModelProto) -> bool:
    """Whether onnxruntime's optimiser has worked on a model: it says so, or has ops that only the optimiser makes."""
    said = any(entry.key == FUSED_BY for entry in model.metadata_props)
    return said or any(map(is_contributed, model.graph.node))


def standard_form(node: Node) -> Node | None:
    """Return a node of ONNX's own set whose result has the type of this node's first; None where there is none."""
    form = _FORMS.get(full_type(node.proto))
    return None if form is None or not node.outputs else Node(node.name, form(node.proto), node.captured)


def _as(op_type: str, *positions: int, without: tuple[str, ...] = ()) -> _Form:
    """Return the form of an op that differs from `op_type` by these attributes, and reads the inputs at `positions`."""

    def form(node: onnx.NodeProto) -> onnx.NodeProto:
        standard = _node(op_type, [node.input[at] for at in positions if at < len(node.input)], node)
        standard.attribute.extend(one for one in node.attribute if one.name not in without)
        return standard

    return form


def _like_first_input(node: onnx.NodeProto) -> onnx.NodeProto:
    return _node("Identity", node.input[:1], node)


def _node(op_type: str, inputs: Sequence[str], like: onnx.NodeProto, **attributes: Any) -> onnx.NodeProto:
    from onnx import helper

    return helper.make_node(op_type, inputs, like.output[:1], **attributes)


def _reordered_input(node: onnx.NodeProto) -> onnx.NodeProto:
    """To blocks of channels; the optimiser does so only where the channels fill their blocks."""
    if integer_attribute(node, "channels_last", 0):
        return _node("Transpose", node.input[:1], node, perm=[0, 3, 1, 2])
    return _like_first_input(node)


_FORMS: Mapping[str, _Form] = {
    "com.microsoft.FusedConv": _as("Conv", 0, 1, 2, without=_ACTIVATION),
    "com.microsoft.FusedGemm": _as("Gemm", 0, 1, 2, without=_ACTIVATION),
    "com.microsoft.QLinearAdd": _as("Add", 0, 3),
    "com.microsoft.QLinearMul": _as("Mul", 0, 3),
    "com.microsoft.nchwc.Conv": _as("Conv", 0, 1, 2, without=_ACTIVATION),
    "com.microsoft.nchwc.MaxPool": _as("MaxPool", 0),
    "com.microsoft.nchwc.AveragePool": _as("AveragePool", 0),
    "com.microsoft.nchwc.GlobalMaxPool": _as("GlobalMaxPool", 0),
    "com.microsoft.nchwc.GlobalAveragePool": _as("GlobalAveragePool", 0),
    "com.microsoft.nchwc.ReorderInput": _reordered_input,
    **dict.fromkeys(
        (
            # In files of operator sets that do not have them yet, onnxruntime writes these two as if they did.
            "LayerNormalization",
            "SimplifiedLayerNormalization",
            "com.microsoft.BiasGelu",
            "com.microsoft.FastGelu",
            "com.microsoft.Gelu",
            "com.microsoft.QLinearLeakyRelu",
            "com.microsoft.QLinearSigmoid",
            "com.microsoft.QuickGelu",
            "com.microsoft.RotaryEmbedding",
            "com.microsoft.SkipLayerNormalization",
            "com.microsoft.SkipSimplifiedLayerNormalization",
        ),
        _like_first_input,
    ),
}


# Position of a further output that has the type of the first one: what was added up before it was normalized.
SUMS: Mapping[str, int] = dict.fromkeys(
    ("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization"), 3
)


def result_type(node: onnx.NodeProto, inputs: Sequence[Value | None]) -> ValueType | None:
    """Return the type of the first result of a node that has no standard form; None where that is not known."""
    rule = _RESULTS.get(full_type(node))
    kind = inputs[0].type if inputs and inputs[0] is not None else None
    if rule is None or not isinstance(kind, TensorType) or kind.shape is None:
        return None
    weights = inputs[1].type.shape if len(inputs) > 1 and inputs[1] is not None else None
    shape = rule(node, kind.shape, weights)
    element = FLOAT32 if full_type(node) in _TO_FLOATS else kind.element
    return None if shape is None else TensorType(element, shape)


_Shape = tuple[int, ...]


def _reordered_output(node: onnx.NodeProto, shape: _Shape, _: _Shape | None) -> _Shape | None:
    """From blocks of channels, less the channels that only fill the last block."""
    if len(shape) != 4:
        return None
    images, channels, height, width = shape
    channels = integer_attribute(node, "channels", channels)
    if integer_attribute(node, "channels_last", 0):
        return images, height, width, channels
    return images, channels, height, width


def _matrix_product(node: onnx.NodeProto, left: _Shape, right: _Shape | None) -> _Shape | None:
    """The product of operands that may be transposed in their last two dimensions, the others broadcast."""
    batch_first = any(integer_attribute(node, f"transBatch{operand}", 0) for operand in "AB")
    if batch_first or right is None or min(len(left), len(right)) < 2:
        return None
    rows = left[-1 if integer_attribute(node, "transA", 0) else -2]
    columns = right[-2 if integer_attribute(node, "transB", 0) else -1]
    return *broadcast(left[:-2], right[:-2]), rows, columns


def _enlarged(node: onnx.NodeProto, shape: _Shape, _: _Shape | None) -> _Shape | None:
    scales = integers_attribute(node, "scales")
    return tuple(size * scale for size, scale in zip(shape, scales, strict=True)) if len(scales) == len(shape) else None


def _packed_product(node: onnx.NodeProto, shape: _Shape, _: _Shape | None) -> _Shape | None:
    columns = integer_attribute(node, "N", 0)
    return (*shape[:-1], columns) if columns else None


def _packed_attention(node: onnx.NodeProto, shape: _Shape, weights: _Shape | None) -> _Shape | None:
    """Batch and steps of the input, and as many columns as the values have; the weights pack queries, keys, values."""
    sizes = integers_attribute(node, "qkv_hidden_sizes")
    if sizes:
        return *shape[:-1], sizes[-1]
    return None if not weights else (*shape[:-1], weights[-1] // 3)


def _recurrent_states(_: onnx.NodeProto, shape: _Shape, weights: _Shape | None) -> _Shape | None:
    """The states of all steps by direction; weights are [directions, in, 4 gates of hidden]."""
    if len(shape) != 3 or weights is None or len(weights) != 3:
        return None
    steps, batch, _width = shape
    return steps, weights[0], batch, weights[2] // 4


_RESULTS: Mapping[str, Callable[[onnx.NodeProto, _Shape, _Shape | None], _Shape | None]] = {
    "com.microsoft.Attention": _packed_attention,
    "com.microsoft.DynamicQuantizeLSTM": _recurrent_states,
    "com.microsoft.DynamicQuantizeMatMul": _matrix_product,
    "com.microsoft.FusedMatMul": _matrix_product,
    "com.microsoft.MatMulIntegerToFloat": _matrix_product,
    "com.microsoft.MatMulNBits": _packed_product,
    "com.microsoft.QAttention": _packed_attention,
    "com.microsoft.nchwc.ReorderOutput": _reordered_output,
    "com.microsoft.nchwc.Upsample": _enlarged,
}
# Of these the result is in floats, though the first input is quantized.
_TO_FLOATS = frozenset(("com.microsoft.MatMulIntegerToFloat", "com.microsoft.QAttention"))
