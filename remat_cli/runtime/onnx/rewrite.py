"""From a schedule to an ONNX model whose nodes stand in the order of the schedule, repeats under names of their own.

A stock onnxruntime follows such a file (see `session`): it runs the nodes in the order of the file and frees each value
after its last reader. Every instance of a tensor is a value of its own, so its lifetime is that of the schedule. Three
things take care:

- *Views* share a storage. A view of an earlier instance would keep that alive; it is derived anew (`runs`).
- *Shape and Size* run as soon as they can, wherever they stand. They become constants, as every size is bound; where a
  size is only an estimate they stand right behind what makes the value.
- *Unread values* (further results of an op that is run again for one of them) are never freed. A Shape node
  that reads them ends their life.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remat_cli.core.graph import Graph
from remat_cli.formats.onnx.expansion import NodeNames
from remat_cli.formats.onnx.reader import SizedModel
from remat_cli.formats.onnx.structure import captured_names, stored_names
from remat_cli.formats.onnx.values import TensorType, Value, type_proto
from remat_cli.formats.onnx.walk import all_nodes, bodies_of
from remat_cli.runtime.onnx.node_order import NodeRun, runs_of

if TYPE_CHECKING:
    import onnx

# From this operator set on, Shape can be asked for no dimension at all.
_PARTIAL_SHAPE = 15


@dataclass(frozen=True)
class Rewritten:
    """A model that runs a schedule.

    Attributes:
        proto: the model.
        positions: for each node, the index of the compute that it carries out; None for what is only there to make
            computes possible.
        views: number of views that are derived anew beyond the schedule.
        releases: number of nodes that end the lifetime of an unread value.
    """

    proto: onnx.ModelProto
    positions: tuple[int | None, ...]
    views: int
    releases: int

    @property
    def order(self) -> tuple[str, ...]:
        """NodeNames of the nodes in the order in which they run; constants do not run."""
        return tuple(node.name for node in self.proto.graph.node if (node.domain, node.op_type) != ("", "Constant"))


def rewrite(model: SizedModel, graph: Graph, computes: Sequence[str]) -> Rewritten:
    """Return `model` with its nodes in the order of `computes`; the model given is used up.

    The sizes that were bound stand in the result for good: the plan holds for no others.

    Args:
        model: as read, its data kept.
        graph: what was planned: the same model, read with the same options.
        computes: names of ops in the order in which they run; each that is not dead at least once, its inputs made
            before it.

    Raises:
        GraphError: an op needs the size of a value that is only an estimate, before that value is made.
    """
    runs = runs_of(model.graph, graph, computes)
    results = frozenset(model.graph.outputs)
    instances = _Instances(results, model.inference.names, Counter(run.node.name for run in runs.runs))
    nodes = [instances.written(run) for run in runs.runs]
    positions = [run.position for run in runs.runs]
    releases = _releases(nodes, instances, graph, model.inference.opsets.version(""))
    for index, release in reversed(releases):
        nodes.insert(index, release)
        positions.insert(index, None)
    proto = model.model.proto
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(_initializers(runs.constants))
    _declare_types(model, instances.value_of)
    return Rewritten(proto, tuple(positions), runs.views, len(releases))


@dataclass
class _Instances:
    """NodeNames for the instances of values and nodes.

    The first instance keeps the name that the file gives; of a value that the graph hands out, the last one does.
    """

    results: frozenset[str]
    names: NodeNames
    runs: Mapping[str, int]  # of each node, in all
    so_far: Counter[str] = field(default_factory=Counter)
    latest: dict[str, str] = field(default_factory=dict)  # by value: the name of its latest instance
    value_of: dict[str, str] = field(default_factory=dict)  # by name of an instance: the value

    def written(self, run: NodeRun) -> onnx.NodeProto:
        """Return the node that carries out a run, the next one in order."""
        node = run.node
        self.so_far[node.name] += 1
        number = self.so_far[node.name]
        proto = type(node.proto)()
        proto.CopyFrom(node.proto)
        proto.name = node.name if number == 1 else self.names.fresh(f"{node.name}__remat{number}")
        for inner in (one for body in bodies_of(proto) for one in all_nodes(body.node) if not one.name):
            # onnxruntime would call it by type and number, as another node may be called.
            inner.name = self.names.fresh(f"{proto.name}/{inner.op_type}")
        _rename_reads(proto, {name: self.latest[name] for name in node.reads if name in self.latest})
        for index, value in enumerate(proto.output):
            if value:
                keeps = number == (self.runs[node.name] if value in self.results else 1)
                name = value if keeps else self.names.fresh(f"{value}__remat{number}")
                proto.output[index] = self.latest[value] = name
                self.value_of[name] = value
        return proto


def _rename_reads(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Give a node other names to read, in its bodies too as far as they read values from outside."""
    changed = {name: other for name, other in names.items() if name != other}
    if not changed:
        return
    for index, name in enumerate(node.input):
        node.input[index] = changed.get(name, name)
    for body in bodies_of(node):
        own = {value.name for value in body.input} | stored_names(body)
        own.update(name for inner in body.node for name in inner.output)
        outer = {name: other for name, other in changed.items() if name not in own}
        for inner in body.node:
            _rename_reads(inner, outer)
        for value in body.output:
            value.name = outer.get(value.name, value.name)


def _releases(
    nodes: Sequence[onnx.NodeProto], instances: _Instances, graph: Graph, opset: int
) -> list[tuple[int, onnx.NodeProto]]:
    """Return the nodes that end the lifetimes of unread values, each with its index among the nodes."""
    from onnx import helper

    read = {name for node in nodes for name in (*node.input, *captured_names(node))} | instances.results
    nothing: dict[str, Any] = {"start": 0, "end": 0} if opset >= _PARTIAL_SHAPE else {}
    releases = []
    for index, node in enumerate(nodes):
        for name in node.output:
            tensor = graph.tensors.get(instances.value_of.get(name, ""))
            # A view keeps nothing alive, and a sequence has no shape.
            if name not in read and tensor is not None and tensor.bytes > 0 and tensor.shape is not None and opset:
                ended = instances.names.fresh(f"{name}__unread")
                releases.append((index + 1, helper.make_node("Shape", [name], [ended], ended, **nothing)))
    return releases


def _initializers(constants: Mapping[str, Value]) -> Iterator[onnx.TensorProto]:
    from onnx import numpy_helper

    for name, value in constants.items():
        assert value.data is not None
        yield numpy_helper.from_array(value.data, name)


def _declare_types(model: SizedModel, value_of: Mapping[str, str]) -> None:
    """Write the type of every value, for onnxruntime to see what can be overwritten and for people to look at.

    What the file declares stays only where nothing better is known: it was true for open sizes, or for none.
    """
    from onnx import ValueInfoProto

    graph, values = model.model.graph, model.graph.values
    declared = {info.name: info.type for info in (*graph.value_info, *graph.output)}
    results = {info.name for info in graph.output}
    optional = _optional_names(graph)
    types = {
        name: _type(values[value], declared.get(value))
        for name, value in value_of.items()
        if name not in results and (name not in optional or value in declared)
    }
    del graph.value_info[:]
    graph.value_info.extend(ValueInfoProto(name=name, type=kind) for name, kind in types.items() if kind is not None)
    for info in (*graph.input, *graph.output):
        known = _type(values[info.name], info.type)
        if known is not None:
            info.type.CopyFrom(known)


def _optional_names(graph: onnx.GraphProto, outer: Set[str] = frozenset()) -> set[str]:
    """Return the names of optional values, whose types look like those of what they hold."""
    declared = (*graph.input, *graph.output, *graph.value_info)
    names = set(outer) | {info.name for info in declared if info.type.HasField("optional_type")}
    for node in graph.node:
        if node.op_type == "Optional" or (node.op_type == "Identity" and node.input[0] in names):
            names.update(node.output)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                results = attribute.g.output[1:] if node.op_type == "Loop" else attribute.g.output
                inner = _optional_names(attribute.g, names)
                names.update(name for name, info in zip(node.output, results, strict=False) if info.name in inner)
    return names


def _type(value: Value, declared: onnx.TypeProto | None) -> onnx.TypeProto | None:
    """Return the type of a value: with all its sizes where they are known, else as declared."""
    is_tensor = declared is None or declared.WhichOneof("value") in (None, "tensor_type")
    if is_tensor and isinstance(value.type, TensorType) and value.type.shape is not None and not value.guessed:
        return type_proto(value.type)
    return declared
