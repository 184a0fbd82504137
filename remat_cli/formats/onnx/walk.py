"""Walks over a model's bodies, nodes and tensors at any depth.

Bodies are those of If, Loop and Scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def bodies_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the bodies of a node, in the order of its attributes."""
    bodies: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        bodies.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)
    return bodies


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and the nodes of their bodies."""
    for node in nodes:
        yield node
        for body in bodies_of(node):
            yield from all_nodes(body.node)


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the bodies of its nodes."""
    yield graph
    for node in all_nodes(graph.node):
        yield from bodies_of(node)
