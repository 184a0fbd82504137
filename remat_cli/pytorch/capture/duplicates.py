"""Common subexpressions: of ops that compute the same from the same operands, one is enough.

Models make the same mask in each of their layers. torch's own partitioner merges such ops, too.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import fx

from remat_cli.pytorch.capture.joint_capture import outputs_of
from remat_cli.pytorch.capture.mutation import is_backward
from remat_cli.pytorch.capture.ops import draws, has_effects, nodes_in, tensors_of
from remat_cli.pytorch.capture.views import follow_operands, views_and_items
from remat_cli.pytorch.unstable.tensors import storage_key


def merge_duplicates(graph: fx.Graph) -> None:
    """Merge equal computations in a joint graph into the first.

    Forward and backward ops are kept apart: no op gets a new read across the boundary. The caller's outputs keep memory
    of their own, as the caller may change them.
    """
    returned = set(nodes_in(outputs_of(graph)))
    held = {storage_key(value) for node in returned for value in tensors_of(node.meta.get("val"))}
    views = views_and_items(graph)
    first: dict[Hashable, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or has_effects(node) or draws(node):
            continue
        if node in views:
            follow_operands(node)
            kept = node in returned
        else:
            kept = any(storage_key(value) in held for value in tensors_of(node.meta.get("val")))
        if not kept and (same := first.setdefault(_what(node), node)) is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _what(node: fx.Node) -> Hashable:
    """Return a key that is equal for two ops if they compute the same."""
    return is_backward(node), node.target, _operand(node.args), _operand(node.kwargs)


def _operand(value: Any) -> Hashable:
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, tuple | list):
        return tuple(map(_operand, value))
    if isinstance(value, dict):
        return tuple((name, _operand(item)) for name, item in sorted(value.items()))
    return type(value), repr(value)  # 1, 1.0 and True are equal, and are not the same
