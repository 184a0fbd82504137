"""Floating-point operations of operators; a multiply-add counts 2.

The contractions agree exactly with PyTorch's counter on exported models. The factors of all other operators are the
usual estimates (a transcendental function counts 4 to 10 operations).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log2, prod

from remat_cli.core.graph import BOUNDARY_TYPE
from remat_cli.core.operators import Operand, Operator
from remat_cli.costs.aten import aten_flops


class UnknownWork(Exception):
    """An operator has no formula, or lacks a shape for the formula."""


def flops_of(operator: Operator) -> int:
    """Return the FLOPs of one run of an operator; 0 for data movement.

    Raises:
        UnknownWork: the operator has no formula, or lacks a shape for the formula.
    """
    if operator.type.startswith(("aten.", "remat.")):
        return _known(aten_flops(operator), operator)
    if operator.type in _DATA_MOVEMENT:
        return 0
    if operator.type in _PER_RESULT_ELEMENT:
        return _PER_RESULT_ELEMENT[operator.type] * prod(_result(operator))
    if operator.type in _PER_INPUT_ELEMENT:
        return _PER_INPUT_ELEMENT[operator.type] * prod(_input(operator, 0))
    formula = _FORMULAS.get(operator.type)
    if formula is None:
        raise UnknownWork(operator.type)
    return formula(operator)


def _known(flops: int | None, operator: Operator) -> int:
    if flops is None:
        raise UnknownWork(operator.type)
    return flops


# --- Shapes and attributes --------------------------------------------------------------------------------------------


def _input(operator: Operator, position: int) -> tuple[int, ...]:
    return _shape(operator, operator.inputs[position : position + 1])


def _result(operator: Operator) -> tuple[int, ...]:
    return _shape(operator, operator.outputs[:1])


def _shape(operator: Operator, operands: tuple[Operand | None, ...]) -> tuple[int, ...]:
    if not operands or operands[0] is None or operands[0].shape is None:
        raise UnknownWork(operator.type)
    return operands[0].shape


# --- Formulas ---------------------------------------------------------------------------------------------------------

Formula = Callable[[Operator], int]


def _convolution(weight: int = 1) -> Formula:
    """Return the formula of a convolution.

    Weights are [output channels, input channels of a group, *kernel].
    """

    def flops(operator: Operator) -> int:
        return 2 * prod(_result(operator)) * prod(_input(operator, weight)[1:])

    return flops


def _transposed_convolution(operator: Operator) -> int:
    """Return the FLOPs of a transposed convolution.

    Weights are [input channels, output channels of a group, *kernel].
    """
    return 2 * prod(_input(operator, 0)) * prod(_input(operator, 1)[1:])


def _matrix_product(operator: Operator) -> int:
    """Return the FLOPs of a matrix product.

    The first operand is [..., rows, summed], or [..., summed, rows] if the operator transposes it.
    """
    shape = _input(operator, 0)
    summed = shape[-2:-1] if operator.integer("transA", 0) else shape[-1:]
    return 2 * prod(_result(operator)) * prod(summed)


def _einsum(operator: Operator) -> int:
    """Return the FLOPs of an Einsum.

    Each combination of all indices is one multiply-add.
    """
    equation = str(operator.attributes.get("equation", "")).replace(" ", "")
    sizes: dict[str, int] = {}
    for position, term in enumerate(equation.partition("->")[0].split(",")):
        shape = _input(operator, position)
        before, dots, after = term.partition("...")
        broadcast = len(shape) - len(before) - len(after) if dots else 0
        # Broadcast dimensions are aligned at their end.
        labels = [*before, *(f"...{number}" for number in range(broadcast, 0, -1)), *after]
        if len(labels) != len(shape):
            raise UnknownWork(operator.type)
        for label, size in zip(labels, shape, strict=True):
            sizes[label] = max(sizes.get(label, 0), size)
    return 2 * prod(sizes.values())


def _recurrence(operator: Operator) -> int:
    """Return the FLOPs of a recurrent layer.

    X is [steps, batch, input]; W and R are [directions, gates * hidden, input or hidden].
    """
    weights = prod(_input(operator, 1)) + prod(_input(operator, 2))
    return 2 * prod(_input(operator, 0)[:2]) * weights


def _attention(past: int) -> Formula:
    """Return the formula of attention: two products.

    The products are queries times keys, and weights times values. Keys are [batch, keys, ...] or [batch, heads, keys,
    size].

    Args:
        past: input position of earlier keys, [batch, heads, keys, size], which come before the other keys.
    """

    def flops(operator: Operator) -> int:
        shape = _input(operator, 1)
        keys = prod(shape[2:3]) if len(shape) == 4 else prod(shape[1:2])
        earlier = operator.inputs[past] if past < len(operator.inputs) else None
        if earlier is not None:
            keys += prod(_input(operator, past)[2:3])
        return 2 * keys * (prod(_input(operator, 0)) + prod(_result(operator)))

    return flops


def _projected_attention(operator: Operator) -> int:
    """Return the FLOPs of self-attention with packed projections.

    The sequence is [batch, steps, input]. One weight packs its three projections.
    """
    shape = _input(operator, 0)
    projections = prod(shape[:2]) * prod(_input(operator, 1))
    return 2 * (projections + 2 * prod(shape[1:2]) * prod(_result(operator)))


def _pooling(operator: Operator) -> int:
    kernel = operator.attributes.get("kernel_shape")
    if not isinstance(kernel, tuple):
        raise UnknownWork(operator.type)
    return prod(_result(operator)) * prod(int(size) for size in kernel)


def _interpolation(default: str) -> Formula:
    def flops(operator: Operator) -> int:
        mode = str(operator.attributes.get("mode", default))
        return prod(_result(operator)) * _PER_INTERPOLATED_ELEMENT.get(mode, 30)

    return flops


def _variadic(operator: Operator) -> int:
    operands = sum(value is not None for value in operator.inputs)
    return max(1, operands - 1) * prod(_result(operator))


def _top_k(operator: Operator) -> int:
    """Return the FLOPs of TopK: a heap of k for each row."""
    axis, result = operator.integer("axis", -1), _result(operator)
    k = result[axis] if -len(result) <= axis < len(result) else 1
    return prod(_input(operator, 0)) * max(1, round(log2(max(k, 1))))


# Number of leading operands that are contracted; None means all of them.
CONTRACTED_OPERANDS: Mapping[str, int | None] = {
    "Conv": 2,
    "ConvTranspose": 2,
    "MatMul": 2,
    "Gemm": 2,
    "Einsum": None,
}

_FORMULAS: Mapping[str, Formula] = {
    "Conv": _convolution(),
    "ConvInteger": _convolution(),
    "DeformConv": _convolution(),
    "QLinearConv": _convolution(weight=3),
    "com.microsoft.FusedConv": _convolution(),
    "com.microsoft.nchwc.Conv": _convolution(),
    "ConvTranspose": _transposed_convolution,
    "MatMul": _matrix_product,
    "Gemm": _matrix_product,
    "MatMulInteger": _matrix_product,
    "QLinearMatMul": _matrix_product,
    "com.microsoft.FusedMatMul": _matrix_product,
    "com.microsoft.FusedGemm": _matrix_product,
    "com.microsoft.MatMulNBits": _matrix_product,
    "Einsum": _einsum,
    "LSTM": _recurrence,
    "GRU": _recurrence,
    "RNN": _recurrence,
    "Attention": _attention(past=4),
    "com.microsoft.MultiHeadAttention": _attention(past=6),
    "com.microsoft.GroupQueryAttention": _attention(past=3),
    "com.microsoft.Attention": _projected_attention,
    "MaxPool": _pooling,
    "AveragePool": _pooling,
    "LpPool": _pooling,
    "com.microsoft.nchwc.MaxPool": _pooling,
    "com.microsoft.nchwc.AveragePool": _pooling,
    "Resize": _interpolation("nearest"),
    "Upsample": _interpolation("nearest"),
    "com.microsoft.nchwc.Upsample": _interpolation("nearest"),
    "GridSample": _interpolation("linear"),
    "Sum": _variadic,
    "Mean": _variadic,
    "Min": _variadic,
    "Max": _variadic,
    "TopK": _top_k,
}

_PER_INTERPOLATED_ELEMENT = {"nearest": 1, "linear": 7, "bilinear": 7, "cubic": 30, "bicubic": 30}

# fmt: off
_PER_RESULT_ELEMENT: Mapping[str, int] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sign", "Mod", "Reciprocal", "Relu", "LeakyRelu",
                     "ThresholdedRelu", "PRelu", "Clip", "Floor", "Ceil", "Round", "Dropout", "Range", "CumSum"), 1),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor", "Not", "IsInf",
                     "IsNaN", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"), 1),
    **dict.fromkeys(("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli"), 4),
    **dict.fromkeys(("HardSigmoid", "Softsign", "RotaryEmbedding", "QuantizeLinear", "DequantizeLinear"), 3),
    **dict.fromkeys(("Sqrt", "Exp", "Log", "Sin", "Cos", "HardSwish"), 4),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Elu", "Celu", "Selu", "BatchNormalization"), 5),
    **dict.fromkeys(("Sigmoid", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh",
                     "RMSNormalization", "SimplifiedLayerNormalization", "LpNormalization"), 6),
    **dict.fromkeys(("Swish", "com.microsoft.QuickGelu"), 7),
    **dict.fromkeys(("Erf", "Tanh", "Pow", "Softplus", "LayerNormalization", "GroupNormalization",
                     "InstanceNormalization", "LRN"), 8),
    **dict.fromkeys(("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization"), 9),
    **dict.fromkeys(("Gelu", "Mish", "com.microsoft.Gelu", "com.microsoft.FastGelu", "com.microsoft.BiasGelu"), 10),
}

_PER_INPUT_ELEMENT: Mapping[str, int] = {
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ArgMax", "ArgMin",
                     "GlobalAveragePool", "GlobalMaxPool", "Hardmax", "com.microsoft.nchwc.GlobalAveragePool",
                     "com.microsoft.nchwc.GlobalMaxPool"), 1),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare", "DynamicQuantizeLinear"), 2),
    **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp"), 5),
    "SoftmaxCrossEntropyLoss": 6,
}

_DATA_MOVEMENT = frozenset((
    "Cast", "CastLike", "Compress", "Concat", "ConcatFromSequence", "Constant", "ConstantOfShape", "DepthToSpace",
    "Expand", "EyeLike", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "MaxUnpool",
    "NegativeLogLikelihoodLoss", "OneHot", "Pad", "Reshape", "ReverseSequence", "ScatterElements", "ScatterND",
    "SequenceAt", "SequenceConstruct", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "SplitToSequence", "Squeeze",
    "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "com.microsoft.nchwc.ReorderInput",
    "com.microsoft.nchwc.ReorderOutput", BOUNDARY_TYPE,
))
# fmt: on
