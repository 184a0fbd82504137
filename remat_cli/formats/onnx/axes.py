"""The rows that an ONNX op can work on: entries of a dimension that do not see each other, or that are summed.

An op without a rule works on no rows: every result depends on all that it reads, or nobody has written its rule yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from remat_cli.formats.onnx.attributes import attribute_of, integer_attribute, integers_attribute
from remat_cli.formats.onnx.contrib import full_type
from remat_cli.formats.onnx.values import Values
from remat_cli.splitting import SUM, Axis, Part

if TYPE_CHECKING:
    import onnx

Shape = tuple[int, ...]
# From this operator set on, Softmax and its kin work along one axis, and not along all from it on.
_ONE_AXIS = 13


def axes_of(node: onnx.NodeProto, values: Values, opset: int) -> tuple[Axis, ...]:
    """Return the rows that a node can work on; none where it has no rule.

    Args:
        node: the node.
        values: all values, with their shapes.
        opset: version of ONNX's own operator set.
    """
    rule = _RULES.get(full_type(node))
    operands = _Operands(node, values, opset)
    if rule is None or operands.has_unknown or node.output[0] == "":
        return ()
    return tuple(axis for axis in rule(operands) if axis.rows > 1)


@dataclass(frozen=True)
class _Operands:
    """A node with the shapes of what it reads and makes."""

    node: onnx.NodeProto
    values: Values
    opset: int

    @property
    def has_unknown(self) -> bool:
        named = (name for name in (*self.node.input, *self.node.output) if name)
        return any(self.values[name].type.shape is None for name in named)

    def shape(self, name: str) -> Shape:
        shape = self.values[name].type.shape
        assert shape is not None
        return shape

    @property
    def first(self) -> str:
        return str(self.node.input[0])

    @property
    def result(self) -> str:
        return str(self.node.output[0])

    @property
    def results(self) -> list[str]:
        return [name for name in self.node.output if name]

    def given(self, place: int) -> str:
        """Return the name of an input; empty where it is absent."""
        return self.node.input[place] if place < len(self.node.input) else ""

    def numbers(self, place: int) -> list[int] | None:
        """Return the elements of an input of whole numbers; None where they are not known."""
        name = self.given(place)
        data = self.values[name].data if name else None
        return None if data is None else [int(value) for value in data.reshape(-1)]

    def integers(self, name: str, place: int) -> list[int] | None:
        """Return whole numbers that are an attribute or, in later operator sets, an input; None if they are unknown."""
        if attribute_of(self.node, name) is not None:
            return list(integers_attribute(self.node, name))
        return self.numbers(place) if self.given(place) else []

    def axis(self, default: int) -> int:
        axis = integer_attribute(self.node, "axis", default)
        return axis + len(self.shape(self.first)) if axis < 0 else axis


def _same(operands: _Operands, dims: Sequence[int]) -> Iterator[Axis]:
    """Yield rows along dimensions that the first input and all results have alike."""
    shape = operands.shape(operands.first)
    for dim in dims:
        makes = {name: Part(dim) for name in operands.results}
        if all(dim < len(operands.shape(name)) and operands.shape(name)[dim] == shape[dim] for name in makes):
            yield Axis(shape[dim], {operands.first: Part(dim)}, makes)


def _elementwise(operands: _Operands) -> Iterator[Axis]:
    """Yield rows along each dimension of the result; operands are broadcast."""
    yield from _broadcast(operands, operands.shape(operands.result), [name for name in operands.node.input if name])


def _broadcast(operands: _Operands, shape: Shape, names: Sequence[str], trailing: int = 0) -> Iterator[Axis]:
    """Yield rows along dimensions of a result, to which operands are broadcast, but for some trailing dimensions."""
    rank = len(shape)
    for dim in range(rank - trailing):
        reads = {}
        for name in dict.fromkeys(names):
            of = operands.shape(name)
            own = dim - rank + len(of)
            if own >= 0 and of[own] == shape[dim]:
                reads[name] = Part(own)
        if reads:
            yield Axis(shape[dim], reads, {name: Part(dim) for name in operands.results})


def _batch(operands: _Operands) -> Iterator[Axis]:
    """Yield the first dimension."""
    yield from _same(operands, [0])


def _fused_convolution(operands: _Operands) -> Iterator[Axis]:
    """Yield the batch of a convolution, to whose result another tensor may be added."""
    added = operands.given(3)
    for axis in _same(operands, [0]):
        yield Axis(axis.rows, {**axis.reads, **({added: Part(0)} if added else {})}, axis.makes)


def _pooled(operands: _Operands) -> Iterator[Axis]:
    """Yield batch and channels; indices of maxima count through the whole tensor, so they forbid both."""
    if len(operands.results) == 1:
        yield from _same(operands, [0, 1])


def _normalised_by_channel(operands: _Operands) -> Iterator[Axis]:
    """Yield all dimensions but that of the channels; with statistics among the results, none."""
    if len(operands.results) == 1 and not integer_attribute(operands.node, "training_mode", 0):
        yield from _same(operands, [dim for dim in range(len(operands.shape(operands.first))) if dim != 1])


def _before_axis(operands: _Operands) -> Iterator[Axis]:
    """Yield the dimensions before the axis from which on an op normalises."""
    yield from _same(operands, range(operands.axis(-1)))


def _before_last(operands: _Operands) -> Iterator[Axis]:
    """Yield all dimensions but the last, with a skip connection of the same shape."""
    shape = operands.shape(operands.first)
    others = [name for name in operands.node.input[:2] if operands.shape(name) == shape]
    for axis in _same(operands, range(len(shape) - 1)):
        part = axis.reads[operands.first]
        yield Axis(axis.rows, dict.fromkeys(others, part), axis.makes)


def _beside_axis(default: int) -> Callable[[_Operands], Iterator[Axis]]:
    """Return the rule of ops that look along one axis."""

    def rule(operands: _Operands) -> Iterator[Axis]:
        rank, axis = len(operands.shape(operands.first)), operands.axis(default)
        yield from _same(operands, [dim for dim in range(rank) if dim != axis])

    return rule


def _dropped(operands: _Operands) -> Iterator[Axis]:
    """Yield all dimensions of a dropout that drops nothing."""
    if not operands.given(2):
        yield from _same(operands, range(len(operands.shape(operands.first))))


def _softmax(operands: _Operands) -> Iterator[Axis]:
    if operands.opset >= _ONE_AXIS:
        yield from _beside_axis(-1)(operands)
    else:
        yield from _same(operands, range(operands.axis(1)))


def _gemm(operands: _Operands) -> Iterator[Axis]:
    (left, right), result = operands.node.input[:2], operands.result
    rows, columns = operands.shape(result)
    added = operands.given(2)
    of_added = operands.shape(added) if added else ()

    def with_added(reads: dict[str, Part], from_end: int, size: int) -> dict[str, Part]:
        if len(of_added) >= from_end and of_added[-from_end] == size:
            reads[added] = Part(len(of_added) - from_end)
        return reads

    if len({left, right, added}) == 3:  # else one value has two roles
        part = Part(integer_attribute(operands.node, "transA", 0))
        yield Axis(rows, with_added({left: part}, 2, rows), {result: Part(0)})
        part = Part(1 - integer_attribute(operands.node, "transB", 0))
        yield Axis(columns, with_added({right: part}, 1, columns), {result: Part(1)})


def _matmul(operands: _Operands) -> Iterator[Axis]:
    left, right = operands.node.input
    result = operands.result
    of_left, of_right, shape = (operands.shape(name) for name in (left, right, result))
    if left == right or min(len(of_left), len(of_right)) < 2:  # vectors
        return
    yield from _broadcast(operands, shape, [left, right], trailing=2)
    rank = len(shape)
    yield Axis(shape[-2], {left: Part(len(of_left) - 2)}, {result: Part(rank - 2)})
    yield Axis(shape[-1], {right: Part(len(of_right) - 1)}, {result: Part(rank - 1)})
    yield Axis(of_left[-1], {left: Part(len(of_left) - 1), right: Part(len(of_right) - 2)}, {result: SUM})


def _fused_matmul(operands: _Operands) -> Iterator[Axis]:
    """Yield what a product has that is only scaled: one that is transposed, too, has no rule."""
    if not any(integer_attribute(operands.node, f"trans{what}", 0) for what in ("A", "B", "BatchA", "BatchB")):
        yield from _matmul(operands)


def _reduced(operands: _Operands) -> Iterator[Axis]:
    """Yield the dimensions that are kept, and of a sum those that are not."""
    shape, axes = operands.shape(operands.first), operands.integers("axes", 1)
    if axes is None:
        return
    rank = len(shape)
    gone = {axis % rank for axis in axes} if rank else set()
    if not gone:
        gone = set() if integer_attribute(operands.node, "noop_with_empty_axes", 0) else set(range(rank))
    kept = [dim for dim in range(rank) if dim not in gone]
    keeps = integer_attribute(operands.node, "keepdims", 1)
    for place, dim in enumerate(kept):
        yield Axis(shape[dim], {operands.first: Part(dim)}, {operands.result: Part(dim if keeps else place)})
    if operands.node.op_type == "ReduceSum":
        for dim in sorted(gone):
            yield Axis(shape[dim], {operands.first: Part(dim)}, {operands.result: SUM})


def _transposed(operands: _Operands) -> Iterator[Axis]:
    shape = operands.shape(operands.first)
    order = integers_attribute(operands.node, "perm") or tuple(reversed(range(len(shape))))
    for result_dim, dim in enumerate(order):
        yield Axis(shape[dim], {operands.first: Part(dim)}, {operands.result: Part(result_dim)})


def _reshaped(operands: _Operands) -> Iterator[Axis]:
    """Yield dimensions that begin at the same place among the elements, of which one is a multiple of the other."""
    if operands.node.op_type == "Reshape" and operands.numbers(1) is None:
        return
    given, result = operands.shape(operands.first), operands.shape(operands.result)
    begins = {prod(result[:dim]): dim for dim in reversed(range(len(result))) if result[dim] > 1}
    for dim, size in enumerate(given):
        other = begins.get(prod(given[:dim]))
        if size <= 1 or other is None:
            continue
        rows = min(size, result[other])
        if size % rows == 0 and result[other] % rows == 0:
            parts = Part(dim, size // rows), Part(other, result[other] // rows)
            yield Axis(rows, {operands.first: parts[0]}, {operands.result: parts[1]})


def _expanded(operands: _Operands) -> Iterator[Axis]:
    if operands.numbers(1) is not None:
        yield from _broadcast(operands, operands.shape(operands.result), [operands.first])


def _joined(operands: _Operands) -> Iterator[Axis]:
    shape, axis = operands.shape(operands.result), operands.axis(0)
    names = dict.fromkeys(operands.node.input)
    for dim, size in enumerate(shape):
        if dim != axis:
            yield Axis(size, {name: Part(dim) for name in names}, {operands.result: Part(dim)})


def _unsliced(operands: _Operands) -> Iterator[Axis]:
    """Yield dimensions that are not sliced."""
    shape = operands.shape(operands.first)
    axes = operands.integers("axes", 3)
    starts = operands.integers("starts", 1)
    if axes is None or starts is None:
        return
    sliced = {axis % len(shape) for axis in axes} if axes else set(range(len(starts)))
    yield from _same(operands, [dim for dim in range(len(shape)) if dim not in sliced])


def _gathered(operands: _Operands) -> Iterator[Axis]:
    data, indices = operands.node.input
    if data == indices:
        return
    of_data, of_indices, axis = operands.shape(data), operands.shape(indices), operands.axis(0)
    for dim, size in enumerate(of_indices):
        yield Axis(size, {indices: Part(dim)}, {operands.result: Part(axis + dim)})
    for dim, size in enumerate(of_data):
        if dim != axis:
            result_dim = dim if dim < axis else dim + len(of_indices) - 1
            yield Axis(size, {data: Part(dim)}, {operands.result: Part(result_dim)})


def _padded(operands: _Operands) -> Iterator[Axis]:
    rank, pads = len(operands.shape(operands.first)), operands.integers("pads", 1)
    if pads is not None and len(pads) == 2 * rank and not operands.given(3):
        yield from _same(operands, [dim for dim in range(rank) if not pads[dim] and not pads[dim + rank]])


def _resized(operands: _Operands) -> Iterator[Axis]:
    """Yield batch and channels, where they keep their size; sizes in place of scales name them."""
    if not operands.given(3):
        yield from _same(operands, [0, 1])


def _quantized(operands: _Operands) -> Iterator[Axis]:
    rank, scale = len(operands.shape(operands.first)), operands.shape(operands.node.input[1])
    one = prod(scale) == 1
    if one or len(scale) == 1:
        yield from _same(operands, [dim for dim in range(rank) if one or dim != operands.axis(1)])


Rule = Callable[[_Operands], Iterator[Axis]]

_ELEMENTWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Celu Clip
    Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN
    LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink
    Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
    com.microsoft.BiasGelu com.microsoft.FastGelu com.microsoft.Gelu com.microsoft.QuickGelu
"""

_REDUCED = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"

_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    **dict.fromkeys(
        ("Conv", "ConvTranspose", "InstanceNormalization", "GroupNormalization", "LRN", "DepthToSpace", "SpaceToDepth"),
        _batch,
    ),
    **dict.fromkeys(
        ("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _pooled
    ),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _before_axis),
    **dict.fromkeys(
        ("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization"), _before_last
    ),
    **dict.fromkeys(("ArgMax", "ArgMin"), _beside_axis(0)),
    **dict.fromkeys(("LpNormalization", "TopK"), _beside_axis(-1)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    **dict.fromkeys((f"Reduce{how}" for how in _REDUCED.split()), _reduced),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshaped),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _quantized),
    "BatchNormalization": _normalised_by_channel,
    "com.microsoft.FusedConv": _fused_convolution,
    "com.microsoft.FusedGemm": _gemm,
    "com.microsoft.FusedMatMul": _fused_matmul,
    "Concat": _joined,
    "Dropout": _dropped,
    "Expand": _expanded,
    "Gather": _gathered,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Pad": _padded,
    "Resize": _resized,
    "Slice": _unsliced,
    "Split": _beside_axis(0),
    "Transpose": _transposed,
}
