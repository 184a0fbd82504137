"""Types of the results of sequence and optional ops.

onnx's own inference loses the shapes inside sequences. A sequence has the size of the inserted tensors, and a shape of
its items if they all have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from remat_cli.formats.onnx.attributes import attribute_of, integer_attribute
from remat_cli.formats.onnx.dtypes import BOOL, INT64, element_type
from remat_cli.formats.onnx.values import SequenceType, TensorType, Value, ValueType, value_type

if TYPE_CHECKING:
    import onnx

Inputs = Sequence[Value | None]
Rule = Callable[["onnx.NodeProto", Inputs], ValueType | None]


def _type(inputs: Inputs, position: int) -> ValueType | None:
    value = inputs[position] if position < len(inputs) else None
    return None if value is None else value.type


def _empty(node: onnx.NodeProto, inputs: Inputs) -> ValueType | None:
    element = element_type(integer_attribute(node, "dtype", 1), f"the result of SequenceEmpty {node.name!r}")
    return SequenceType(element, 0, item=None, length=0)


def _construct(node: onnx.NodeProto, inputs: Inputs) -> ValueType | None:
    types = [value.type for value in inputs if value is not None]
    if not types:
        return None
    shapes = {one.shape for one in types}
    total = sum(one.bytes for one in types) if all(one.is_sized for one in types) else None
    return SequenceType(types[0].element, total, item=shapes.pop() if len(shapes) == 1 else None, length=len(types))


def _insert(node: onnx.NodeProto, inputs: Inputs) -> ValueType | None:
    sequence, tensor = _type(inputs, 0), _type(inputs, 1)
    if not isinstance(sequence, SequenceType) or tensor is None:
        return None
    total = None if sequence.total_bytes is None or not tensor.is_sized else sequence.total_bytes + tensor.bytes
    same = sequence.length == 0 or sequence.item == tensor.shape
    length = None if sequence.length is None else sequence.length + 1
    return SequenceType(tensor.element, total, item=tensor.shape if same else None, length=length)


def _erase(node: onnx.NodeProto, inputs: Inputs) -> ValueType | None:
    sequence = _type(inputs, 0)
    if not isinstance(sequence, SequenceType):
        return None
    # The erased tensor is unknown: if shapes differ, the size is an upper bound.
    erased = TensorType(sequence.element, sequence.item).bytes
    total = None if sequence.total_bytes is None else max(0, sequence.total_bytes - erased)
    length = None if sequence.length is None else max(0, sequence.length - 1)
    return SequenceType(sequence.element, total, item=sequence.item, length=length)


def _at(node: onnx.NodeProto, inputs: Inputs) -> ValueType | None:
    sequence = _type(inputs, 0)
    return TensorType(sequence.element, sequence.item) if isinstance(sequence, SequenceType) else None


def _split(node: onnx.NodeProto, inputs: Inputs) -> ValueType | None:
    tensor = _type(inputs, 0)
    if not isinstance(tensor, TensorType) or not tensor.shape:
        return None
    axis = integer_attribute(node, "axis", 0) % len(tensor.shape)
    sizes = _piece_sizes(tensor.shape[axis], inputs[1] if len(inputs) > 1 else None)
    if sizes is None:
        return SequenceType(tensor.element, tensor.bytes)
    length, size = sizes
    item = None if size is None else (*tensor.shape[:axis], size, *tensor.shape[axis + 1 :])
    if item is not None and len(inputs) < 2 and integer_attribute(node, "keepdims", 1) == 0:
        item = (*item[:axis], *item[axis + 1 :])
    return SequenceType(tensor.element, tensor.bytes, item=item, length=length)


def _piece_sizes(size: int, split: Value | None) -> tuple[int, int | None] | None:
    """Return the number of pieces and their size.

    The size is None if pieces differ; the result is None if nothing is known.
    """
    if split is None:
        return size, 1
    if split.data is None or split.data.ndim > 1:
        return None
    if split.data.ndim == 0:
        piece = int(split.data)
        return None if piece < 1 else (-(-size // piece), piece if size % piece == 0 else None)
    pieces = [int(piece) for piece in split.data]
    return len(pieces), pieces[0] if len(set(pieces)) == 1 else None


def _concatenate(node: onnx.NodeProto, inputs: Inputs) -> ValueType | None:
    sequence = _type(inputs, 0)
    if not isinstance(sequence, SequenceType):
        return None
    if sequence.item is None or sequence.length is None:
        return TensorType(sequence.element, None)
    axis = integer_attribute(node, "axis", 0)
    if integer_attribute(node, "new_axis", 0):
        axis %= len(sequence.item) + 1
        return TensorType(sequence.element, (*sequence.item[:axis], sequence.length, *sequence.item[axis:]))
    axis %= len(sequence.item) or 1
    joined = tuple(size * sequence.length if place == axis else size for place, size in enumerate(sequence.item))
    return TensorType(sequence.element, joined)


def _optional(node: onnx.NodeProto, inputs: Inputs) -> ValueType | None:
    given = _type(inputs, 0)
    declared = attribute_of(node, "type")
    if given is not None or declared is None:
        return given
    return value_type(declared.tp, {}, f"the type of Optional {node.name!r}")


def mapped(result: ValueType | None, source: ValueType) -> ValueType | None:
    """Return a result of SequenceMap with the length of its sequence.

    `result` is inferred by onnx, with the shape of an item.
    """
    if not isinstance(result, SequenceType) or not isinstance(source, SequenceType):
        return result
    if result.item is None or source.length is None:
        return result
    total = TensorType(result.element, result.item).bytes * source.length
    return replace(result, total_bytes=total, length=source.length)


def _same(node: onnx.NodeProto, inputs: Inputs) -> ValueType | None:
    return _type(inputs, 0)


SEQUENCE_RULES: Mapping[str, Rule] = {
    "SequenceEmpty": _empty,
    "SequenceConstruct": _construct,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": lambda node, inputs: TensorType(INT64, ()),
    "SplitToSequence": _split,
    "ConcatFromSequence": _concatenate,
    "Optional": _optional,
    "OptionalGetElement": _same,
    "OptionalHasElement": lambda node, inputs: TensorType(BOOL, ()),
}
