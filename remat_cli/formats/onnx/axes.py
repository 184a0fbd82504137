"""The rows that an ONNX op can work on: entries of a dimension that do not see each other, or that are summed.

An op without a rule works on no rows: every result depends on all that it reads, or nobody has written its rule yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from remat_cli.formats.onnx.attributes import attribute_of, integer_attribute, integers_attribute
from remat_cli.formats.onnx.contrib import full_type
from remat_cli.formats.onnx.values import Values
from remat_cli.splitting import SUM, Axis, Part

if TYPE_CHECKING:
    import onnx

# From this operator set on, Softmax and its kin work along one axis, and not along all from it on.
_ONE_AXIS = 13
# Before this operator set, attributes say how operands are broadcast, and dropout and batch norm train by default.
_NUMPY_BROADCASTING = 7
# From this operator set on, Resize may get a region to crop before its scales.
_CROPPING_RESIZE = 11


def axes_of(node: onnx.NodeProto, values: Values, opset: int) -> tuple[Axis, ...]:
    """Return the rows that a node can work on; none where it has no rule.

    Args:
        node: the node.
        values: all values, with their shapes.
        opset: version of ONNX's own operator set.
    """
    rule = _RULES.get(full_type(node))
    operands = _Operands(node, values, opset)
    if rule is None or opset < _NUMPY_BROADCASTING or node.output[0] == "" or not operands.have_shapes:
        return ()
    axes = (operands.axis_of(rows) for rows in rule(operands))
    return tuple(axis for axis in axes if axis is not None and axis.rows > 1)


@dataclass(frozen=True)
class _Rows:
    """What a rule says: which dimensions follow each other, by place among operands and results, never by size.

    Attributes:
        reads: for operands that may have the rows, the dimension; a negative one is none.
        makes: for each result, the dimension that has the rows, or `SUM`.
    """

    reads: Mapping[int, Part]
    makes: Mapping[int, Part | None]


@dataclass(frozen=True)
class _Operands:
    """A node with the shapes of what it reads and makes."""

    node: onnx.NodeProto
    values: Values
    opset: int

    @property
    def have_shapes(self) -> bool:
        """Whether all shapes are known, and no result is empty."""
        named = (name for name in (*self.node.input, *self.node.output) if name)
        known = all(self.values[name].type.shape is not None for name in named)
        return known and all(0 not in self.shape(name) for name in self.node.output if name)

    def axis_of(self, rows: _Rows) -> Axis | None:
        """Return rows as an axis of values; None where a value would have two roles, or sizes differ.

        An operand that is broadcast along the rows, as it has no such dimension or one entry of it, is read whole.
        """
        made = {self.node.output[place]: part for place, part in rows.makes.items()}
        counts = [self._entries(name, part) // part.unit for name, part in made.items() if part is not None]
        counts += [self._entries(self.given(place), part) // part.unit for place, part in rows.reads.items()]
        count = max(counts)
        roles: dict[str, set[Part | None]] = {}
        for place, name in enumerate(self.node.input):
            part = rows.reads.get(place)
            is_whole = part is None or self._entries(name, part) <= 1
            roles.setdefault(name, set()).add(None if is_whole else part)
        reads = {name: part for name, parts in roles.items() for part in parts if part is not None}
        cut = [*reads.items(), *((name, part) for name, part in made.items() if part is not None)]
        agree = all(len(parts) == 1 for parts in roles.values())
        agree &= all(self._entries(name, part) == count * part.unit for name, part in cut)
        return Axis(count, reads, made) if agree and reads else None

    def _entries(self, name: str, part: Part) -> int:
        return self.shape(name)[part.dim] if part.dim >= 0 else 0

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self.values[name].type.shape
        assert shape is not None
        return shape

    @property
    def first(self) -> tuple[int, ...]:
        """Shape of the first operand."""
        return self.shape(self.node.input[0])

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return self.shape(self.node.output[0])

    @property
    def results(self) -> list[int]:
        """Places of the results that are there."""
        return [place for place, name in enumerate(self.node.output) if name]

    def given(self, place: int) -> str:
        """Return the name of an input; empty where it is absent."""
        return self.node.input[place] if place < len(self.node.input) else ""

    def numbers(self, place: int) -> list[float] | None:
        """Return the elements of an input; None where they are not known."""
        name = self.given(place)
        data = self.values[name].data if name else None
        return None if data is None else data.reshape(-1).tolist()

    def integers(self, name: str, place: int) -> list[int] | None:
        """Return whole numbers that are an attribute or, in later operator sets, an input; None if they are unknown."""
        if attribute_of(self.node, name) is not None:
            return list(integers_attribute(self.node, name))
        numbers = self.numbers(place) if self.given(place) else []
        return None if numbers is None else [int(number) for number in numbers]

    def axis(self, default: int) -> int:
        axis = integer_attribute(self.node, "axis", default)
        return axis + len(self.first) if axis < 0 else axis

    def aligned(self, dim: int, places: Iterable[int]) -> dict[int, Part]:
        """Return the dimension of each operand that is broadcast to this dimension of the result."""
        there = [place for place in places if self.given(place)]
        return {place: Part(dim - len(self.result) + len(self.shape(self.given(place)))) for place in there}


def _aligned(operands: _Operands, dims: Iterable[int], places: Iterable[int] = (0,)) -> Iterator[_Rows]:
    """Yield dimensions of all results, to which the operands at these places are broadcast."""
    for dim in dims:
        yield _Rows(operands.aligned(dim, places), dict.fromkeys(operands.results, Part(dim)))


def _elementwise(operands: _Operands) -> Iterator[_Rows]:
    """Yield each dimension of the result."""
    yield from _aligned(operands, range(len(operands.result)), range(len(operands.node.input)))


def _batch(operands: _Operands) -> Iterator[_Rows]:
    """Yield the first dimension."""
    yield from _aligned(operands, [0])


def _fused_convolution(operands: _Operands) -> Iterator[_Rows]:
    """Yield the batch of a convolution, to whose result another tensor may be added."""
    yield from _aligned(operands, [0], [0, 3])


def _pooled(operands: _Operands) -> Iterator[_Rows]:
    """Yield batch and channels; indices of maxima count through the whole tensor, so they forbid both."""
    if len(operands.results) == 1:
        yield from _aligned(operands, [0, 1])


def _normalised_by_channel(operands: _Operands) -> Iterator[_Rows]:
    """Yield all dimensions but that of the channels; with statistics among the results, none."""
    if len(operands.results) == 1 and not integer_attribute(operands.node, "training_mode", 0):
        # of old operator sets, statistics may be those of each element of a sample
        dims = range(len(operands.first)) if integer_attribute(operands.node, "spatial", 1) else [0]
        yield from _aligned(operands, [dim for dim in dims if dim != 1])


def _before_axis(operands: _Operands) -> Iterator[_Rows]:
    """Yield the dimensions before the axis from which on an op normalises; scale and shift are broadcast."""
    yield from _aligned(operands, range(operands.axis(-1)), range(3))


def _before_last(operands: _Operands) -> Iterator[_Rows]:
    """Yield all dimensions but the last; a skip connection is broadcast."""
    yield from _aligned(operands, range(len(operands.first) - 1), range(2))


def _beside_axis(default: int) -> Callable[[_Operands], Iterator[_Rows]]:
    """Return the rule of ops that look along one axis."""

    def rule(operands: _Operands) -> Iterator[_Rows]:
        axis = operands.axis(default)
        yield from _aligned(operands, [dim for dim in range(len(operands.first)) if dim != axis])

    return rule


def _dropped(operands: _Operands) -> Iterator[_Rows]:
    """Yield all dimensions of a dropout that drops nothing."""
    if not operands.given(2):
        yield from _aligned(operands, range(len(operands.first)))


def _softmax(operands: _Operands) -> Iterator[_Rows]:
    if operands.opset >= _ONE_AXIS:
        yield from _beside_axis(-1)(operands)
    else:
        yield from _aligned(operands, range(operands.axis(1)))


def _gemm(operands: _Operands) -> Iterator[_Rows]:
    """Yield rows and columns of the product; what is added is broadcast."""
    left = Part(integer_attribute(operands.node, "transA", 0))
    right = Part(1 - integer_attribute(operands.node, "transB", 0))
    for dim, part in enumerate((left, right)):
        yield _Rows({dim: part, **operands.aligned(dim, [2])}, {0: Part(dim)})


def _matmul(operands: _Operands) -> Iterator[_Rows]:
    left, right, rank = (len(operands.shape(name)) for name in (*operands.node.input[:2], operands.node.output[0]))
    if min(left, right) < 2:  # vectors
        return
    yield from _aligned(operands, range(rank - 2), range(2))
    yield _Rows({0: Part(left - 2)}, {0: Part(rank - 2)})
    yield _Rows({1: Part(right - 1)}, {0: Part(rank - 1)})
    yield _Rows({0: Part(left - 1), 1: Part(right - 2)}, {0: SUM})


def _fused_matmul(operands: _Operands) -> Iterator[_Rows]:
    """Yield what a product has that is only scaled: one that is transposed, too, has no rule."""
    if not any(integer_attribute(operands.node, f"trans{what}", 0) for what in ("A", "B", "BatchA", "BatchB")):
        yield from _matmul(operands)


def _kept(operands: _Operands, gone: Collection[int]) -> Iterator[_Rows]:
    """Yield the dimensions along which an op does not reduce."""
    keeps = integer_attribute(operands.node, "keepdims", 1)
    kept = [dim for dim in range(len(operands.first)) if dim not in gone]
    for place, dim in enumerate(kept):
        yield _Rows({0: Part(dim)}, {0: Part(dim if keeps else place)})


def _reduced(operands: _Operands) -> Iterator[_Rows]:
    """Yield the dimensions that are kept, and of a sum those that are not."""
    rank, axes = len(operands.first), operands.integers("axes", 1)
    if axes is None:
        return
    gone = {axis % rank for axis in axes} if rank else set()
    if not gone and not integer_attribute(operands.node, "noop_with_empty_axes", 0):
        gone = set(range(rank))
    yield from _kept(operands, gone)
    if operands.node.op_type == "ReduceSum":
        yield from (_Rows({0: Part(dim)}, {0: SUM}) for dim in sorted(gone))


def _places_of_extremes(operands: _Operands) -> Iterator[_Rows]:
    yield from _kept(operands, {operands.axis(0)})


def _transposed(operands: _Operands) -> Iterator[_Rows]:
    order = integers_attribute(operands.node, "perm") or tuple(reversed(range(len(operands.first))))
    for result_dim, dim in enumerate(order):
        yield _Rows({0: Part(dim)}, {0: Part(result_dim)})


def _reshaped(operands: _Operands) -> Iterator[_Rows]:
    """Yield dimensions that begin at the same place among the elements, of which one is a multiple of the other."""
    if operands.node.op_type == "Reshape" and operands.numbers(1) is None:
        return
    given, result = operands.first, operands.result
    begins = {prod(result[:dim]): dim for dim in reversed(range(len(result))) if result[dim] > 1}
    for dim, size in enumerate(given):
        other = begins.get(prod(given[:dim]))
        if size <= 1 or other is None:
            continue
        rows = min(size, result[other])
        if size % rows == 0 and result[other] % rows == 0:
            yield _Rows({0: Part(dim, size // rows)}, {0: Part(other, result[other] // rows)})


def _expanded(operands: _Operands) -> Iterator[_Rows]:
    if operands.numbers(1) is not None:
        yield from _aligned(operands, range(len(operands.result)))


def _joined(operands: _Operands) -> Iterator[_Rows]:
    dims, axis = range(len(operands.result)), operands.axis(0)
    yield from _aligned(operands, [dim for dim in dims if dim != axis], range(len(operands.node.input)))


def _unsliced(operands: _Operands) -> Iterator[_Rows]:
    """Yield dimensions that are not sliced."""
    rank, axes = len(operands.first), operands.integers("axes", 3)
    starts = operands.integers("starts", 1)
    if axes is None or starts is None:
        return
    sliced = {axis % rank for axis in axes} if axes else set(range(len(starts)))
    yield from _aligned(operands, [dim for dim in range(rank) if dim not in sliced])


def _gathered(operands: _Operands) -> Iterator[_Rows]:
    axis, indices = operands.axis(0), len(operands.shape(operands.given(1)))
    for dim in range(indices):
        yield _Rows({1: Part(dim)}, {0: Part(axis + dim)})
    for dim in range(len(operands.first)):
        if dim != axis:
            yield _Rows({0: Part(dim)}, {0: Part(dim if dim < axis else dim + indices - 1)})


def _padded(operands: _Operands) -> Iterator[_Rows]:
    rank, pads = len(operands.first), operands.integers("pads", 1)
    if pads is not None and len(pads) == 2 * rank and not operands.given(3):
        yield from _aligned(operands, [dim for dim in range(rank) if not pads[dim] and not pads[dim + rank]])


def _resized(operands: _Operands) -> Iterator[_Rows]:
    """Yield dimensions that are not resized, or by a scale of 1; a crop, or a size, says more than a scale."""
    rank = len(operands.first)
    axes = [axis % rank for axis in integers_attribute(operands.node, "axes")] or list(range(rank))
    scales = operands.numbers(1 if operands.opset < _CROPPING_RESIZE else 2)
    mode = attribute_of(operands.node, "coordinate_transformation_mode")
    crops = mode is not None and mode.s == b"tf_crop_and_resize"
    scaled = {axis: scale for axis, scale in zip(axes, scales or (), strict=False) if not crops}
    yield from _aligned(operands, [dim for dim in range(rank) if dim not in axes or scaled.get(dim) == 1])


def _quantized(operands: _Operands) -> Iterator[_Rows]:
    rank, scale, axis = len(operands.first), operands.shape(operands.given(1)), operands.axis(1)
    if prod(scale) == 1:
        yield from _aligned(operands, range(rank))
    elif len(scale) == 1 and axis < rank:
        yield from _aligned(operands, [dim for dim in range(rank) if dim != axis])


Rule = Callable[[_Operands], Iterator[_Rows]]

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
    **dict.fromkeys(("ArgMax", "ArgMin"), _places_of_extremes),
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
