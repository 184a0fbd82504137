"""Ops as the first operator sets wrote them, in the form of a later set: onnx infers shapes for that form only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from remat_cli.formats.onnx.attributes import attribute_of, integer_attribute
from remat_cli.formats.onnx.values import Values

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class LaterForm:
    """A node in the form of a later operator set.

    Attributes:
        node: with the inputs and outputs of the node as it is, and inputs for `constants` behind the first one.
        version: of the operator set.
        constants: further inputs by name, which were attributes or had another form.
    """

    node: onnx.NodeProto
    version: int
    constants: Mapping[str, Array] = field(default_factory=dict)


def later_form(node: onnx.NodeProto, version: int, values: Values) -> LaterForm | None:
    """Return a node of ONNX's own set in a later form; None where its form of that version needs none.

    Args:
        node: the node.
        version: of the operator set that the file imports.
        values: what is known of the inputs.
    """
    last, write = _FORMS.get(node.op_type, (0, None))
    return write(node, values) if write is not None and version <= last else None


def _reshape(node: onnx.NodeProto, values: Values) -> LaterForm | None:
    shape = attribute_of(node, "shape")
    return None if shape is None else _with_constant(node, 5, np.array(shape.ints, dtype=np.int64))


def _cast(node: onnx.NodeProto, values: Values) -> LaterForm | None:
    to = attribute_of(node, "to")
    name = "" if to is None else to.s.decode(errors="replace").upper()
    if name not in TensorProto.DataType.keys():  # noqa: SIM118 - this is no mapping
        return None
    return LaterForm(_edited(node, to=TensorProto.DataType.Value(name)), 6)


def _pad(node: onnx.NodeProto, values: Values) -> LaterForm | None:
    paddings = attribute_of(node, "paddings")
    return None if paddings is None else LaterForm(_edited(node, pads=list(paddings.ints)), 2)


def _concat(node: onnx.NodeProto, values: Values) -> LaterForm | None:
    return LaterForm(_edited(node, axis=integer_attribute(node, "axis", 1)), 4)


def _upsample(node: onnx.NodeProto, values: Values) -> LaterForm | None:
    scales = [attribute_of(node, name) for name in ("height_scale", "width_scale")]
    factors = [1.0, 1.0, *(scale.f for scale in scales if scale is not None)]
    if len(factors) < 4:  # batch, channels, height, width
        listed = attribute_of(node, "scales")
        if listed is None:
            return None
        factors = list(listed.floats)
    return _with_constant(node, 9, np.array(factors, dtype=np.float32))


def _tile(node: onnx.NodeProto, values: Values) -> LaterForm | None:
    shape = values[node.input[0]].type.shape
    tiles, axis = (values[name].data for name in node.input[1:3])
    if shape is None or tiles is None or axis is None or not 0 <= int(axis) < len(shape):
        return None
    repeats = np.ones(len(shape), dtype=np.int64)
    repeats[int(axis)] = int(tiles)
    first = _edited(node)
    del first.input[1:]
    return _with_constant(first, 6, repeats)


# By op: the last operator set that has the old form, and what writes it in a later one.
_FORMS: Mapping[str, tuple[int, Callable[[onnx.NodeProto, Values], LaterForm | None]]] = {
    "Reshape": (4, _reshape),
    "Cast": (5, _cast),
    "Pad": (1, _pad),
    "Concat": (3, _concat),
    "Upsample": (8, _upsample),
    "Tile": (5, _tile),
}


def _with_constant(node: onnx.NodeProto, version: int, constant: Array) -> LaterForm:
    """Return a node with one more input, and without attributes, which that takes the place of."""
    proto = _edited(node)
    del proto.attribute[:]
    name = f"{node.output[0]}__{node.op_type}"
    proto.input.append(name)
    return LaterForm(proto, version, {name: constant})


def _edited(node: onnx.NodeProto, **attributes: Any) -> onnx.NodeProto:
    """Return a node with these attributes alone."""
    proto = type(node)()
    proto.CopyFrom(node)
    del proto.attribute[:]
    proto.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return proto
