"""Sizes that have to be estimated, as neither the file nor its operator sets give them, and the reason for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from remat_cli.formats.onnx.sized_graph import SizedNode
from remat_cli.formats.onnx.structure import Node
from remat_cli.formats.onnx.values import SequenceType, TensorType, Values, ValueType, checked
from remat_cli.units import format_names

# Why an op is an estimate.
UNKNOWN_OP = "not known to onnx, and sized like the largest input where neither the file nor a given shape says"
NO_SHAPE_RULE = (
    "sized like the largest input, as onnx does not infer its shape and neither the file nor a given shape says"
)
AFTER_ESTIMATE = "sized like the largest input, as the shapes it reads are estimates themselves"
FROM_BODY = "control flow, whose memory is estimated from its bodies"
STRINGS = "strings, counted 32 bytes each without their text"
NO_TENSOR = "neither tensors nor sequences of tensors, and sized like the largest input"

_SHOWN = 5
# Reasons for which results are sized like an input: no bound on what they take.
_GUESSES = (UNKNOWN_OP, NO_SHAPE_RULE, AFTER_ESTIMATE, NO_TENSOR)


def reads_guess(node: Node, values: Values) -> bool:
    """Whether the size of something that the node reads is an estimate."""
    return any(values[name].guessed for name in node.reads)


def largest_read(node: Node, values: Values) -> ValueType | None:
    """Return the type of the largest activation that a node reads, of its largest input where it reads none."""
    inputs = [values[name] for name in node.reads if values[name].type.is_sized]
    candidates = [value for value in inputs if value.is_activation] or inputs
    return max((value.type for value in candidates), key=lambda one: one.bytes, default=None)


def sized_as(template: ValueType, shape: tuple[int, ...], where: str) -> ValueType:
    """Return the type with this shape; for a sequence, `shape` is that of all its elements taken together.

    Raises:
        GraphError: the shape cannot be that of a tensor; `where` says of which.
    """
    whole = checked(TensorType(template.element, shape), where)
    return whole if isinstance(template, TensorType) else replace(template, total_bytes=whole.bytes)


def sized_like(template: ValueType, like: ValueType) -> ValueType:
    """Return the type with the size of another one, keeping its own element type."""
    if isinstance(template, SequenceType) or isinstance(like, SequenceType):
        return SequenceType(template.element, like.bytes)
    return TensorType(template.element, like.shape)


def unsized(template: ValueType) -> ValueType:
    """Return the type without its size."""
    if isinstance(template, SequenceType):
        return replace(template, total_bytes=None)
    return TensorType(template.element, None)


def guesses(nodes: Iterable[SizedNode], values: Values, estimated: Mapping[str, str]) -> list[Node]:
    """Return the nodes whose own results are guessed, not those that only follow from a guess."""
    return [
        one.node
        for one in nodes
        if estimated.get(one.node.name) in _GUESSES and any(values[name].guessed for name in one.node.outputs)
    ]


def in_words(estimated: Mapping[str, str]) -> str:
    """Return the ops by the reason for which each is an estimate: the first few names, then the reason."""
    names: dict[str, list[str]] = {}
    for name, reason in estimated.items():
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{format_names(ops, _SHOWN)} ({reason})" for reason, ops in names.items())
