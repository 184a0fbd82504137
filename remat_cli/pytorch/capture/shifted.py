"""Losses of scores without the last token, as language models shift their labels, computed on all tokens.

A slice leaves tokens that no longer line up with the rows that made them, and bounds a region in parts. The loss of all
tokens is the same if those that were left out have the label that is ignored: they add nothing, and their gradients are
zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx

from remat_cli.pytorch.capture.ops import arguments, update_value
from remat_cli.pytorch.capture.rows_first import UNREDUCED, VIEWS, add_like

_aten = torch.ops.aten
_SAME_VALUES = (*VIEWS, _aten.clone.default, _aten.detach.default, _aten.alias.default)
_CAST = _aten._to_copy.default


@dataclass(frozen=True)
class _Shifted:
    """A loss of the labels of some tokens.

    Attributes:
        loss: the loss.
        softmax: makes what the loss reads.
        scores: scores of all tokens.
        missing: tokens without a label, before and after those with one.
        copies: nodes with the values of the softmax.
        back: gradients of the loss, and those of the softmax.
        ends: gradients of all scores.
    """

    loss: fx.Node
    softmax: fx.Node
    scores: fx.Node
    missing: tuple[int, int]
    copies: tuple[fx.Node, ...]
    back: tuple[fx.Node, ...]
    ends: tuple[fx.Node, ...]


def without_shifts(graph: fx.Graph) -> None:
    """Compute losses of shifted labels on all tokens."""
    for node in list(graph.nodes):
        if node.target is _aten.nll_loss_forward.default and (pattern := _shifted(node)) is not None:
            _compute_on_all(graph, pattern)


def _shifted(loss: fx.Node) -> _Shifted | None:
    """Return a loss with its softmax, slice and gradients; None where it reads no slice, or others read it, too."""
    given = arguments(loss)
    softmax = given["self"]
    if (
        given["reduction"] == UNREDUCED
        or given["weight"] is not None
        or softmax.target is not _aten._log_softmax.default
    ):
        return None
    (*_, cut) = _derivation(softmax.args[0])
    if cut.target is not _aten.slice.Tensor:
        return None
    scores, shape = arguments(cut)["self"], tuple(cut.meta["val"].shape)
    whole, dim = scores.meta["val"], arguments(cut)["dim"] % len(shape)
    is_of_tokens = len(shape) > 1 and dim == len(shape) - 2 and arguments(cut)["step"] == 1
    flat = (prod(shape[:-1]), shape[-1])
    if not is_of_tokens or tuple(softmax.meta["val"].shape) != flat or softmax.args[1] % 2 != 1:
        return None
    if not whole.is_contiguous() or not given["target"].meta["val"].is_contiguous():
        return None
    start, _, _ = slice(arguments(cut)["start"], arguments(cut)["end"]).indices(whole.shape[dim])
    copies = _copies(softmax)
    readers = [user for copy in (softmax, *copies) for user in copy.users if user not in copies]
    losses = [node for node in readers if node.target is _aten.nll_loss_backward.default]
    back = [node for node in readers if node.target is _aten._log_softmax_backward_data.default]
    if {*readers} != {loss, *losses, *back} or any({*node.users} - {*back} for node in losses):
        return None
    ends: list[fx.Node] = []
    for node in back:
        if node.args[0] not in losses:
            return None
        derived = _copies(node, casts=True)
        lasts = [user for copy in (node, *derived) for user in copy.users if user not in derived]
        if any(last.target is not _aten.slice_backward.default for last in lasts):
            return None
        if any(tuple(last.args[1:]) != (list(whole.shape), *_place(cut)) for last in lasts):
            return None
        ends += lasts
    missing = (start, whole.shape[dim] - start - shape[dim])
    return _Shifted(loss, softmax, scores, missing, copies, (*losses, *back), tuple(ends))


def _place(cut: fx.Node) -> tuple[Any, ...]:
    given = arguments(cut)
    return given["dim"], given["start"], given["end"], given["step"]


def _derivation(node: fx.Node) -> list[fx.Node]:
    """Return a node and its sources through views, copies and casts, back to the first."""
    sources = [node]
    while sources[-1].target in (*_SAME_VALUES, _CAST):
        sources.append(sources[-1].args[0])  # type: ignore[arg-type]
    return sources


def _copies(node: fx.Node, *, casts: bool = False) -> tuple[fx.Node, ...]:
    """Return the views and copies of a node, and of those; with `casts`, in another type, too."""
    targets = (*_SAME_VALUES, _CAST) if casts else _SAME_VALUES
    copies: dict[fx.Node, None] = {}
    front = [node]
    while front:
        new = [user for user in front.pop().users if user.target in targets and user not in copies]
        copies.update(dict.fromkeys(new))
        front += new
    return tuple(copies)


def _compute_on_all(graph: fx.Graph, pattern: _Shifted) -> None:
    loss, scores = pattern.loss, pattern.scores
    given, whole = arguments(loss), scores.meta["val"]
    rows = prod(whole.shape[:-1])
    (*before, _) = _derivation(pattern.softmax.args[0])  # type: ignore[arg-type]
    with graph.inserting_before(pattern.softmax):
        flat = add_like(graph, pattern.softmax, _aten.view.default, (scores, [rows, whole.shape[-1]]), {}, "tokens")
        for cast in (node for node in reversed(before) if node.target is _CAST):
            flat = add_like(graph, cast, _CAST, (flat,), cast.kwargs, "tokens")
    labels, kept = given["target"], whole.shape[-2] - sum(pattern.missing)
    with graph.inserting_before(loss):
        lines = add_like(graph, loss, _aten.view.default, (labels, [-1, kept]), {}, "lines")
        padding = (lines, list(pattern.missing), given["ignore_index"])
        padded = add_like(graph, loss, _aten.constant_pad_nd.default, padding, {}, "padded")
        targets = add_like(graph, loss, _aten.view.default, (padded, [rows]), {}, "targets")
    shifted = pattern.softmax.args[0]
    pattern.softmax.update_arg(0, flat)
    _erase_up_to(shifted, scores)  # type: ignore[arg-type]
    for node in (loss, *pattern.back):
        node.replace_input_with(labels, targets)
    for node in (*pattern.back, loss):
        for copy in pattern.copies:
            node.replace_input_with(copy, pattern.softmax)
    for node in (pattern.softmax, *pattern.back):
        update_value(node)
    for end in pattern.ends:
        (*after, source) = _derivation(end.args[0])  # type: ignore[arg-type]
        with graph.inserting_before(end):
            value = source
            for cast in (node for node in reversed(after) if node.target is _CAST):
                value = add_like(graph, cast, _CAST, (value,), cast.kwargs, "tokens")
            view = add_like(graph, end, _aten.view.default, (value, list(whole.shape)), {}, "tokens")
        end.replace_all_uses_with(view)
        _erase_up_to(end, source)
    for copy in reversed(pattern.copies):
        if not copy.users:
            graph.erase_node(copy)


def _erase_up_to(end: fx.Node, source: fx.Node) -> None:
    """Erase a node that nothing reads, and the views before it up to a source."""
    while end is not source and not end.users:
        before = end.args[0]
        end.graph.erase_node(end)
        end = before  # type: ignore[assignment]
