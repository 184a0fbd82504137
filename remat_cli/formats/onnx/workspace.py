"""The memory that a kernel takes for itself while it runs, beside its inputs and outputs.

Known for onnxruntime's CPU provider, version 1.31, for which it was measured (tests/unit/runtime holds each rule
against a measurement). What a kernel allocates and never touches is not counted: it takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from remat_cli.formats.onnx.attributes import attribute_of, integer_attribute, integers_attribute
from remat_cli.formats.onnx.values import TensorType, Values, broadcast
from remat_cli.formats.reader import Aliasing

if TYPE_CHECKING:
    import onnx

_FLOAT_BYTES = 4
_INDEX_BYTES = 8
# For each result of a bilinear GridSample: four corners as 64-bit indices, four weights, and a mask.
_BILINEAR_BYTES = 4 * _INDEX_BYTES + 4 * _FLOAT_BYTES + 8
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class _Call:
    """A node with the types of what it reads and makes; None where absent or no tensor of known shape."""

    node: onnx.NodeProto
    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType | None, ...]
    opset: int

    def shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of an input.

        Raises:
            ValueError: there is none.
        """
        return _shape(self.inputs[position] if position < len(self.inputs) else None)

    @property
    def bytes(self) -> int:
        """Size of the first output that is there."""
        return next((one.bytes for one in self.outputs if one is not None), 0)


def _shape(kind: TensorType | None) -> tuple[int, ...]:
    if kind is None or kind.shape is None:
        raise ValueError("a shape that the rule needs is not known")
    return kind.shape


def scratch_bytes(node: onnx.NodeProto, values: Values, opset: int, profile: Aliasing) -> int:
    """Return the memory that a node's kernel takes for itself; 0 where no rule tells.

    Args:
        node: the node.
        values: what is known of its inputs and outputs.
        opset: version of ONNX's own operator set.
        profile: the runtime; without onnxruntime's nothing is counted.
    """
    rule = _RULES.get(node.op_type if node.domain == "" else f"{node.domain}.{node.op_type}")
    if profile is not Aliasing.ORT_CPU or rule is None:
        return 0

    def tensor(name: str) -> TensorType | None:
        kind = values[name].type if name else None
        return kind if isinstance(kind, TensorType) else None

    try:
        return rule(_Call(node, tuple(map(tensor, node.input)), tuple(map(tensor, node.output)), opset))
    except (ValueError, IndexError):  # a shape is not known, or has not the dimensions that it should: an estimate
        return 0


def _convolution(call: _Call) -> int:
    """All patches of an image, unless there are at least as many of them as filters: then a fixed small number."""
    return _FLOAT_BYTES * _patches(call) if _filters(call) > _pixels(call) else 0


def _integer_convolution(call: _Call) -> int:
    return _patches(call)


def _patches(call: _Call) -> int:
    """Return the elements of all patches of one image that a filter is laid on, for one group of channels.

    A pointwise convolution needs none: its patches are the pixels.
    """
    kernel = call.shape(1)[2:]
    strides, pads = (integers_attribute(call.node, name) for name in ("strides", "pads"))
    if prod(kernel) == 1 and set(strides) <= {1} and set(pads) <= {0}:
        return 0
    return _pixels(call) * prod(call.shape(1)[1:])


def _filters(call: _Call) -> int:
    return call.shape(1)[0] // max(1, integer_attribute(call.node, "group", 1))


def _pixels(call: _Call) -> int:
    """Return the number of pixels of one image of the result."""
    return prod(_shape(call.outputs[0])[2:])


def _transposed_convolution(call: _Call) -> int:
    """What one image's pixels add to the result, before it is summed; weights are [in, out of a group, *kernel]."""
    return _FLOAT_BYTES * prod(call.shape(1)[1:]) * prod(call.shape(0)[2:])


def _along_an_inner_axis(call: _Call) -> int:
    """Input and result with the axis moved to the end; before operator set 13 the axis splits the shape in two."""
    rank = len(call.shape(0))
    moved = call.opset >= 13 and integer_attribute(call.node, "axis", -1) % max(1, rank) != rank - 1
    return 2 * call.bytes if moved else 0


def _condition(call: _Call) -> int:
    """Both choices with what is not chosen set to 0, each as large as the condition and it broadcast."""
    condition = call.shape(0)
    choices = (kind for kind in call.inputs[1:3] if kind is not None)
    return sum(prod(broadcast(condition, _shape(kind))) * kind.element.bits // 8 for kind in choices)


def _mask(call: _Call) -> int:
    """One byte an element, made whether it is wanted or not."""
    wanted = len(call.outputs) > 1 and call.outputs[1] is not None
    return 0 if wanted else prod(call.shape(0))


def _partial_results(call: _Call) -> int:
    """The sum so far of three operands and more."""
    return call.bytes if len(call.inputs) > 2 else 0


def _neighbours(call: _Call) -> int:
    """The squares of one image's pixels, padded along the channels, and the scale of every element."""
    images, channels, *size = call.shape(0)
    del images
    padded = channels + integer_attribute(call.node, "size", 1) - 1
    return _FLOAT_BYTES * padded * prod(size) + call.bytes


def _scores(call: _Call) -> int:
    """The scores of all pairs of queries and keys, for each head; 3-dimensional operands have their heads packed."""
    query, key = call.shape(0), call.shape(1)
    heads = query[1] if len(query) == 4 else integer_attribute(call.node, "q_num_heads", 1)
    past = call.shape(4)[2] if len(call.inputs) > 4 and call.inputs[4] is not None else 0
    return _FLOAT_BYTES * query[0] * heads * query[-2] * (key[-2] + past)


def _packed_attention(call: _Call) -> int:
    """Queries, keys and values, the scores of all pairs for each head, and the result before its heads are packed."""
    images, steps, _ = call.shape(0)
    scores = images * integer_attribute(call.node, "num_heads", 1) * steps * steps
    return _FLOAT_BYTES * (images * steps * call.shape(1)[-1] + scores) + call.bytes


def _separate_attention(call: _Call) -> int:
    """Queries, keys and values by head; under a mask or with a bias on the scores, as packed ones beside."""
    by_head = sum(kind.bytes for kind in call.inputs[:3] if kind is not None)
    if all(kind is None for kind in call.inputs[4:6]):
        return by_head
    query, key = call.shape(0), call.shape(1)
    scores = query[0] * integer_attribute(call.node, "num_heads", 1) * query[1] * key[-2]
    return by_head + _FLOAT_BYTES * scores + call.bytes


def _recurrence(call: _Call) -> int:
    """All steps' gates before the recurrence, and input and result in reverse where it runs backwards."""
    steps, batch, _ = call.shape(0)
    hidden = call.shape(2)[-1]
    gates = steps * batch * _GATES[call.node.op_type] * hidden * _FLOAT_BYTES
    if call.node.op_type == "RNN":
        return gates
    direction = attribute_of(call.node, "direction")
    is_reversed = direction is not None and direction.s != b"forward"
    in_reverse = _FLOAT_BYTES * (prod(call.shape(0)) + steps * batch * hidden) if is_reversed else 0
    return call.shape(1)[0] * gates + in_reverse


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
    "Attention": _scores,
    "Conv": _convolution,
    "ConvInteger": _integer_convolution,
    "ConvTranspose": _transposed_convolution,
    "Dropout": _mask,
    "GridSample": _grid,
    "LRN": _neighbours,
    "MeanVarianceNormalization": _as_large_as_the_result(2),
    "NonZero": _as_large_as_the_result(1),
    "OneHot": _indices(0),
    "QLinearMatMul": _as_large_as_the_result(4),
    "ScatterElements": _indices(1),
    "Where": _condition,
    "com.microsoft.Attention": _packed_attention,
    "com.microsoft.BiasGelu": _as_large_as_the_result(1),
    "com.microsoft.FusedConv": _convolution,
    "com.microsoft.MultiHeadAttention": _separate_attention,
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), _along_an_inner_axis),
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), _partial_results),
    **dict.fromkeys(_GATES, _recurrence),
}
