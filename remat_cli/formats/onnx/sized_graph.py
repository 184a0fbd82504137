"""The result of inference, which conversion begins with: the nodes that stay ops, and the type of every value."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass

from remat_cli.formats.onnx.structure import Node
from remat_cli.formats.onnx.values import Value


@dataclass(frozen=True)
class SizedNode:
    """A node that stays an op.

    Attributes:
        node: the node.
        bodies: its bodies that can run, sized: branches of If, the body of Loop or Scan.
        recomputable: whether a second run gives the result of the first.
        unread_bytes: size of what its branches store that cannot run.
    """

    node: Node
    bodies: tuple[SizedGraph, ...]
    recomputable: bool
    unread_bytes: int = 0


@dataclass(frozen=True)
class SizedGraph:
    """A graph, or a body, with the type of each value.

    Attributes:
        values: every value that is visible in it; the first of the maps holds its own.
        nodes: the nodes that stay ops, in an executable order.
        inputs: names of its inputs.
        outputs: names of its outputs.
        stored: names of its initializers.
        stored_bytes: their size.
        folded: nodes that were computed while reading, in an executable order.
    """

    values: ChainMap[str, Value]
    nodes: tuple[SizedNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stored: tuple[str, ...]
    stored_bytes: int
    folded: tuple[Node, ...]
