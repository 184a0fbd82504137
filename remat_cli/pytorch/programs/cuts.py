"""Where a pass is cut into pieces that are compiled.

A compiler orders and fuses the ops of a piece as it likes, and makes each result anew. So some ops run between pieces:
copies to and from the host, random ops, and what a region in parts writes into memory that is there. Each part is a
piece of its own, so that equal parts have equal pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import fx

from remat_cli.pytorch.capture.op_properties import OP_PROPERTIES
from remat_cli.pytorch.capture.ops import PART, draws, is_item, is_view
from remat_cli.pytorch.memory import transfers

COPIES = frozenset({transfers.offload, transfers.prefetch, transfers.wait, transfers.in_memory_of})
_WRITES = frozenset(op.in_place for op in OP_PROPERTIES.values() if op.in_place is not None)
_EMPTY = torch.ops.aten.empty_strided.default


def is_write(node: fx.Node) -> bool:
    """Return whether a node writes its result over its first operand."""
    return node.target in _WRITES


def cut_at_copies(graph: fx.Graph) -> Iterator[fx.Node | list[fx.Node]]:
    """Yield copies, and lists of the nodes between them, in order."""
    piece: list[fx.Node] = []
    for node in _run_nodes(graph):
        if node.target not in COPIES:
            piece.append(node)
            continue
        if piece:
            yield piece
            piece = []
        yield node
    if piece:
        yield piece


def cut_at_parts(graph: fx.Graph) -> Iterator[fx.Node | list[fx.Node]]:
    """Yield nodes that run by themselves, and lists of those that are compiled together, in order."""
    cutter = _Cutter()
    for node in _run_nodes(graph):
        yield from cutter.add(node)
    yield from cutter.flush()


def _run_nodes(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op in ("call_function", "get_attr")]


@dataclass
class _Cutter:
    """Gathers the nodes of a piece.

    Writes wait until the piece is complete, so that few pieces are compiled; views of what is there come before it, so
    that pieces of equal parts read operands of equal layout.

    Attributes:
        piece: nodes of the piece.
        part: number of the part that they run; None outside of parts.
        writes: writes that come after the piece.
        alone: nodes that run by themselves.
    """

    piece: list[fx.Node] = field(default_factory=list)
    part: int | None = None
    writes: list[fx.Node] = field(default_factory=list)
    alone: set[fx.Node] = field(default_factory=set)

    def add(self, node: fx.Node) -> Iterator[fx.Node | list[fx.Node]]:
        """Add a node; yield complete pieces and nodes that run alone."""
        if node.op == "get_attr":
            return
        sources, part = set(node.all_input_nodes), node.meta.get(PART)
        if is_write(node) and self.piece and part is not None and part == self.part:
            self.writes.append(node)
            return
        if is_write(node) or not sources.isdisjoint(self.writes):
            yield from self.flush()
        if is_write(node):
            yield node
        elif self.runs_alone(node):
            self.alone.add(node)
            if not sources.isdisjoint(self.piece):
                yield from self.flush()
            yield node
        elif is_view(node) and sources.isdisjoint(self.piece) and (part is not None or self.part is not None):
            yield node
        else:
            if part != self.part:
                yield from self.flush()
            self.part = part
            self.piece.append(node)

    def runs_alone(self, node: fx.Node) -> bool:
        if is_item(node):
            return node.args[0] in self.alone
        return node.target in COPIES or node.target is _EMPTY or draws(node)

    def flush(self) -> Iterator[fx.Node | list[fx.Node]]:
        """Yield the piece, and its writes."""
        if self.piece:
            yield self.piece
        yield from self.writes
        self.piece, self.writes, self.part = [], [], None
