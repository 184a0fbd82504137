"""A joint graph changed so that regions in parts find its rows: without means over rows, and without detours of shape.

A mean becomes a sum and a division, as each part can add to a sum. A pointwise op between two views is computed in the
shape of its operand before the first view, so that the views cancel out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from remat_cli.pytorch.capture.mutation import is_backward
from remat_cli.pytorch.capture.ops import (
    arguments,
    draws,
    has_effects,
    is_item,
    nodes_in,
    tensors_of,
    update_value,
    value_of,
)
from remat_cli.pytorch.capture.views import follow_operands, views_and_items
from remat_cli.pytorch.unstable.ops import schema_of

_aten = torch.ops.aten
UNREDUCED, _MEAN, _SUM = range(3)  # what a loss does with the losses of its entries
VIEWS = (_aten.view.default, _aten._unsafe_view.default)
_ENTRY_LOSSES = {
    _aten.mse_loss.default: _aten.mse_loss_backward.default,
    _aten.smooth_l1_loss.default: _aten.smooth_l1_loss_backward.default,
    _aten.huber_loss.default: _aten.huber_loss_backward.default,
    _aten.binary_cross_entropy_with_logits.default: None,
}
_LABEL_LOSSES = (_aten.nll_loss_forward.default, _aten.nll_loss2d_forward.default)


def rows_first(graph: fx.Graph) -> None:
    """Change a graph so that its ops work on rows wherever they can; results are the same to rounding."""
    views = views_and_items(graph)
    for node in list(graph.nodes):
        if node.target in _LABEL_LOSSES and arguments(node)["reduction"] == _MEAN:
            _divide_labels(graph, node)
        elif node.target in _ENTRY_LOSSES and arguments(node)["reduction"] != UNREDUCED:
            _sum_entries(graph, node)
        elif node.target in _ENTRY_LOSSES.values() and arguments(node)["reduction"] == _MEAN:
            _divide_gradient(graph, node)
        elif node.target is _aten.mean.default:
            _divide_mean(graph, node)
    for node in list(graph.nodes):
        _compute_before_views(graph, node)
    for node in list(graph.nodes):
        _skip_views(node)
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op != "call_function" or node.target not in VIEWS)
    for node in graph.nodes:
        if (node in views or node.target in VIEWS) and tensors_of(node.meta.get("val")):
            follow_operands(node)


def add_like(
    graph: fx.Graph, like: fx.Node, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str
) -> fx.Node:
    """Add an op at the place where the graph inserts, in the pass of `like`."""
    node = graph.create_node("call_function", target, args, dict(kwargs), name=f"{like.name}_{what}")
    node.meta = {key: value for key, value in like.meta.items() if key not in ("val", "tensor_meta")}
    node.meta["val"] = value_of(target, args, dict(kwargs), like)
    return node


def _with(node: fx.Node, name: str, value: Any) -> None:
    """Give a node another argument."""
    place = [argument.name for argument in schema_of(node.target).arguments].index(name)
    if place < len(node.args):
        node.update_arg(place, value)
    else:
        node.update_kwarg(name, value)


def _divide_labels(graph: fx.Graph, loss: fx.Node) -> None:
    """Sum the losses of labels, and divide by the weight of all labels, which the labels alone tell."""
    items = {user.args[1]: user for user in loss.users if is_item(user)}
    given = arguments(loss)
    if 0 not in items or given["weight"] is not None or given["self"].meta["val"].dim() < 2:
        return
    total = items[0].meta["val"]
    with graph.inserting_before(loss):
        counted = add_like(graph, loss, _aten.ne.Scalar, (given["target"], given["ignore_index"]), {}, "counted")
        count = add_like(graph, loss, _aten.sum.default, (counted,), {"dtype": total.dtype}, "count")
    _with(loss, "reduction", _SUM)
    _divided(graph, items[0], count)
    if 1 in items:
        items[1].replace_all_uses_with(count)
        graph.erase_node(items[1])


def _divided(graph: fx.Graph, value: fx.Node, by: Any) -> None:
    with graph.inserting_after(value):
        target = _aten.div.Tensor if isinstance(by, fx.Node) else _aten.div.Scalar
        mean = add_like(graph, value, target, (value, by), {}, "mean")
    value.replace_all_uses_with(mean, delete_user_cb=lambda user: user is not mean)


def _sum_entries(graph: fx.Graph, loss: fx.Node) -> None:
    """Sum the losses of entries in an op of its own: of some losses, torch's sum keeps the memory of all entries."""
    is_mean = arguments(loss)["reduction"] == _MEAN
    _with(loss, "reduction", UNREDUCED)
    update_value(loss)
    with graph.inserting_after(loss):
        total = add_like(graph, loss, _aten.sum.default, (loss,), {}, "total")
    loss.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)
    if is_mean:
        _divided(graph, total, loss.meta["val"].numel())


def _divide_gradient(graph: fx.Graph, back: fx.Node) -> None:
    gradient, value = back.args[:2]
    assert isinstance(gradient, fx.Node)
    assert isinstance(value, fx.Node)
    with graph.inserting_before(back):
        share = add_like(graph, back, _aten.div.Scalar, (gradient, value.meta["val"].numel()), {}, "share")
    _with(back, "grad_output", share)
    _with(back, "reduction", _SUM)


def _divide_mean(graph: fx.Graph, mean: fx.Node) -> None:
    (value,) = mean.args
    assert isinstance(value, fx.Node)
    dtype = mean.meta["val"].dtype
    if dtype in (torch.float32, torch.float64):
        mean.target = _aten.sum.default
        _divided(graph, mean, value.meta["val"].numel())


def _compute_before_views(graph: fx.Graph, node: fx.Node) -> None:
    """Compute a pointwise op before the views of its operands."""
    shape = _shape_behind(node)
    if shape is None:
        return
    old = node.meta["val"]

    def behind(operand: fx.Node) -> fx.Node:
        return operand.args[0] if operand.target in VIEWS else operand  # type: ignore[return-value]

    node.args, node.kwargs = map_arg((node.args, node.kwargs), behind)
    update_value(node)
    with graph.inserting_after(node):
        view = add_like(graph, node, _aten.view.default, (node, list(old.shape)), {}, "viewed")
    node.replace_all_uses_with(view, delete_user_cb=lambda user: user is not view)


def _shape_behind(node: fx.Node) -> tuple[int, ...] | None:
    """Return the common shape of the operands' bases, or None."""
    tags = getattr(node.target, "tags", ())
    pointwise = torch.Tag.pointwise in tags or node.target is _aten._to_copy.default
    value = node.meta.get("val")
    if not pointwise or not isinstance(value, torch.Tensor) or draws(node) or has_effects(node):
        return None
    if node.target is _aten.clone.default or node.kwargs.get("memory_format") is not None:
        return None
    shapes: set[tuple[int, ...]] = set()
    for operand in nodes_in([*node.args, *node.kwargs.values()]):
        own = operand.meta.get("val")
        if not isinstance(own, torch.Tensor):
            return None
        if own.dim() == 0:
            continue
        if operand.target not in VIEWS or own.shape != value.shape:
            return None
        behind = operand.args[0].meta["val"]  # type: ignore[union-attr]
        if not behind.is_contiguous():
            return None
        shapes.add(tuple(behind.shape))
    return next(iter(shapes)) if len(shapes) == 1 else None


def _skip_views(node: fx.Node) -> None:
    """Derive a view of a view from the first base.

    A view with the layout of its source is replaced by the source.
    """
    while node.target in VIEWS:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if source.target not in VIEWS or not source.args[0].meta["val"].is_contiguous():  # type: ignore[union-attr]
            break
        if not is_backward(node) and is_backward(source):
            break
        node.update_arg(0, source.args[0])
    source = node.args[0] if node.target in VIEWS else None
    if isinstance(source, fx.Node) and _same_layout(source.meta["val"], node.meta["val"]):
        node.replace_all_uses_with(source)


def _same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one.shape == other.shape and one.stride() == other.stride()
    return same and one.storage_offset() == other.storage_offset() and one.dtype == other.dtype
