"""Which nodes of a model run, in which order, so that a sequence of computes is carried out.

Beside the computes themselves these are nodes that only make constants, run right before the first op that needs them,
and views that have to be derived anew.
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
        node: what runs.
        position: index of the compute that it carries out; None for what is only there to make computes possible.
    """

    node: Node
    position: int | None


@dataclass(frozen=True)
class Runs:
    """What runs.

    Attributes:
        runs: in order.
        constants: what Shape and Size give, by value name; they do not run.
        views: number of views that are refreshed.
    """

    runs: tuple[NodeRun, ...]
    constants: Mapping[str, Value]
    views: int


def without_dead_ops(graph: Graph) -> Graph:
    """Return a graph without the ops of which no result leads to an output: a rewritten model leaves them out."""
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
    """Return what runs for `computes`.

    Args:
        model: the nodes of the model.
        graph: what was planned.
        computes: names of ops; each that is not dead at least once, its inputs made before it.

    Raises:
        GraphError: an op needs the size of a value that is only an estimate, before that value is made.
    """
    walk = _Walk(model.values)
    walk.prepare(model, graph)
    for position, name in enumerate(computes):
        walk.compute(name, position)
    walk.provide(model.outputs)
    return Runs(tuple(walk.runs), walk.constants, walk.views)


@dataclass
class _Walk:
    """The state between two computes."""

    values: Mapping[str, Value]
    runs: list[NodeRun] = field(default_factory=list)
    constants: dict[str, Value] = field(default_factory=dict)
    views: int = 0
    ops: dict[str, Node] = field(default_factory=dict)  # by name
    maker: dict[str, Node] = field(default_factory=dict)  # by value: the op that makes it
    viewed: dict[str, str] = field(default_factory=dict)  # by view: what it is a view of
    storage: dict[str, int] = field(default_factory=dict)  # by value made so far: the run that made its storage
    waiting: dict[str, Node] = field(default_factory=dict)  # by value: the folded node that makes it and has not run
    place: dict[str, int] = field(default_factory=dict)  # of each folded node in an executable order
    size_readers: dict[str, list[Node]] = field(default_factory=dict)  # by value whose size is only an estimate

    def prepare(self, model: SizedGraph, graph: Graph) -> None:
        """Take in the nodes of the model."""
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
        """Run an op, and before it what it needs."""
        node = self.ops[name]
        self.provide(node.reads)
        for read in node.reads:
            self._refresh(read)
        self._run(node, position)
        for reader in [reader for made in node.outputs for reader in self.size_readers.pop(made, ())]:
            self._run(reader, None)

    def _run(self, node: Node, position: int | None) -> None:
        for name in node.outputs:
            # A view of a graph input has a storage that no run makes.
            self.storage[name] = self.storage.get(self.viewed[name], -1) if name in self.viewed else len(self.runs)
            self.waiting.pop(name, None)
        self.runs.append(NodeRun(node, position))

    def _refresh(self, name: str) -> None:
        """Refresh a view whose base was recomputed, after refreshing what it is a view of."""
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
        """Make a constant of what Shape or Size gives: onnxruntime would run it as soon as it can, not where it stands.

        Every size is bound, so that it is known; an estimate waits for the value itself.
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
