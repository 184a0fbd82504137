"""Inputs that a step changes: ops that may read the old value after the change read a copy of it.

torch writes new values into mutated inputs (running statistics of batch norm, a moving average) at the end of the
forward pass. An op that reads the old value must not run again after that. Stock torch moves such reads past the change
and computes wrong gradients (pytorch#197039).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from remat_cli.errors import GraphError
from remat_cli.pytorch.capture.joint_capture import outputs_of, tangents_of
from remat_cli.pytorch.capture.op_properties import properties_of
from remat_cli.pytorch.capture.ops import arguments, has_effects, is_item, tensors_of
from remat_cli.pytorch.capture.places import source_of
from remat_cli.pytorch.capture.views import follow_operands, views_and_items
from remat_cli.pytorch.unstable.joint_graphs import input_index, mutated_input, output_descriptions
from remat_cli.pytorch.unstable.ops import OpOverload, schema_of

_aten = torch.ops.aten

# Marks a node that copies an input's old value; says the name of the input.
OLD_VALUE_OF = "remat old value of"


def is_copy(node: fx.Node) -> bool:
    """Tell whether a node writes a new value into an input."""
    return node.target is _aten.copy_.default


def is_backward(node: fx.Node) -> bool:
    """Tell whether a node belongs to the backward pass."""
    return str(node.meta.get("partitioner_tag", "")).endswith("backward")


def mark_backward(graph: fx.Graph) -> None:
    """Mark nodes that depend on incoming gradients as backward.

    torch marks the nodes that autograd itself runs, and leaves out the backward of a `torch.autograd.Function`.
    """
    after = set(tangents_of(graph))
    for node in graph.nodes:
        if node.op == "call_function" and (is_backward(node) or not after.isdisjoint(node.all_input_nodes)):
            after.add(node)
            if not is_backward(node):
                node.meta["partitioner_tag"] = "is_backward"


@dataclass(frozen=True)
class _Change:
    """An input that changes.

    Attributes:
        primal: the input.
        copy: the node that writes the new value; None where torch does so after the forward pass.
        slots: positions among the graph's outputs that hold the new value.
    """

    primal: fx.Node
    copy: fx.Node | None
    slots: frozenset[int]


def keep_old_values(graph: fx.Graph) -> None:
    """Change a joint graph so that old values of mutated inputs can be read at any time.

    Nodes that copy an old value are marked with `OLD_VALUE_OF`.

    Raises:
        GraphError: an op changes something that is not an input.
    """
    _forget_unread_statistics(graph)
    views = views_and_items(graph)
    has_copies = False
    first_backward = next((node for node in graph.nodes if is_backward(node) and node.op == "call_function"), None)
    for change in _changes(graph):
        readers = [user for user in change.primal.users if user is not change.copy and _escapes(user, change)]
        if not readers:
            continue
        order = {node: place for place, node in enumerate(graph.nodes)}
        before = min((*readers, *([] if first_backward is None else [first_backward])), key=order.__getitem__)
        copy, has_copies = _copied(graph, change.primal, before), True
        for reader in readers:
            reader.replace_input_with(change.primal, copy)
    for view in views if has_copies else ():
        follow_operands(view)


def _changes(graph: fx.Graph) -> list[_Change]:
    changes = [_Change(node.args[0], node, frozenset()) for node in graph.nodes if is_copy(node)]
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.target, OpOverload) and not is_copy(node):
            _check_changes_nothing_else(node)
    for change in changes:
        if change.primal.op != "placeholder" and change.copy is not None:
            raise _changes_inside(change.copy)
    slots: dict[int, set[int]] = {}
    for slot, description in enumerate(output_descriptions(graph)):
        if (index := mutated_input(description)) is not None:
            slots.setdefault(index, set()).add(slot)
    primals = {input_index(node): node for node in graph.find_nodes(op="placeholder")}
    for index, positions in slots.items():
        if index not in primals:
            raise GraphError(
                "the step changes an input in place that shares its memory with another one",
                hint="change a copy (clone) of it",
            )
        changes.append(_Change(primals[index], None, frozenset(positions)))
    return changes


def _check_changes_nothing_else(node: fx.Node) -> None:
    schema = schema_of(node.target)
    if schema.is_mutable and node.target.namespace == "aten":  # type: ignore[union-attr]
        raise _changes_inside(node)


def _changes_inside(node: fx.Node) -> GraphError:
    at = f" at {place}" if (place := source_of(node)) else ""
    return GraphError(f"op {node.name!r}{at} works in place on what is no input of the step", hint="do it out of place")


def _escapes(reader: fx.Node, change: _Change) -> bool:
    """Return whether old content reaches more than the new value.

    `reader` reads the old content.
    """
    front: list[tuple[fx.Node, fx.Node]] = [(reader, change.primal)]
    seen: set[tuple[fx.Node, fx.Node]] = set()
    while front:
        node, source = front.pop()
        if (node, source) in seen or node is change.copy:
            continue
        seen.add((node, source))
        if node.op == "output":
            outputs = enumerate(outputs_of(node.graph))
            if any(value is source and slot not in change.slots for slot, value in outputs):
                return True
        elif is_backward(node) or has_effects(node):
            return True
        else:
            front.extend((user, dependent) for dependent in _dependent(node, source) for user in dependent.users)
    return False


def _dependent(node: fx.Node, source: fx.Node) -> list[fx.Node]:
    """Return the results of a node that depend on one argument."""
    results = properties_of(node.target).statistics
    operands = arguments(node)
    read_as = [name for name, value in operands.items() if value is source]
    if operands.get("training", True) is not True or not read_as or not results.keys() >= set(read_as):
        return [node]
    dependent = {results[name] for name in read_as}
    return [item for item in node.users if is_item(item) and item.args[1] in dependent]


def _forget_unread_statistics(graph: fx.Graph) -> None:
    """Remove unread running statistics from backward ops."""
    for node in graph.nodes:
        flag = properties_of(node.target).ignores_statistics_if
        if flag is not None and arguments(node)[flag] is True:
            names = [argument.name for argument in schema_of(node.target).arguments]
            unread = {names.index(name) for name in ("running_mean", "running_var")}
            node.args = tuple(None if place in unread else value for place, value in enumerate(node.args))


def _copied(graph: fx.Graph, primal: fx.Node, before: fx.Node) -> fx.Node:
    """Insert a node that copies an input's value, in the forward pass."""
    (value,) = tensors_of(primal.meta["val"])
    with graph.inserting_before(before):
        copy = graph.create_node("call_function", _aten.clone.default, (primal,), name=f"{primal.name}_before")
    with value.fake_mode:  # type: ignore[attr-defined]
        copy.meta["val"] = value.detach().clone()
    copy.meta["partitioner_tag"] = "is_forward"
    copy.meta[OLD_VALUE_OF] = primal.name
    return copy
