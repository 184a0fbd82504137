"""Dropout that can run again: the mask is drawn once, and applied any number of times.

torch draws the mask and applies it in one op, which must run only once. Here the mask is drawn alone. The op that
applies it in torch's backward pass applies it in the forward pass, too, and gives eager's bits with eager's scale.
"""

from __future__ import annotations

import torch
from torch import fx

from remat_cli.pytorch.capture.ops import arguments, draws, is_item
from remat_cli.pytorch.unstable.dispatch import without_modes

_aten = torch.ops.aten


def apply_masks_apart(graph: fx.Graph) -> None:
    """Change a joint graph so that readers of dropout's result read its input with the mask reapplied."""
    for node in graph.find_nodes(op="call_function", target=_aten.native_dropout.default):
        items = {user.args[1]: user for user in node.users if is_item(user)}
        if draws(node) and items.keys() == {0, 1} and not isinstance(arguments(node)["p"], fx.Node):
            _apply_apart(graph, node, items[0], items[1])


def _apply_apart(graph: fx.Graph, dropout: fx.Node, result: fx.Node, mask: fx.Node) -> None:
    operands = arguments(dropout)
    scale = _scale(1.0 - operands["p"], result.meta["val"])
    for user in tuple(mask.users):
        if user.target is _aten.native_dropout_backward.default:
            user.update_arg(2, scale)
    later = max(result, mask)  # the one that stands later in the graph
    with graph.inserting_after(later):
        applied = graph.create_node(
            "call_function",
            _aten.native_dropout_backward.default,
            (operands["input"], mask, scale),
            name=f"{dropout.name}_applied",
        )
    value = result.meta["val"]
    # Views of the result share the memory of what takes its place; what dropout itself returns has memory of its own.
    applied.meta = dict(result.meta)
    with value.fake_mode:
        dropout.meta["val"] = (torch.empty_like(value), *dropout.meta["val"][1:])
    result.replace_all_uses_with(applied)
    graph.erase_node(result)


def _scale(kept: float, result: torch.Tensor) -> float:
    """Return eager's factor of kept elements.

    On the CPU eager divides a mask of the result's type, which rounds otherwise than division in Python.
    """
    if kept == 0:
        return 0.0
    if result.device.type != "cpu":
        return 1.0 / kept
    with without_modes():
        return torch.ones((), dtype=result.dtype).div_(kept).item()
