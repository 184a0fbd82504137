"""Attributes of nodes as plain Python values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat_cli.core.operators import AttributeValue

if TYPE_CHECKING:
    import onnx


def plain_attributes(node: onnx.NodeProto) -> dict[str, AttributeValue]:
    """Return a node's plain attributes: numbers, strings and lists.

    Tensors, graphs and types are left out.
    """
    plain = {}
    for attribute in node.attribute:
        value = _plain(attribute)
        if value is not None:
            plain[attribute.name] = value
    return plain


def _plain(attribute: onnx.AttributeProto) -> AttributeValue | None:
    kinds = type(attribute)
    match attribute.type:
        case kinds.INT:
            return attribute.i
        case kinds.FLOAT:
            return attribute.f
        case kinds.STRING:
            return attribute.s.decode(errors="replace")
        case kinds.INTS:
            return tuple(attribute.ints)
        case kinds.FLOATS:
            return tuple(attribute.floats)
        case kinds.STRINGS:
            return tuple(text.decode(errors="replace") for text in attribute.strings)
    return None


def attribute_of(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    """Return the attribute of this name, or None if absent."""
    return next((attribute for attribute in node.attribute if attribute.name == name), None)


def integer_attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    """Return an integer attribute, or `default` if absent."""
    attribute = attribute_of(node, name)
    return default if attribute is None else attribute.i


def integers_attribute(node: onnx.NodeProto, name: str) -> tuple[int, ...]:
    """Return a list attribute; empty if absent."""
    attribute = attribute_of(node, name)
    return () if attribute is None else tuple(attribute.ints)
