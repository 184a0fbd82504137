"""The workspace of kernels: memory besides inputs and outputs.

The rules are for onnxruntime's CPU provider, version 1.31, and were measured (tests/unit/runtime compares each rule
with a measurement). Memory that a kernel allocates but never touches does not count: it takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from remat_cli.formats.onnx.attributes import attribute_of, integer_attribute, integers_attribute
from remat_cli.formats.onnx.contrib import full_type
from remat_cli.formats.onnx.einsum_memory import einsum_elements
from remat_cli.formats.onnx.values import TensorType, Values, broadcast

if TYPE_CHECKING:
    import onnx

_FLOAT_BYTES = 4
_INDEX_BYTES = 8
# Bytes for each result of a bilinear GridSample: four corners as 64-bit indices, four weights, and a mask.
_BILINEAR_BYTES = 4 * _INDEX_BYTES + 4 * _FLOAT_BYTES + 8
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# Bytes of a summand in 8-bit products.
_SUM_BYTES = 4
# Bytes of an entry in the table of interpolated rows that a cubic Resize keeps: key, value, and overhead of a hash
# table.
_ENTRY_BYTES = 40
# Bytes for each element of a kernel and each pixel of a DeformConv's result: four corners and four weights.
_SAMPLE_BYTES = 4 * _FLOAT_BYTES + 4 * 4
# Bytes in Unique for a distinct value, additionally for a row of values, and for a value read.
_VALUE_BYTES, _ROW_BYTES, _READ_BYTES = 102, 32, 24
# The accuracy level at which a MatMulNBits multiplies its operands as integers.
_INTEGER_PRODUCTS = 4


@dataclass(frozen=True)
class _Call:
    """A node with the types of its inputs and outputs.

    A type is None if absent, or no tensor of known shape.
    """

    node: onnx.NodeProto
    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType | None, ...]
    opset: int

    def shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of an input.

        Raises:
            ValueError: the shape is unknown.
        """
        return _shape(self.inputs[position] if position < len(self.inputs) else None)

    @property
    def bytes(self) -> int:
        """Size of the first output that is present."""
        return next((one.bytes for one in self.outputs if one is not None), 0)


def _shape(kind: TensorType | None) -> tuple[int, ...]:
    if kind is None or kind.shape is None:
        raise ValueError("a shape that the rule needs is not known")
    return kind.shape


def scratch_bytes(node: onnx.NodeProto, values: Values, opset: int) -> int:
    """Return the workspace of a node's kernel in onnxruntime.

    It is 0 without a rule.

    Args:
        node: the node.
        values: its inputs and outputs.
        opset: version of ONNX's own operator set.
    """
    rule = _RULES.get(full_type(node))
    if rule is None:
        return 0

    def tensor(name: str) -> TensorType | None:
        kind = values[name].type if name else None
        return kind if isinstance(kind, TensorType) else None

    try:
        return rule(_Call(node, tuple(map(tensor, node.input)), tuple(map(tensor, node.output)), opset))
    except (ValueError, IndexError):  # a shape is unknown or has unexpected dimensions: an estimate
        return 0


def _convolution(call: _Call) -> int:
    """All patches of an image, or little if filters are few.

    Few means no more filters than patches; then the kernel needs a small fixed amount.
    """
    return _FLOAT_BYTES * _patches(call) if _filters(call) > _pixels(call) else 0


def _integer_convolution(call: _Call) -> int:
    return _patches(call)


def _patches(call: _Call) -> int:
    """Return the elements of all patches of one image.

    The patches are those under a filter, for one group of channels. A pointwise convolution needs none: its patches are
    the pixels.
    """
    kernel = call.shape(1)[2:]
    strides, pads = (integers_attribute(call.node, name) for name in ("strides", "pads"))
    if prod(kernel) == 1 and set(strides) <= {1} and set(pads) <= {0}:
        return 0
    return _pixels(call) * prod(call.shape(1)[1:])


def _quantized_convolution(call: _Call) -> int:
    """Input and result with channels last, then the kernel's needs.

    Both are for one image. If channels fill their blocks, signed weights beside unsigned inputs need a pointer for each
    element of a patch. Otherwise the kernel keeps sums of 32 bits and all patches of one group, or pointers instead of
    patches for groups of one channel.
    """
    is_last = integer_attribute(call.node, "channels_last", 0)
    image, result = call.shape(0)[1:], _shape(call.outputs[0])[1:]
    pixels = prod(result[:-1] if is_last else result[1:])
    filters, channels, *kernel = call.shape(3)
    moved = 0 if is_last else prod(image) + prod(result)
    groups = integer_attribute(call.node, "group", 1)
    is_depthwise = groups > 1 and channels == 1 and filters == groups
    pointers = _INDEX_BYTES * pixels * prod(kernel)
    is_pointwise = prod(kernel) == 1 and set(integers_attribute(call.node, "strides")) <= {1}
    if _element(call, 0) == "uint8" and _element(call, 3) == "int8" and _fills_blocks(groups, call.shape(3)):
        return moved + (0 if is_pointwise else pointers)
    patches = 0 if is_pointwise else pointers if is_depthwise else pixels * channels * prod(kernel)
    return moved + _SUM_BYTES * pixels * filters + patches


def _element(call: _Call, position: int) -> str | None:
    kind = call.inputs[position]
    return None if kind is None else kind.element.name


def _fills_blocks(groups: int, weights: tuple[int, ...]) -> bool:
    """Whether channels of a single group, or groups of one channel and one filter, fill blocks."""
    filters, channels = weights[:2]
    if groups > 1:
        return channels == 1 and filters == groups and groups % 16 == 0
    return channels % 4 == 0 and filters % 8 == 0


def _deformed_patches(call: _Call) -> int:
    """All patches of an image, and sampling places of their elements.

    The places are counted for each group of offsets.
    """
    kernel = call.shape(1)[2:]
    samples = _SAMPLE_BYTES * max(1, integer_attribute(call.node, "offset_group", 1))
    return _pixels(call) * prod(kernel) * (_FLOAT_BYTES * call.shape(0)[1] + samples)


def _filters(call: _Call) -> int:
    return call.shape(1)[0] // max(1, integer_attribute(call.node, "group", 1))


def _pixels(call: _Call) -> int:
    """Return the number of pixels of one image of the result."""
    return prod(_shape(call.outputs[0])[2:])


def _transposed_convolution(call: _Call) -> int:
    """Contributions of one image's pixels to the result, before the sum.

    Weights are [in, out of a group, *kernel].
    """
    return _FLOAT_BYTES * prod(call.shape(1)[1:]) * prod(call.shape(0)[2:])


def _along_an_inner_axis(call: _Call) -> int:
    """Input and result with the axis moved to the end.

    Before operator set 13, the axis splits the shape in two.
    """
    rank = len(call.shape(0))
    moved = call.opset >= 13 and integer_attribute(call.node, "axis", -1) % max(1, rank) != rank - 1
    return 2 * call.bytes if moved else 0


def _condition(call: _Call) -> int:
    """Both choices, with elements not chosen set to 0.

    Each has the size of the condition and the choice broadcast.
    """
    condition = call.shape(0)
    choices = (kind for kind in call.inputs[1:3] if kind is not None)
    return sum(prod(broadcast(condition, _shape(kind))) * kind.element.bits // 8 for kind in choices)


def _mask(call: _Call) -> int:
    """One byte per element for a mask, even if it is not an output."""
    wanted = len(call.outputs) > 1 and call.outputs[1] is not None
    return 0 if wanted else prod(call.shape(0))


def _partial_results(call: _Call) -> int:
    """The partial sum of three or more operands."""
    return call.bytes if len(call.inputs) > 2 else 0


def _neighbours(call: _Call) -> int:
    """Squares of one image's pixels, and the scale of every element.

    The squares are padded along the channels.
    """
    images, channels, *size = call.shape(0)
    del images
    padded = channels + integer_attribute(call.node, "size", 1) - 1
    return _FLOAT_BYTES * padded * prod(size) + call.bytes


def _attention(call: _Call) -> int:
    """The scores of all pairs for each head, and maybe a float mask.

    The mask is freed before the output is allocated. A boolean mask, or causal attention, needs a float mask. Without a
    kernel for float16, products are computed in float32, one head at a time. 3-dimensional operands have their heads
    packed.
    """
    query, key = call.shape(0), call.shape(1)
    heads = query[1] if len(query) == 4 else max(1, integer_attribute(call.node, "q_num_heads", 1))
    size = query[-1] if len(query) == 4 else query[-1] // heads
    past = call.shape(4)[2] if len(call.inputs) > 4 and call.inputs[4] is not None else 0
    keys = key[-2] + past
    pairs = query[-2] * keys
    mask = call.inputs[3] if len(call.inputs) > 3 else None
    is_made = integer_attribute(call.node, "is_causal", 0) or (mask is not None and mask.element.name == "bool")
    elements = 0 if not is_made else pairs if mask is None else prod(_shape(mask))
    later = sum(kind.bytes for kind in (*call.outputs[:1], *call.outputs[2:3]) if kind is not None)
    element = _element_bytes(call)
    as_floats = _FLOAT_BYTES * (pairs + (query[-2] + keys) * size) if element < _FLOAT_BYTES else 0
    return element * query[0] * heads * pairs + max(0, element * elements - later) + as_floats


def _experts(call: _Call) -> int:
    """Inputs and results of one expert, if all get equally many rows.

    Several threads run more experts at once. An expert needs its rows, the results of both products and of the
    activation in between, and the rows added up. The sums of all rows come in addition, as of version 1.32.
    """
    rows, width = prod(call.shape(0)[:-1]), call.shape(0)[-1]
    experts, first, *_ = call.shape(2)
    hidden = call.shape(4)[-1]
    share = -(-rows * integer_attribute(call.node, "k", 1) // max(1, experts))
    return _FLOAT_BYTES * (share * (3 * width + first + hidden) + rows * width)


def _distinct(call: _Call) -> int:
    """Records of each distinct value and of each value read.

    A value may be a row along the axis; its record has its place in order. The size of a record depends a little on the
    value's frequency.
    """
    shape, result = call.shape(0), _shape(call.outputs[0])
    numbered = len(call.outputs) > 2 and call.outputs[2] is not None and integer_attribute(call.node, "sorted", 1)
    value = _VALUE_BYTES + (_INDEX_BYTES if numbered else 0)
    axis = attribute_of(call.node, "axis")
    if axis is None:
        return value * result[0] + _READ_BYTES * prod(shape)
    read, written = shape[axis.i], result[axis.i]
    row = _ROW_BYTES + prod(shape) // max(1, read) * _element_bytes(call)
    return (value + row) * written + _READ_BYTES * read


def _packed_attention(call: _Call) -> int:
    """Queries, keys, values, scores of all pairs, and the unpacked result.

    Scores are for each head, and the result is by head.
    """
    images, steps, _ = call.shape(0)
    scores = images * integer_attribute(call.node, "num_heads", 1) * steps * steps
    return _FLOAT_BYTES * (images * steps * call.shape(1)[-1] + scores) + call.bytes


def _separate_attention(call: _Call) -> int:
    """Queries, keys and values by head.

    With a mask or a bias on the scores, add the workspace of packed attention.
    """
    by_head = _by_head(call)
    if all(kind is None for kind in call.inputs[4:6]):
        return by_head
    query, key = call.shape(0), call.shape(1)
    scores = query[0] * integer_attribute(call.node, "num_heads", 1) * query[1] * key[-2]
    return by_head + _FLOAT_BYTES * scores + call.bytes


def _recurrence(call: _Call) -> int:
    """All steps' gates, and reversed input and result if backwards."""
    steps, batch, _ = call.shape(0)
    hidden = call.shape(2)[-1]
    gates = steps * batch * _GATES[call.node.op_type] * hidden * _FLOAT_BYTES
    if call.node.op_type == "RNN":
        return gates
    in_reverse = _FLOAT_BYTES * (prod(call.shape(0)) + steps * batch * hidden) if _runs_backwards(call) else 0
    return call.shape(1)[0] * gates + in_reverse


def _runs_backwards(call: _Call) -> bool:
    direction = attribute_of(call.node, "direction")
    return direction is not None and direction.s != b"forward"


def _quantized_recurrence(call: _Call) -> int:
    """As without quantization, plus the input in 8 bits.

    Weights are [directions, in, gates of hidden].
    """
    steps, batch, width = call.shape(0)
    directions, hidden, gates = call.shape(2)
    scratch = directions * steps * batch * (gates * _FLOAT_BYTES + width)
    in_reverse = _FLOAT_BYTES * steps * batch * (width + hidden) if _runs_backwards(call) else 0
    return scratch + in_reverse


def _einsum(call: _Call) -> int:
    equation = attribute_of(call.node, "equation")
    if equation is None:
        raise ValueError("it has no equation")
    shapes = [call.shape(position) for position in range(len(call.inputs))]
    return einsum_elements(equation.s.decode(), shapes) * _element_bytes(call)


def _resized(call: _Call) -> int:
    """An image resized in width (antialiasing), or rows of one channel.

    The latter are those of a cubic resize.
    """
    source, result = call.shape(0), _shape(call.outputs[0])
    mode = attribute_of(call.node, "mode")
    if mode is None or mode.s == b"nearest" or len(source) != 4:
        return 0
    if integer_attribute(call.node, "antialias", 0):
        return prod(source[1:3]) * result[3] * _element_bytes(call)
    return source[2] * result[3] * _ENTRY_BYTES if mode.s == b"cubic" else 0


def _element_bytes(call: _Call) -> int:
    kind = call.inputs[0]
    return _FLOAT_BYTES if kind is None else kind.element.bits // 8


def _with_bias(call: _Call) -> int:
    return call.bytes if len(call.inputs) > 1 and call.inputs[1] is not None else 0


def _sums_of_the_result(call: _Call) -> int:
    """Sums of 32 bits, which become the result of 8 bits."""
    return _SUM_BYTES * prod(_shape(call.outputs[0]))


def _as_floats(call: _Call) -> int:
    return _FLOAT_BYTES * prod(call.shape(0))


def _quantized_rows(call: _Call) -> int:
    """The input in 8 bits, with a scale and a sum for each block.

    This holds if integers are multiplied.
    """
    if integer_attribute(call.node, "accuracy_level", 0) != _INTEGER_PRODUCTS:
        return 0
    elements = prod(call.shape(0))
    return elements + 2 * _FLOAT_BYTES * elements // max(1, integer_attribute(call.node, "block_size", 1))


def _by_head(call: _Call) -> int:
    return sum(kind.bytes for kind in call.inputs[:3] if kind is not None)


def _grid(call: _Call) -> int:
    mode = attribute_of(call.node, "mode")
    is_linear = mode is None or mode.s in (b"linear", b"bilinear")
    result = _shape(call.outputs[0])
    return prod(result[2:]) * _BILINEAR_BYTES if is_linear and len(result) == 4 else 0


def _indices(position: int) -> Callable[[_Call], int]:
    return lambda call: _INDEX_BYTES * prod(call.shape(position))


def _as_large_as_the_result(factor: int) -> Callable[[_Call], int]:
    return lambda call: factor * call.bytes


_RULES: Mapping[str, Callable[[_Call], int]] = {
    "Attention": _attention,
    "Conv": _convolution,
    "ConvInteger": _integer_convolution,
    "ConvTranspose": _transposed_convolution,
    "DeformConv": _deformed_patches,
    "Dropout": _mask,
    "Einsum": _einsum,
    "GridSample": _grid,
    "LRN": _neighbours,
    "MeanVarianceNormalization": _as_large_as_the_result(2),
    "NonZero": _as_large_as_the_result(1),
    "OneHot": _indices(0),
    "QLinearConv": _quantized_convolution,
    "QLinearMatMul": _sums_of_the_result,
    "Resize": _resized,
    "ScatterElements": _indices(1),
    "Unique": _distinct,
    "Where": _condition,
    "com.microsoft.Attention": _packed_attention,
    "com.microsoft.BiasGelu": _as_large_as_the_result(1),
    "com.microsoft.DynamicQuantizeLSTM": _quantized_recurrence,
    "com.microsoft.DynamicQuantizeMatMul": lambda call: prod(call.shape(0)),  # the input in 8 bits
    "com.microsoft.FastGelu": _with_bias,
    "com.microsoft.FusedConv": _convolution,
    "com.microsoft.GridSample": _grid,
    "com.microsoft.GroupQueryAttention": _by_head,
    "com.microsoft.MatMulNBits": _quantized_rows,
    "com.microsoft.MoE": _experts,
    "com.microsoft.MultiHeadAttention": _separate_attention,
    "com.microsoft.QAttention": _packed_attention,
    "com.microsoft.QGemm": _sums_of_the_result,
    "com.microsoft.QLinearAveragePool": _as_floats,
    "com.microsoft.QLinearConv": _quantized_convolution,
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), _along_an_inner_axis),
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), _partial_results),
    **dict.fromkeys(_GATES, _recurrence),
}

# Ops whose kernels may take memory that no rule tells: how much depends on values, or was not looked at.
# fmt: off
_OWN_WITHOUT_RULE = (
    "AttnLSTM", "BranchwiseRMSNorm", "CausalConvWithState", "ConvTransposeWithDynamicPads",
    "DecoderMaskedMultiHeadAttention", "DequantizeLinear", "DynamicTimeWarping", "EmbedLayerNormalization",
    "EngramGate", "GatedAdd", "GatedRMSNorm", "GatherBlockQuantized", "HyperConnectionPostMix",
    "HyperConnectionPreMix", "LinearAttention", "LinearAttentionGate", "MRotaryEmbedding", "MatMulBnb4",
    "MatMulFpQ4", "MatMulInteger16", "NGramHashMapping", "NGramRepeatBlock", "QEmbedLayerNormalization",
    "QLinearConcat", "QLinearWhere", "QMoE", "QuantizeLinear", "SampleOp", "ScaledSiLU", "SparseAttention",
    "SparseToDenseMatMul", "Unique", "VarlenNGramHashMapping", "WordConvEmbedding",
)
# fmt: on
WITHOUT_RULE = frozenset(f"com.microsoft.{name}" for name in _OWN_WITHOUT_RULE)
