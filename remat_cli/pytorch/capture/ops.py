"""The kinds of a joint graph's nodes, and their operands by name.

A node may be a view, random, or have effects.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from remat_cli.pytorch.unstable.ops import OpOverload, name_of, schema_of
from remat_cli.pytorch.unstable.tensors import storage_key

# Arguments that say how likely a random op is to change anything: at 0 it draws nothing.
_CHANCES = ("dropout_p", "p", "dropout")
# Collectives must be issued by all processes in the same order; these, and what has effects, run exactly once.
_ONCE = ("_c10d_functional", "c10d", "c10d_functional", "_dtensor", "fsdp")

# Marks a node that may write its result into the memory of its first operand.
IN_PLACE = "remat in place"
# Says of a node which part of a region it runs.
PART = "remat part"


def tensors_of(value: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors in a node's result, in order."""
    if isinstance(value, torch.Tensor):
        return (value,)
    return tuple(item for item in value if isinstance(item, torch.Tensor)) if isinstance(value, tuple | list) else ()


def value_of(target: Any, args: Any, kwargs: Any, like: fx.Node) -> Any:
    """Return the results of an op on tensors without data.

    Args:
        target: the op.
        args: arguments, which may have nodes.
        kwargs: keyword arguments, likewise.
        like: a node whose tensors are of the same mode.
    """
    real = map_arg((args, kwargs), lambda node: node.meta["val"])
    (first, *_) = tensors_of(like.meta["val"])
    with first.fake_mode:  # type: ignore[attr-defined]
        return target(*real[0], **real[1])


def layouts_of(value: Any) -> list[tuple[Any, ...]]:
    """Return shape, strides, type and device of the tensors of a value."""
    return [(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors_of(value)]


def update_value(node: fx.Node) -> None:
    """Compute a node's value from its present operands."""
    node.meta["val"] = value_of(node.target, node.args, node.kwargs, node)


def is_item(node: fx.Node) -> bool:
    """Return whether a node picks one of several results."""
    return node.op == "call_function" and node.target is operator.getitem


def is_view(node: fx.Node) -> bool:
    """Return whether a node's results all share memory with its inputs.

    Such a node is derived again for each reader.
    """
    if node.op != "call_function" or is_item(node) or has_effects(node):
        return False
    read = {storage_key(tensor) for source in node.all_input_nodes for tensor in tensors_of(source.meta.get("val"))}
    written = {storage_key(tensor) for tensor in tensors_of(node.meta.get("val"))}
    return bool(written) and written <= read


def has_effects(node: fx.Node) -> bool:
    """Tell whether a node does more than return results: it changes an argument, communicates, or cannot be known."""
    target = node.target
    if isinstance(target, OpOverload):
        return schema_of(target).is_mutable or not schema_of(target).returns or communicates(node)
    return not is_item(node)  # a higher-order op: what is inside is not looked into


def communicates(node: fx.Node) -> bool:
    """Tell whether a node has all ranks take part."""
    return is_between_ranks(node.target) and not waits(node)


def waits(node: fx.Node) -> bool:
    """Return whether a node waits for communication between ranks.

    It returns its input, and may wait twice.
    """
    return is_between_ranks(node.target) and name_of(node.target) == "wait_tensor"


def is_between_ranks(op: Any) -> bool:
    """Tell whether an op is one of those by which ranks communicate."""
    return isinstance(op, OpOverload) and op.namespace in _ONCE


def draws(node: fx.Node) -> bool:
    """Tell whether a node draws random numbers from torch's generator."""
    return draws_with(node.target, arguments(node))


def draws_with(op: Any, operands: Mapping[str, Any]) -> bool:
    """Tell whether an op draws random numbers from torch's generator when it gets these operands, by name."""
    if torch.Tag.nondeterministic_seeded not in getattr(op, "tags", ()):
        return False
    chances = [operands[name] for name in _CHANCES if name in operands]
    return not chances or any(not isinstance(chance, float | int) or chance > 0 for chance in chances)


def arguments(node: fx.Node) -> dict[str, Any]:
    """Return a node's arguments by their names in the op's schema, defaults among them; empty where it has none."""
    return named_arguments(node.target, node.args, node.kwargs)


def named_arguments(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return an op's arguments by their names in its schema, defaults among them; empty where it has none."""
    if not isinstance(op, OpOverload):
        return {}
    declared = schema_of(op).arguments
    given = dict(zip((argument.name for argument in declared), args, strict=False)) | dict(kwargs)
    return {argument.name: given.get(argument.name, argument.default_value) for argument in declared}


def numbered(value: Any) -> Any:
    """Return an argument with the values of nodes that are numbers: sizes that differ between calls."""
    return map_arg(value, lambda node: node.meta["val"] if isinstance(node.meta.get("val"), int | float) else node)


def nodes_in(value: Any) -> Iterator[fx.Node]:
    """Yield the nodes in an argument, lists and dicts looked into."""
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from nodes_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from nodes_in(item)


def short_name(node: fx.Node) -> str:
    """Return the kind of op, without its overload: "aten.addmm"."""
    if isinstance(node.target, OpOverload):
        return f"{node.target.namespace}.{name_of(node.target)}"
    return str(getattr(node.target, "__name__", node.target))
