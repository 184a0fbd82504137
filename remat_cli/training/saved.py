"""The tensors that each operator's backward reads, as a table.

Sources: the gradient builder of onnxruntime, `derivatives.yaml` of PyTorch 2.13, and measurements of saved tensors in
PyTorch (`saved_tensors_hooks`) for 75 operators. PyTorch's measurements decide where these differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import EllipsisType

from remat_cli.core.operators import Operand, Operator, Role
from remat_cli.training.statistics import STATISTICS, Statistic, statistic_of

_FUSED_ATTENTION = "x0 x1 x2 x3 y0 logsumexp"

# What the gradient of each input reads, by position: inputs x0, x1, ..., outputs y0, y1, ..., all inputs `x*`, all
# outputs `y*`, all inputs but its own `others`, and statistics by name (see `statistics.py`). "" reads nothing (only
# shapes); None is an input that has no gradient, as have inputs beyond the end; `...` repeats the entry before it.
# An operand without a wanted gradient causes no reads: `Mul` by a constant saves nothing.
_GRADIENT_READS: Mapping[str, tuple[str | EllipsisType | None, ...]] = {
    # Contractions: each operand for the gradient of the other.
    "Conv": ("x1", "x0", ""),
    "ConvTranspose": ("x1", "x0", ""),
    "MatMul": ("x1", "x0"),
    "Gemm": ("x1", "x0", ""),
    "Einsum": ("others", ...),
    # Arithmetic.
    "Add": ("", ""),
    "Sub": ("", ""),
    "Sum": ("", ...),
    "Mean": ("", ...),
    "Neg": ("",),
    "Identity": ("",),
    "Mul": ("x1", "x0"),
    "Div": ("x1", "x0 x1"),
    "Pow": ("x0 x1", "x0 x1 y0"),
    "Min": ("x*", ...),
    "Max": ("x*", ...),
    "Mod": ("", "x0 x1"),
    "Sqrt": ("y0",),
    "Exp": ("y0",),
    "Reciprocal": ("y0",),
    "Log": ("x0",),
    "Erf": ("x0",),
    "Abs": ("x0",),
    "Sin": ("x0",),
    "Cos": ("x0",),
    "Tan": ("y0",),
    "Asin": ("x0",),
    "Acos": ("x0",),
    "Atan": ("x0",),
    "Sinh": ("x0",),
    "Cosh": ("x0",),
    "CumSum": ("",),
    # Activation functions.
    "Relu": ("y0",),
    "Sigmoid": ("y0",),
    "Tanh": ("y0",),
    "Softmax": ("y0",),
    "LogSoftmax": ("y0",),
    "Gelu": ("x0",),
    "Swish": ("x0",),
    "HardSwish": ("x0",),
    "HardSigmoid": ("x0",),
    "LeakyRelu": ("x0",),
    "ThresholdedRelu": ("x0",),
    "Elu": ("x0",),
    "Celu": ("x0",),
    "Selu": ("x0",),
    "Mish": ("x0",),
    "Softplus": ("x0",),
    "Softsign": ("x0",),
    "PRelu": ("x0 x1", "x0"),
    "Clip": ("x0",),
    "com.microsoft.Gelu": ("x0",),
    "com.microsoft.QuickGelu": ("x0",),
    "com.microsoft.FastGelu": ("x0 x1", "x0 x1"),
    "com.microsoft.BiasGelu": ("x0 x1", "x0 x1"),
    # Normalisation.
    "BatchNormalization": ("x1 x4", "x0 x3 x4", ""),
    "BatchNormalization, training": ("x0 x1 mean inv_std", "x0 mean inv_std", ""),
    "LayerNormalization": ("x0 x1 mean inv_std", "x0 mean inv_std", ""),
    "RMSNormalization": ("x0 x1 inv_rms", "x0 inv_rms"),
    "SimplifiedLayerNormalization": ("x0 x1 inv_rms", "x0 inv_rms"),
    "GroupNormalization": ("x0 x1 mean inv_std", "x0 mean inv_std", ""),
    "InstanceNormalization": ("x0 x1 mean inv_std", "x0 mean inv_std", ""),
    "LpNormalization": ("x0 y0",),
    "LRN": ("x0 y0",),
    # Pooling and reduction.
    # PyTorch keeps the inputs of these two, though their gradients read no more than their shape.
    "MaxPool": ("x0 indices",),
    "AveragePool": ("x0",),
    "GlobalMaxPool": ("indices",),
    "GlobalAveragePool": ("",),
    "LpPool": ("x0 y0",),
    "MaxUnpool": ("x1",),
    "ReduceMean": ("",),
    "ReduceSum": ("",),
    "ReduceMax": ("x0 y0",),
    "ReduceMin": ("x0 y0",),
    "ReduceProd": ("x0 y0",),
    "ReduceL1": ("x0",),
    "ReduceL2": ("x0 y0",),
    "ReduceLogSum": ("x0 y0",),
    "ReduceLogSumExp": ("x0 y0",),
    "ReduceSumSquare": ("x0",),
    "TopK": ("indices",),
    # Moving data: shapes, axes and starts only, or indices.
    "Cast": ("",),
    "CastLike": ("",),
    "Reshape": ("",),
    "Flatten": ("",),
    "Squeeze": ("",),
    "Unsqueeze": ("",),
    "Transpose": ("",),
    "Expand": ("",),
    "Tile": ("",),
    "Pad": ("",),
    "Concat": ("", ...),
    "Split": ("",),
    "SplitToSequence": ("",),
    "SequenceAt": ("",),
    "SequenceConstruct": ("", ...),
    "ConcatFromSequence": ("",),
    "Slice": ("",),
    "Trilu": ("",),
    "DepthToSpace": ("",),
    "SpaceToDepth": ("",),
    "Resize": ("",),
    "Upsample": ("",),
    "Gather": ("x1",),
    "GatherElements": ("x0 x1",),
    "GatherND": ("x1",),
    "ScatterElements": ("x1", None, "x1"),
    "ScatterND": ("x1", None, "x1"),
    "Compress": ("x1",),
    "ReverseSequence": ("x1",),
    "Where": (None, "x0", "x0"),
    "GridSample": ("x0 x1", "x0 x1"),
    # Losses, attention, recurrence.
    "Dropout": ("mask",),
    "SoftmaxCrossEntropyLoss": ("log_prob x1 x2",),
    "NegativeLogLikelihoodLoss": ("x1 x2",),
    "RotaryEmbedding": ("x1 x2 x3",),
    # Fused: the matrix of attention weights is recomputed from the logsumexp of its rows.
    "Attention": (_FUSED_ATTENTION,) * 4,
    # Input, lengths and first states, not the weights: what a file computes of these is their order of the gates.
    "LSTM": ("x0 x4 x5 x6 y* gates", ...),
    "GRU": ("x0 x4 x5 y* gates", ...),
    "RNN": ("x0 x4 x5 y*", ...),
}

# fmt: off
_NOT_DIFFERENTIABLE = frozenset((
    "And", "ArgMax", "ArgMin", "Bernoulli", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Ceil",
    "Constant", "ConstantOfShape", "ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "Equal", "EyeLike",
    "Floor", "Greater", "GreaterOrEqual", "Hardmax", "IsInf", "IsNaN", "Less", "LessOrEqual", "MatMulInteger",
    "Multinomial", "NonMaxSuppression", "NonZero", "Not", "OneHot", "Or", "QLinearConv", "QLinearMatMul",
    "QuantizeLinear", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Range", "Round",
    "Shape", "Sign", "Size", "Unique", "Xor",
))
# fmt: on

# All results of these carry a gradient; of every other known operator only the first does.
_SEVERAL_RESULTS = frozenset({"Split", "LSTM", "GRU", "RNN", "Attention"})


@dataclass(frozen=True, slots=True)
class Gradients:
    """The operands of an operator with a gradient, and each gradient's reads.

    Attributes:
        reads: [inputs] names of the values that the gradient of each operand reads; None for an operand without a
            gradient.
        results: positions of the outputs that carry a gradient.
        known: false if the table lacks the operator: every operand then has a gradient that reads everything.
    """

    reads: tuple[tuple[str, ...] | None, ...]
    results: tuple[int, ...]
    known: bool = True


@dataclass(frozen=True, slots=True)
class Saved:
    """Values kept in memory for an operator's backward.

    Attributes:
        operands: inputs and outputs of the operator.
        statistics: additional results of the forward op.
    """

    operands: tuple[Operand, ...]
    statistics: tuple[Statistic, ...]


def gradients_of(operator: Operator) -> Gradients:
    """Return the gradients of an operator's operands, needed or not."""
    if operator.type in _NOT_DIFFERENTIABLE:
        return no_gradients(operator)
    row = _GRADIENT_READS.get(_form(operator))
    if row is None or (operator.type in STATISTICS and _shapes_missing(operator)):
        everything = ("x*", "y*")
        return Gradients((everything,) * len(operator.inputs), tuple(range(len(operator.outputs))), known=False)
    results = range(len(operator.outputs))
    if operator.type not in _SEVERAL_RESULTS:
        results = results[:1]
    return Gradients(_by_input(row, len(operator.inputs)), tuple(results))


def no_gradients(operator: Operator) -> Gradients:
    """Return the gradients of an operator without a backward."""
    return Gradients(reads=(None,) * len(operator.inputs), results=())


def saved_for_backward(operator: Operator, gradients: Gradients, needed: Collection[int]) -> Saved:
    """Return the values that an operator's backward reads.

    Args:
        operator: the forward operator.
        gradients: result of `gradients_of` for the operator.
        needed: positions of the inputs whose gradient is needed; those without a gradient are ignored.
    """
    values = dict.fromkeys(
        value
        for position, reads in enumerate(gradients.reads)
        if position in needed
        for name in reads or ()
        for value in _resolve(name, position, operator)
    )
    return Saved(
        operands=tuple(value for value in values if isinstance(value, Operand)),
        statistics=tuple(value for value in values if isinstance(value, Statistic)),
    )


@cache
def _by_input(row: tuple[str | EllipsisType | None, ...], inputs: int) -> tuple[tuple[str, ...] | None, ...]:
    """Return the reads of each operand's gradient, from a row of the table."""
    if row[-1] is ...:
        row = (*row[:-2], *(row[-2],) * inputs)
    row = (*row, *(None,) * inputs)
    return tuple(tuple(entry.split()) if isinstance(entry, str) else None for entry in row[:inputs])


def _shapes_missing(operator: Operator) -> bool:
    values = (*operator.inputs[:1], *operator.outputs[:1])
    return len(values) < 2 or any(value is None or value.shape is None for value in values)


def _form(operator: Operator) -> str:
    """Return the operator's key in the table.

    The key is its type, with its form if the backward depends on more than the type.
    """
    match operator.type:
        case "BatchNormalization":
            # Who trains its scale trains with the statistics of the batch, though many an exporter writes the form for
            # inference. Before opset 14 there was no attribute: more than one output meant training.
            several = sum(output is not None for output in operator.outputs) > 1
            scale = operator.inputs[1] if len(operator.inputs) > 1 else None
            training = operator.attributes.get("training_mode", 0) if operator.opset >= 14 else several
            training = training or (scale is not None and scale.role is Role.PARAMETER)
        case "ScatterElements" | "ScatterND" if operator.attributes.get("reduction", "none") not in ("none", "add"):
            return f"{operator.type}, reduction"
        case _:
            training = False
    return f"{operator.type}, training" if training else operator.type


def _resolve(name: str, own_position: int, operator: Operator) -> Iterator[Operand | Statistic]:
    """Yield the values for a name of the table, without absent operands."""
    inputs, outputs = operator.inputs, operator.outputs
    if name in ("x*", "others"):
        values = [value for i, value in enumerate(inputs) if name == "x*" or i != own_position]
    elif name == "y*":
        values = list(outputs)
    elif name[1:].isdigit():
        of, position = (inputs if name[0] == "x" else outputs), int(name[1:])
        values = list(of[position : position + 1])
    else:
        yield statistic_of(name, operator)
        return
    yield from (value for value in values if value is not None)
