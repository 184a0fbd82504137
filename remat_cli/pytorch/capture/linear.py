"""Gradients that are a multiple of one number: the gradient of a loss, which comes in when all else is known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from remat_cli.pytorch.capture.joint_capture import tangents_of
from remat_cli.pytorch.capture.mutation import is_backward
from remat_cli.pytorch.capture.ops import arguments, is_item, is_view, nodes_in, short_name, tensors_of

# Ops of one tensor that are linear in it.
_UNARY = ("neg", "clone", "_to_copy", "sum", "mean", "constant_pad_nd", "select_backward", "slice_backward", "cat")


@dataclass(frozen=True, eq=False)
class GradientFactor:
    """A number that all gradients in a region are a multiple of.

    Attributes:
        value: the number.
        before: ops that compute the region's input from the number, in order.
        entering: the value that the region reads.
        known: other values that these ops read.
        multiples: values that are a multiple of the number; a region's other ops of the backward pass make none.
    """

    value: fx.Node
    before: tuple[fx.Node, ...]
    entering: frozenset[fx.Node]
    known: frozenset[fx.Node]
    multiples: frozenset[fx.Node]


def factor_of(graph: fx.Graph, members: Sequence[fx.Node]) -> GradientFactor | None:
    """Return the number that all gradients in a region are a multiple of; None where there is none.

    Of gradients in float16 there is none: their factor keeps them within its range.

    Args:
        graph: the joint graph.
        members: the ops of the region.
    """
    back = [node for node in members if is_backward(node)]
    if not back or len(back) == len(members) or any(_is_half(node) for node in back):
        return None
    inside = {value for node in members for value in (node, *(user for user in node.users if is_item(user)))}
    entering = {s for node in back for s in node.all_input_nodes if s not in inside and is_backward(s)}
    for before in (_up_to_tangent(graph, entering, inside), [*entering][:1] if len(entering) == 1 else None):
        if before and (factor := _factor(graph, before, entering, back)) is not None:
            return factor
    return None


def _factor(
    graph: fx.Graph, before: Sequence[fx.Node], entering: Collection[fx.Node], back: Sequence[fx.Node]
) -> GradientFactor | None:
    value, *others = before
    if len(tensors_of(value.meta.get("val"))) != 1 or value.meta["val"].dim():
        return None
    multiples = {value}
    for node in graph.nodes:
        if (node in others or node in back or is_item(node)) and not multiples.isdisjoint(node.all_input_nodes):
            if not _is_linear(node, multiples):
                return None
            multiples.add(node)
    known = {s for node in others for s in node.all_input_nodes if s is not value and s not in others}
    in_order = tuple(node for node in graph.nodes if node in others)
    return GradientFactor(value, in_order, frozenset(entering), frozenset(known), frozenset(multiples))


def _up_to_tangent(graph: fx.Graph, entering: Collection[fx.Node], inside: Collection[fx.Node]) -> list[fx.Node] | None:
    """Return the only incoming gradient, and the ops from there to a region.

    None if there are several, or if their results depend on the region.
    """
    after = set(inside)
    for node in graph.nodes:
        if not after.isdisjoint(node.all_input_nodes):
            after.add(node)
    tangents, ops, front = set[fx.Node](), dict[fx.Node, None](), list(entering)
    outside = set(tangents_of(graph))
    while front:
        node = front.pop()
        if node in outside:
            tangents.add(node)
        elif node in after:
            return None
        elif node not in ops:
            ops[node] = None
            front += [source for source in node.all_input_nodes if is_backward(source) or source in outside]
    return [*tangents, *ops] if len(tangents) == 1 else None


def _is_half(node: fx.Node) -> bool:
    return any(value.dtype is torch.float16 for value in tensors_of(node.meta.get("val")))


def _is_linear(node: fx.Node, multiples: Collection[fx.Node]) -> bool:
    """Tell whether an op gives a multiple where some of its operands are multiples of a number."""
    if is_item(node) or is_view(node):
        return True
    name = short_name(node).removeprefix("aten.")
    given = arguments(node)
    operands = [key for key, value in given.items() if any(item in multiples for item in nodes_in(value))]
    if name in ("mul", "mm", "bmm"):
        return len(operands) == 1 and len(set(nodes_in(list(given.values())))) <= 2
    if name == "div":
        return operands == ["self"]
    if name in ("add", "sub"):
        return operands == ["self", "other"]
    if name == "cat":
        return all(item in multiples for item in nodes_in(given["tensors"]))
    if name == "where":
        others = [given[key] for key in ("self", "other") if key not in operands]
        return "condition" not in operands and all(_is_zero(other) for other in others)
    if name == "masked_fill":
        return operands == ["self"] and _is_zero(given["value"])
    if name.endswith(("_backward", "_backward_data")):
        return operands == [next(iter(given))]
    return name in _UNARY and operands == [next(iter(given))] and not given.get("value")


def _is_zero(value: object) -> bool:
    if not isinstance(value, fx.Node):
        return isinstance(value, int | float) and value == 0
    name = short_name(value)
    filled = name in ("aten.full", "aten.full_like", "aten.scalar_tensor") and bool(value.args) and value.args[-1] == 0
    return name in ("aten.zeros", "aten.zeros_like") or bool(filled)
