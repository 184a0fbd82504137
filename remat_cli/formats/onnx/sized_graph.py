"""The result of inference: remaining nodes, and the type of every value.

Conversion starts from this.
"""

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
        recomputable: whether a second run repeats the first result.
        unread_bytes: size of the values stored by branches that cannot run.
    """

    node: Node
    bodies: tuple[SizedGraph, ...]
    recomputable: bool
    unread_bytes: int = 0


@dataclass(frozen=True)
class SizedGraph:
    """A graph, or a body, with the type of each value.

    Attributes:
        values: every visible value; the first map has the graph's own.
        nodes: the nodes that stay ops, in an executable order.
        inputs: names of its inputs.
        outputs: names of its outputs.
        stored: names of its initializers.
        stored_bytes: size of the initializers.
        folded: nodes computed while reading, in an executable order.
    """

    values: ChainMap[str, Value]
    nodes: tuple[SizedNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stored: tuple[str, ...]
    stored_bytes: int
    folded: tuple[Node, ...]
