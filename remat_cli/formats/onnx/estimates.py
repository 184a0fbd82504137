"""Estimated sizes, with the reason for each.

An estimate is needed if neither the file nor its operator sets give a size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from remat_cli.formats.onnx.sized_graph import SizedNode
from remat_cli.formats.onnx.structure import Node
from remat_cli.formats.onnx.values import SequenceType, TensorType, Values, ValueType, checked
from remat_cli.units import format_names

# The reasons for an estimate.
UNKNOWN_OP = "not known to onnx, and sized like the largest input where neither the file nor a given shape says"
NO_SHAPE_RULE = (
    "sized like the largest input, as onnx does not infer its shape and neither the file nor a given shape says"
)
AFTER_ESTIMATE = "sized like the largest input, as the shapes it reads are estimates themselves"
FROM_BODY = "control flow, whose memory is estimated from its bodies"
STRINGS = "strings, counted 32 bytes each without their text"
NO_TENSOR = "neither tensors nor sequences of tensors, and sized like the largest input"

_SHOWN = 5
# Reasons for sizing results like an input, which is no bound on their memory.
_GUESSES = (UNKNOWN_OP, NO_SHAPE_RULE, AFTER_ESTIMATE, NO_TENSOR)


def reads_guess(node: Node, values: Values) -> bool:
    """Whether the size of an input of the node is an estimate."""
    return any(values[name].guessed for name in node.reads)


def largest_read(node: Node, values: Values) -> ValueType | None:
    """Return the type of the largest activation that a node reads.

    Without activations, return that of its largest input.
    """
    inputs = [values[name] for name in node.reads if values[name].type.is_sized]
    candidates = [value for value in inputs if value.is_activation] or inputs
    return max((value.type for value in candidates), key=lambda one: one.bytes, default=None)


def sized_as(template: ValueType, shape: tuple[int, ...], where: str) -> ValueType:
    """Return the type with this shape.

    For a sequence, `shape` is that of all its elements taken together.

    Raises:
        GraphError: no tensor can have the shape; `where` names the tensor.
    """
    whole = checked(TensorType(template.element, shape), where)
    return whole if isinstance(template, TensorType) else replace(template, total_bytes=whole.bytes)


def sized_like(template: ValueType, like: ValueType) -> ValueType:
    """Return the type with another type's size, but its own element type."""
    if isinstance(template, SequenceType) or isinstance(like, SequenceType):
        return SequenceType(template.element, like.bytes)
    return TensorType(template.element, like.shape)


def unsized(template: ValueType) -> ValueType:
    """Return the type without its size."""
    if isinstance(template, SequenceType):
        return replace(template, total_bytes=None)
    return TensorType(template.element, None)


def guesses(nodes: Iterable[SizedNode], values: Values, estimated: Mapping[str, str]) -> list[Node]:
    """Return the nodes whose own results are guessed.

    Nodes that only follow from a guess are left out.
    """
    return [
        one.node
        for one in nodes
        if estimated.get(one.node.name) in _GUESSES and any(values[name].guessed for name in one.node.outputs)
    ]


def in_words(estimated: Mapping[str, str]) -> str:
    """List the estimated ops by reason: the first names, then the reason."""
    names: dict[str, list[str]] = {}
    for name, reason in estimated.items():
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{format_names(ops, _SHOWN)} ({reason})" for reason, ops in names.items())
