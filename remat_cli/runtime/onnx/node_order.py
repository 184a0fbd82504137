"""The order of a model's nodes for a sequence of computes.

It has nodes for the computes, nodes that only give constants, right before the first op that needs them, and views that
are derived again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from remat_cli.core.graph import Graph
from remat_cli.errors import GraphError
from remat_cli.formats.onnx.sized_graph import SizedGraph
from remat_cli.formats.onnx.structure import Node
from remat_cli.formats.onnx.values import Value
from remat_cli.settings import Setting


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One run of a node.

    Attributes:
        node: the node.
        position: index of the compute that the node carries out; None for an auxiliary node.
    """

    node: Node
    position: int | None


@dataclass(frozen=True)
class Runs:
    """The runs of nodes for a sequence of computes.

    Attributes:
        runs: runs in order.
        constants: results of Shape and Size, by value name; these nodes do not run.
        views: number of views derived again.
    """

    runs: tuple[NodeRun, ...]
    constants: Mapping[str, Value]
    views: int


def without_dead_ops(graph: Graph) -> Graph:
    """Return a graph without dead ops: those on which no output depends."""
    needed = set(graph.outputs)
    kept = []
    for op in reversed(graph.ops):
        if not needed.isdisjoint(op.outputs):
            kept.append(op)
            needed.update(op.inputs)
    if len(kept) == len(graph.ops):
        return graph
    made = {name for op in kept for name in op.outputs}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in made or name not in graph.producer}
    return graph.edited(tensors=tensors, ops=tuple(reversed(kept))).checked()


def runs_of(model: SizedGraph, graph: Graph, computes: Sequence[str]) -> Runs:
    """Return the runs of nodes for `computes`.

    Args:
        model: the model's graph.
        graph: the planned graph.
        computes: names of ops, each but dead ones at least once, after the producers of its inputs.

    Raises:
        GraphError: an op needs an estimated size of a value that does not exist yet.
    """
    walk = _Walk(model.values)
    walk.prepare(model, graph)
    for position, name in enumerate(computes):
        walk.compute(name, position)
    walk.provide(model.outputs)
    return Runs(tuple(walk.runs), walk.constants, walk.views)


@dataclass
class _Walk:
    """The runs of nodes so far, between two computes."""

    values: Mapping[str, Value]
    runs: list[NodeRun] = field(default_factory=list)
    constants: dict[str, Value] = field(default_factory=dict)
    views: int = 0
    ops: dict[str, Node] = field(default_factory=dict)  # by name
    maker: dict[str, Node] = field(default_factory=dict)  # by value: its producer
    viewed: dict[str, str] = field(default_factory=dict)  # by view: the viewed value
    storage: dict[str, int] = field(default_factory=dict)  # by existing value: the run that wrote its storage
    waiting: dict[str, Node] = field(default_factory=dict)  # by value: its folded producer that has not run
    place: dict[str, int] = field(default_factory=dict)  # place of each folded node in an executable order
    size_readers: dict[str, list[Node]] = field(default_factory=dict)  # by value of estimated size

    def prepare(self, model: SizedGraph, graph: Graph) -> None:
        """Index the nodes of the model."""
        for node in (sized.node for sized in model.nodes):
            self.ops[node.name] = node
            self.maker |= dict.fromkeys(node.outputs, node)
            views = (name for name in node.outputs if graph.tensors[name].view_of is not None)
            self.viewed |= dict.fromkeys(views, node.proto.input[0])
        for place, node in enumerate(model.folded):
            self.place[node.name] = place
            self.waiting |= dict.fromkeys(node.outputs, node)
            if _reads_size(node) and self.values[node.reads[0]].guessed:
                self.size_readers.setdefault(node.reads[0], []).append(node)

    def compute(self, name: str, position: int) -> None:
        """Run an op after the nodes that it needs."""
        node = self.ops[name]
        self.provide(node.reads)
        for read in node.reads:
            self._refresh(read)
        self._run(node, position)
        for reader in [reader for output in node.outputs for reader in self.size_readers.pop(output, ())]:
            self._run(reader, None)

    def _run(self, node: Node, position: int | None) -> None:
        for name in node.outputs:
            # No run writes the storage of a graph input's view.
            self.storage[name] = self.storage.get(self.viewed[name], -1) if name in self.viewed else len(self.runs)
            self.waiting.pop(name, None)
        self.runs.append(NodeRun(node, position))

    def _refresh(self, name: str) -> None:
        """Refresh a view of a recomputed base, and earlier views between both."""
        chain = []
        while name in self.viewed:
            chain.append(name)
            name = self.viewed[name]
        for view in reversed(chain):
            if self.storage[view] != self.storage.get(self.viewed[view], -1):
                self._run(self.maker[view], None)
                self.views += 1

    def provide(self, names: Iterable[str]) -> None:
        """Run the folded nodes that these values need, in an executable order."""
        needed: dict[str, Node] = {}
        stack = [name for name in names if name in self.waiting]
        while stack:
            node = self.waiting[stack.pop()]
            if node.name not in needed:
                needed[node.name] = node
                stack.extend(name for name in node.reads if name in self.waiting)
        for node in sorted(needed.values(), key=lambda one: self.place[one.name]):
            if _reads_size(node):
                self._settle_size(node)
            else:
                self._run(node, None)

    def _settle_size(self, node: Node) -> None:
        """Replace Shape or Size by a constant.

        onnxruntime would run these nodes as early as possible, not in their place.

        All sizes are bound, so they are known; for an estimate the node waits for the value itself.
        """
        source = node.reads[0]
        if self.values[source].guessed:
            raise GraphError(
                f"the size of {source!r} is an estimate, and an op needs it that runs before {source!r} is made",
                hint=("give its shape, such as ", Setting("value_shapes", {source: (2, 3, 4)})),
            )
        for name in node.outputs:
            self.constants[name] = self.values[name]
            del self.waiting[name]


def _reads_size(node: Node) -> bool:
    return node.proto.domain == "" and node.proto.op_type in ("Shape", "Size")
