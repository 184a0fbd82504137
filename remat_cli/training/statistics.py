"""Statistics: results of forward ops that only their backward reads.

Such as indices, masks, means, logarithms of sums.

A file exported for inference has no such outputs, but training needs them in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from remat_cli.core.operators import Operand, Operator

_ELEMENT_BYTES = {"float32": 4, "int64": 8, "bool": 1}


@dataclass(frozen=True, slots=True)
class Statistic:
    """An additional result of a forward op.

    Attributes:
        name: name of the statistic, such as "indices".
        shape: dimensions.
        dtype: element type by its ONNX name in lower case.
        bytes: size.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True, slots=True)
class _Rule:
    """The shape, element type and output position of a statistic.

    Attributes:
        shape_of: function from the operator to the shape.
        dtype: its element type; None means that of the first input.
        output: position of the statistic among the operator's outputs; None if the operator does not define it.
    """

    shape_of: Callable[[Operator], tuple[int, ...]]
    dtype: str | None = "float32"
    output: int | None = None


def statistic_of(name: str, operator: Operator) -> Statistic | Operand:
    """Return a statistic of an operator, or the operator's own output.

    `STATISTICS` must have the statistic.

    The shapes of the operator's first input and first output must be known.
    """
    rule = STATISTICS[operator.type][name]
    if rule.output is not None and rule.output < len(operator.outputs):
        output = operator.outputs[rule.output]
        if output is not None:
            return output
    shape = rule.shape_of(operator)
    if rule.dtype is not None:
        return Statistic(name, shape, rule.dtype, prod(shape) * _ELEMENT_BYTES[rule.dtype])
    like = operator.inputs[0]
    if like is None:
        raise ValueError(f"{operator.type} without its first input")
    return Statistic(name, shape, like.dtype, prod(shape) * like.bytes // max(like.elements, 1))


def _first_input(operator: Operator) -> tuple[int, ...]:
    value = operator.inputs[0]
    return () if value is None or value.shape is None else value.shape


def _first_output(operator: Operator) -> tuple[int, ...]:
    value = operator.outputs[0]
    return () if value is None or value.shape is None else value.shape


def _per_row(operator: Operator) -> tuple[int, ...]:
    shape = _first_input(operator)
    rows = operator.integer("axis", -1) % max(len(shape), 1)
    return (*shape[:rows], *(1,) * len(shape[rows:]))


def _per_channel(operator: Operator) -> tuple[int, ...]:
    return _first_input(operator)[1:2]


def _per_group(operator: Operator) -> tuple[int, ...]:
    return (*_first_input(operator)[:1], operator.integer("num_groups", 1))


def _per_instance(operator: Operator) -> tuple[int, ...]:
    return _first_input(operator)[:2]


def _per_query(operator: Operator) -> tuple[int, ...]:
    """Return [batch, heads, queries]; Q is [batch, heads, queries, size] or [batch, queries, heads * size]."""
    shape = _first_input(operator)
    return shape[:3] if len(shape) == 4 else (*shape[:1], operator.integer("q_num_heads", 1), *shape[1:2])


def _per_step(operator: Operator) -> tuple[int, ...]:
    """Return [steps, batch, directions, 5 * hidden size], as PyTorch's fused cells keep.

    That is 4 gates and the cell state of an LSTM, and 5 values a hidden unit of a GRU.
    """
    directions = 2 if operator.attributes.get("direction") == "bidirectional" else 1
    return (*_first_input(operator)[:2], directions, 5 * operator.integer("hidden_size", 0))


_MEAN_AND_INV_STD = ("mean", "inv_std")

# By operator type and name of the statistic.
STATISTICS: Mapping[str, Mapping[str, _Rule]] = {
    "MaxPool": {"indices": _Rule(_first_output, "int64", output=1)},
    "GlobalMaxPool": {"indices": _Rule(_first_output, "int64")},
    "TopK": {"indices": _Rule(_first_output, "int64", output=1)},
    "Dropout": {"mask": _Rule(_first_output, "bool", output=1)},
    "BatchNormalization": dict.fromkeys(_MEAN_AND_INV_STD, _Rule(_per_channel)),
    "LayerNormalization": {"mean": _Rule(_per_row, output=1), "inv_std": _Rule(_per_row, output=2)},
    "GroupNormalization": dict.fromkeys(_MEAN_AND_INV_STD, _Rule(_per_group)),
    "InstanceNormalization": dict.fromkeys(_MEAN_AND_INV_STD, _Rule(_per_instance)),
    "RMSNormalization": {"inv_rms": _Rule(_per_row)},
    "SimplifiedLayerNormalization": {"inv_rms": _Rule(_per_row, output=1)},
    "SoftmaxCrossEntropyLoss": {"log_prob": _Rule(_first_input, None, output=1)},
    "Attention": {"logsumexp": _Rule(_per_query)},
    "LSTM": {"gates": _Rule(_per_step, None)},
    "GRU": {"gates": _Rule(_per_step, None)},
}
