"""Backward passes without the work that missing gradients alone lead to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx


def without_gradients(module: fx.GraphModule, missing: Collection[str]) -> fx.GraphModule:
    """Return a backward pass that leaves out what comes of gradients that are missing.

    A gradient that comes of these alone is missing, too; added to another one, it leaves that as it is. Where an op
    makes one gradient of several, the missing ones among them are zeros.

    Args:
        module: the backward pass.
        missing: names of the inputs that are zeros, as no gradient has arrived.
    """
    absent, same = _absent(module.graph, missing)
    results = tuple(None if isinstance(value, fx.Node) and value in absent else value for value in _results(module))
    needed = _needed(module.graph, [same.get(value, value) for value in results if isinstance(value, fx.Node)], same)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder" or node in needed:
            copies[node] = graph.node_copy(node, lambda source: copies[same.get(source, source)])
    graph.output(tuple(copies[same.get(v, v)] if isinstance(v, fx.Node) else v for v in results))
    return fx.GraphModule(module, graph)


def is_tangent(node: fx.Node) -> bool:
    """Tell whether an input of a joint graph, or of its backward pass, is the gradient of a forward output."""
    return "tangents" in str(node.target)


def _absent(graph: fx.Graph, missing: Collection[str]) -> tuple[set[fx.Node], dict[fx.Node, fx.Node]]:
    """Return the nodes that come of missing gradients alone, and sums with these, by the summand that is left."""
    derived: set[fx.Node] = set()  # of gradients of outputs
    absent: set[fx.Node] = set()
    same: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            derived |= {node} if is_tangent(node) else set()
            absent |= {node} if node.name in missing else set()
            continue
        sources = [source for source in node.all_input_nodes if source in derived]
        if node.op == "output" or not sources:
            continue
        derived.add(node)
        left = [source for source in sources if source not in absent]
        if not left:
            absent.add(node)
        elif len(left) < len(sources) and _adds(node):
            same[node] = same.get(left[0], left[0])
    return absent, same


def _needed(graph: fx.Graph, results: Sequence[fx.Node], same: Mapping[fx.Node, fx.Node]) -> set[fx.Node]:
    """Return the nodes that results come of, with those that have an effect."""
    needed = set(results)
    for node in reversed(graph.nodes):
        if node.op == "output":
            continue
        sources = {same.get(source, source) for source in node.all_input_nodes}
        # A wait for a copy has no users: it runs where something else reads what it waits for.
        waits = not node.users and node.op == "call_function" and not sources.isdisjoint(needed)
        if node in needed or node.is_impure() or waits:
            needed |= {node, *sources}
    return needed


def _results(module: fx.GraphModule) -> Sequence[Any]:
    (results,) = module.graph.output_node().args
    assert isinstance(results, tuple | list)
    return results


def _adds(node: fx.Node) -> bool:
    """Tell whether a node is the plain sum of two gradients of one shape."""
    if node.target is not torch.ops.aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return False
    kinds = set()
    for part in (node, *node.args):
        value = part.meta.get("val") if isinstance(part, fx.Node) else None
        if not isinstance(value, torch.Tensor):
            return False
        kinds.add((value.shape, value.dtype))
    return len(kinds) == 1
