"""Types of the results of onnxruntime's own ops.

Optimisers, transformer tools and quantizers write these ops. Rules follow the shape inference of version 1.32; a test
compares rules with that for all kernels of the CPU provider.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from remat_cli.formats.onnx.attributes import integer_attribute, integers_attribute
from remat_cli.formats.onnx.contrib import full_type
from remat_cli.formats.onnx.dtypes import BOOL, ELEMENT_TYPES, FLOAT32, ElementType
from remat_cli.formats.onnx.values import TensorType, Value, broadcast, type_proto

if TYPE_CHECKING:
    import onnx

_INT32, _UINT8 = ELEMENT_TYPES[6], ELEMENT_TYPES[2]
_Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Call:
    """A node with the types of its inputs, and their data if known."""

    node: onnx.NodeProto
    inputs: tuple[Value | None, ...]

    def has(self, at: int) -> bool:
        return at < len(self.inputs) and self.inputs[at] is not None

    def tensor(self, at: int) -> TensorType:
        """Return the type of an input.

        Raises:
            LookupError: the input is absent, or no tensor of known shape.
        """
        value = self.inputs[at] if self.has(at) else None
        if value is None or not isinstance(value.type, TensorType) or value.type.shape is None:
            raise LookupError(f"input {at}")
        return value.type

    def shape(self, at: int, rank: int | None = None) -> _Shape:
        """Return the shape of an input.

        Raises:
            LookupError: as for `tensor`, or the rank differs.
        """
        shape = self.tensor(at).shape
        if shape is None or (rank is not None and len(shape) != rank):
            raise LookupError(f"shape of input {at}")
        return shape

    def element(self, at: int) -> ElementType:
        return self.tensor(at).element

    def number(self, name: str, default: int = 0) -> int:
        return integer_attribute(self.node, name, default)

    def required(self, name: str) -> int:
        """Return an attribute that the op requires.

        Raises:
            LookupError: the attribute is absent, or not above 0.
        """
        number = self.number(name)
        if number <= 0:
            raise LookupError(name)
        return number

    def integer(self, at: int) -> int:
        """Return the number in an input.

        Raises:
            LookupError: the number is unknown before the model runs.
        """
        value = self.inputs[at] if self.has(at) else None
        if value is None or value.data is None or value.data.size != 1 or value.overridable:
            raise LookupError(f"value of input {at}")
        return int(value.data.reshape(()))


_Types = Sequence[TensorType | None]
_Rule = Callable[[_Call], _Types]


def result_types(node: onnx.NodeProto, inputs: Sequence[Value | None]) -> _Types | None:
    """Return the types of a node's outputs by position, as far as known.

    None if the op has no rule.
    """
    rule = _RULES.get(full_type(node))
    if rule is None:
        return None
    try:
        return rule(_Call(node, tuple(inputs)))
    except (ArithmeticError, LookupError, ValueError):  # an input does not have the form that the rule needs
        return ()


def _like(*positions: int) -> _Rule:
    """Return a rule: outputs have the types of inputs at these positions.

    -1 means an unknown output.
    """
    return lambda call: [None if at < 0 else call.tensor(at) for at in positions]


def _broadcast(*positions: int, element: int) -> _Rule:
    def rule(call: _Call) -> _Types:
        shape: _Shape = ()
        for at in positions:
            shape = broadcast(shape, call.shape(at))
        return [TensorType(call.element(element), shape)]

    return rule


# Normalizations


def _normalized(call: _Call, axis: int) -> TensorType:
    """Return the type of statistics, one for all dimensions from `axis`."""
    shape = call.shape(0)
    axis %= max(1, len(shape))
    return TensorType(FLOAT32, (*shape[:axis], *[1] * (len(shape) - axis)))


def _layer_norm(call: _Call) -> _Types:
    statistics = _normalized(call, call.number("axis", -1))
    # The simplified form subtracts no mean, and returns only the inverse deviation.
    return [replace(call.tensor(0), element=call.element(1)), statistics, statistics]


def _skip_layer_norm(call: _Call) -> _Types:
    statistics = _normalized(call, -1)
    return [call.tensor(0), statistics, statistics, call.tensor(0)]


def _embeddings(words: int, element: int) -> _Rule:
    """Word embeddings of all ids, lengths, and unnormalized embeddings.

    The second result is the number of counting ids of each sequence.
    """

    def rule(call: _Call) -> _Types:
        batch, steps = call.shape(0, rank=2)
        embedded = TensorType(call.element(element), (batch, steps, call.shape(words, rank=2)[1]))
        return [embedded, TensorType(_INT32, (batch,)), embedded]

    return rule


# Matrix products


def _product_shape(call: _Call, left: _Shape, right: _Shape) -> _Shape:
    """The shape of a matrix product.

    Operands may be transposed in their last two dimensions; the others are broadcast.
    """
    if min(len(left), len(right)) < 2:
        raise ValueError("vectors")
    left, right = (
        (*shape[1:-1], shape[0], shape[-1]) if call.number(f"transBatch{operand}") else shape
        for operand, shape in (("A", left), ("B", right))
    )
    rows = left[-1 if call.number("transA") else -2]
    columns = right[-2 if call.number("transB") else -1]
    return *broadcast(left[:-2], right[:-2]), rows, columns


def _matrix_product(right: int = 1, element: int = 0) -> _Rule:
    def rule(call: _Call) -> _Types:
        shape = _product_shape(call, call.shape(0), call.shape(right))
        return [TensorType(call.element(element), shape)]

    return rule


def _quantized_gemm(call: _Call) -> _Types:
    """A matrix product, in 8 bits if the result has a scale, else in floats."""
    shape = _product_shape(call, call.shape(0, rank=2), call.shape(3, rank=2))
    return [TensorType(call.element(8) if call.has(8) else call.element(1), shape)]


def _integer_product(call: _Call) -> _Types:
    return [TensorType(_INT32, _product_shape(call, call.shape(0), call.shape(1)))]


def _packed_product(call: _Call) -> _Types:
    """A product with weights in blocks, with N columns."""
    return [replace(call.tensor(0), shape=(*call.shape(0)[:-1], call.required("N")))]


# Attention


def _heads(call: _Call, values: int, lengths: tuple[int, int]) -> TensorType:
    """Return the type of a cache: [batch, heads, steps, size of a head]."""
    batch, steps = lengths
    heads = call.required("num_heads")
    return TensorType(call.element(0), (batch, heads, steps, values // heads))


def _attention(past: int, element: int) -> _Rule:
    """Attention of packed queries, keys and values.

    A cache holds keys and values in one tensor.
    """

    def rule(call: _Call) -> _Types:
        batch, steps, width = call.shape(0, rank=3)
        del width
        sizes = integers_attribute(call.node, "qkv_hidden_sizes")
        values = sizes[-1] if sizes else call.shape(1)[-1] // 3
        result = TensorType(call.element(element), (batch, steps, values))
        if call.has(past):
            cache = call.shape(past, rank=5)
            total = cache[3] if call.number("past_present_share_buffer") else cache[3] + steps
        else:
            total = steps
        heads = call.required("num_heads")
        return [result, TensorType(result.element, (2, batch, heads, total, values // heads))]

    return rule


def _multi_head_attention(past: int) -> _Rule:
    def rule(call: _Call) -> _Types:
        batch, steps = call.shape(0)[:2]
        keys, columns, values = _operands(call)
        total = keys
        if call.has(past):
            cached = call.shape(past, rank=4)[2]
            # A cache of fixed size, or a growing one.
            total = cached if call.number("past_present_share_buffer") or call.has(past + 2) else cached + keys
        element = call.element(0)
        return [
            TensorType(element, (batch, steps, values)),
            _heads(call, columns, (batch, total)),
            _heads(call, values, (batch, total)),
            TensorType(element, (batch, call.required("num_heads"), steps, total)),
        ]

    return rule


def _operands(call: _Call) -> tuple[int, int, int]:
    """Return the number of keys, and the columns of keys and of values.

    The columns are those of all heads. Queries are separate, or packed with keys and values; keys and values are
    separate, packed together, or by head.
    """
    query = call.shape(0)
    if len(query) == 5:  # [batch, steps, heads, 3, size]
        return query[1], query[2] * query[4], query[2] * query[4]
    if call.has(1) and len(call.shape(1)) == 5:  # [batch, steps, heads, 2, size]
        key = call.shape(1)
        return key[1], query[2], key[2] * key[4]
    if call.has(2) and len(call.shape(2)) == 4:  # [batch, heads, steps, size]
        value = call.shape(2)
        return value[2], query[2], value[1] * value[3]
    return call.shape(1, rank=3)[1], query[2], call.shape(2, rank=3)[2]


def _group_query_attention(call: _Call) -> _Types:
    """Attention with caches of all steps, or of their buffers if longer.

    The number of steps is an input.
    """
    batch, steps, width = call.shape(0, rank=3)
    heads, groups = call.required("num_heads"), call.required("kv_num_heads")
    size = width // heads if call.has(2) else width // (heads + 2 * groups)
    result = TensorType(call.element(0), (batch, steps, size * heads))
    try:
        total = call.integer(6)
    except LookupError:
        return [result]
    cached = max(total, call.shape(3, rank=4)[2]) if call.has(3) else total
    cache = TensorType(call.element(3) if call.has(3) else call.element(0), (batch, groups, cached, size))
    return [result, cache, cache]


def _packed_attention(call: _Call) -> _Types:
    sizes = integers_attribute(call.node, "qkv_hidden_sizes")
    columns = sizes[-1] if sizes else call.shape(1)[-1] // 3
    return [replace(call.tensor(0), shape=(*call.shape(0)[:-1], columns))]


def _packed_multi_head_attention(call: _Call) -> _Types:
    query = call.shape(0)
    columns = query[1] * query[3] if len(query) == 4 else call.shape(2, rank=2)[1]
    return [replace(call.tensor(0), shape=(query[0], columns))]


def _gated_position_bias(call: _Call) -> _Types:
    batch, steps, _ = call.shape(0, rank=3)
    return [replace(call.tensor(0), shape=(batch, call.required("num_heads"), steps, steps))]


def _position_bias(call: _Call) -> _Types:
    """A row of biases for each head.

    The lengths of queries and keys are inputs.
    """
    heads = call.shape(0, rank=2)[1]
    return [replace(call.tensor(0), shape=(1, heads, call.integer(1), call.integer(2)))]


# Images


def _with_channels_second(shape: _Shape) -> _Shape:
    return shape[0], shape[-1], *shape[1:-1]


def _with_channels_last(shape: _Shape) -> _Shape:
    return shape[0], *shape[2:], shape[1]


def _window(op_type: str, weights: int | None = None, element: int = 0, *, last: bool | None = None) -> _Rule:
    """Return the rule of a convolution or pooling, sized by onnx.

    `weights` None means a pooling. An attribute says that channels come last.
    """

    def rule(call: _Call) -> _Types:
        from onnx import defs, helper, shape_inference

        is_last = bool(call.number("channels_last")) if last is None else last
        image = _with_channels_second(call.shape(0)) if is_last else call.shape(0)
        kernels = () if weights is None else (call.shape(weights),)
        schema = defs.get_schema(op_type)
        names = [f"x{at}" for at in range(1 + len(kernels))]
        standard = helper.make_node(op_type, names, ["y"])
        standard.attribute.extend(one for one in call.node.attribute if one.name in schema.attributes)
        types = {
            name: type_proto(TensorType(FLOAT32, shape)) for name, shape in zip(names, (image, *kernels), strict=True)
        }
        try:
            inferred = shape_inference.infer_node_outputs(schema, standard, types)
        except (shape_inference.InferenceError, RuntimeError) as error:
            raise ValueError("it does not fit its inputs") from error
        dims = inferred["y"].tensor_type.shape.dim
        if not all(dim.HasField("dim_value") for dim in dims) or len(dims) != len(image):
            raise LookupError("shape")
        shape = tuple(dim.dim_value for dim in dims)
        return [TensorType(call.element(element), _with_channels_last(shape) if is_last else shape)]

    return rule


def _reordered_output(call: _Call) -> _Types:
    """A result reordered from blocks, without filling channels."""
    images, channels, height, width = call.shape(0, rank=4)
    channels = call.number("channels", channels)
    by_last = (images, height, width, channels)
    shape = by_last if call.number("channels_last") else (images, channels, height, width)
    return [replace(call.tensor(0), shape=shape)]


def _enlarged(call: _Call) -> _Types:
    scales = integers_attribute(call.node, "scales")
    shape = tuple(size * scale for size, scale in zip(call.shape(0), scales, strict=True))
    return [replace(call.tensor(0), shape=shape)]


def _split_gelu(call: _Call) -> _Types:
    """A result whose last dimension is halved: one half gates the other."""
    *rest, last = call.shape(0)
    return [replace(call.tensor(0), shape=(*rest, last // 2))]


# Quantized ops


def _concatenated(call: _Call) -> _Types:
    """A concatenation of quantized parts.

    Inputs are scale and zero point of the result, then for each part: the part, its scale and its zero point.
    """
    shapes = [call.shape(at) for at in range(2, len(call.inputs), 3)]
    axis = call.number("axis") % len(shapes[0])
    whole = sum(shape[axis] for shape in shapes)
    return [TensorType(call.element(1), (*shapes[0][:axis], whole, *shapes[0][axis + 1 :]))]


def _averaged(call: _Call) -> _Types:
    shape = call.shape(0)
    axes = integers_attribute(call.node, "axes") or tuple(range(len(shape)))
    reduced = {axis % len(shape) for axis in axes}
    if call.number("keepdims", 1):
        result = tuple(1 if axis in reduced else size for axis, size in enumerate(shape))
    else:
        result = tuple(size for axis, size in enumerate(shape) if axis not in reduced)
    return [replace(call.tensor(0), shape=result)]


def _averaged_images(call: _Call) -> _Types:
    shape = call.shape(0)
    ones = (1,) * (len(shape) - 2)
    result = (shape[0], *ones, shape[-1]) if call.number("channels_last") else (*shape[:2], *ones)
    return [replace(call.tensor(0), shape=result)]


def _quantized(call: _Call) -> _Types:
    return [replace(call.tensor(0), element=call.element(2) if call.has(2) else _UINT8)]


def _dequantized(call: _Call) -> _Types:
    return [replace(call.tensor(0), element=call.element(1))]


def _gathered_blocks(call: _Call) -> _Types:
    """Rows of a table in blocks, as floats.

    A byte may hold several elements.
    """
    table, axis = call.tensor(0), call.number("gather_axis")
    shape = list(call.shape(0))
    if table.element.name == "uint8":
        packed = call.number("quantize_axis", 1) % len(shape)
        shape[packed] *= 8 // call.number("bits", 4)
    axis %= len(shape)
    return [TensorType(call.element(2), (*shape[:axis], *call.shape(1), *shape[axis + 1 :]))]


def _recurrent_states(call: _Call) -> _Types:
    """The states of all steps by direction, and the last states.

    Weights are [directions, in, 4 gates of hidden].
    """
    steps, batch, _ = call.shape(0, rank=3)
    directions, _, gates = call.shape(1, rank=3)
    last = replace(call.tensor(0), shape=(directions, batch, gates // 4))
    return [replace(call.tensor(0), shape=(steps, directions, batch, gates // 4)), last, last]


# The rest


def _with_mask(call: _Call) -> _Types:
    return [call.tensor(0), replace(call.tensor(0), element=BOOL)]


def _padded(call: _Call) -> _Types:
    """A result padded again.

    The places of the tokens give their number with padding.
    """
    return [replace(call.tensor(0), shape=(*call.shape(1, rank=2), call.shape(0, rank=2)[1]))]


def _own(names: str, rule: _Rule) -> dict[str, _Rule]:
    return {f"com.microsoft.{name}": rule for name in names.split()}


_RULES: Mapping[str, _Rule] = {
    # onnxruntime writes these two even into files whose operator sets lack them.
    "LayerNormalization": _layer_norm,
    "SimplifiedLayerNormalization": _layer_norm,
    "com.microsoft.nchwc.ReorderOutput": _reordered_output,
    "com.microsoft.nchwc.Upsample": _enlarged,
    **_own(
        "BiasAdd BiasGelu BiasSoftmax DecoderAttention FastGelu Gelu GroupNorm Inverse LongformerAttention MoE "
        "QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QMoE QuickGelu RotaryEmbedding Trilu",
        _like(0),
    ),
    **_own("SkipGroupNorm", _like(0, 0)),
    **_own("SkipLayerNormalization SkipSimplifiedLayerNormalization", _skip_layer_norm),
    **_own("EmbedLayerNormalization", _embeddings(words=2, element=2)),
    **_own("QEmbedLayerNormalization", _embeddings(words=2, element=8)),
    **_own("BiasDropout BitmaskDropout BitmaskBiasDropout", _with_mask),
    **_own("RestorePadding", _padded),
    **_own("BiasSplitGelu", _split_gelu),
    **_own("FusedMatMul FusedMatMulActivation TransposeMatMul GemmFastGelu DynamicQuantizeMatMul", _matrix_product()),
    **_own("MatMulIntegerToFloat", _matrix_product(element=2)),
    **_own("MatMulInteger16", _integer_product),
    **_own("MatMulBnb4 MatMulFpQ4 MatMulNBits", _packed_product),
    **_own("QGemm", _quantized_gemm),
    **_own("Attention", _attention(past=4, element=0)),
    **_own("QAttention", _attention(past=8, element=3)),
    **_own("MultiHeadAttention", _multi_head_attention(past=6)),
    **_own("DecoderMaskedMultiHeadAttention", _multi_head_attention(past=5)),
    **_own("GroupQueryAttention", _group_query_attention),
    **_own("PackedAttention", _packed_attention),
    **_own("PackedMultiHeadAttention", _packed_multi_head_attention),
    **_own("GatedRelativePositionBias", _gated_position_bias),
    **_own("RelativePositionBias", _position_bias),
    **_own("QLinearConv", _window("Conv", weights=3, element=7)),
    **_own("NhwcConv NhwcFusedConv", _window("Conv", weights=1, last=True)),
    **_own("NhwcMaxPool", _window("MaxPool", last=True)),
    **_own("QLinearAveragePool", _window("AveragePool")),
    **_own("QLinearGlobalAveragePool", _averaged_images),
    **_own("QLinearReduceMean", _averaged),
    **_own("QLinearAdd QLinearMul", _broadcast(0, 3, element=0)),
    **_own("QLinearConcat", _concatenated),
    **_own("QLinearWhere", _broadcast(0, 1, 4, element=1)),
    **_own("QuantizeLinear", _quantized),
    **_own("DequantizeLinear", _dequantized),
    **_own("GatherBlockQuantized", _gathered_blocks),
    **_own("DynamicQuantizeLSTM", _recurrent_states),
}
