"""Models rewritten so that their nodes follow a schedule.

Repeated runs become nodes with names of their own.

A stock onnxruntime follows such a file (see `session`): it runs the nodes in the order of the file and frees each value
after its last reader. Every instance of a tensor is a value of its own, so it lives as long as in the schedule. Three
cases need care:

- *Views* share a storage. A view of an earlier instance would keep that instance alive; the view is derived again
  (`node_order`).
- *Shape and Size* run as early as possible, wherever they stand. They become constants, as every size is bound. For an
  estimated size they stand right after the value's producer.
- *Unread values* (further results of an op that is run again for one of them) are never freed. A Shape node that reads
  them ends their life.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remat_cli.core.graph import Graph
from remat_cli.formats.onnx.attributes import attribute_of
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
    """A model rewritten to follow a schedule.

    Attributes:
        proto: the model.
        positions: for each node, the index of its compute; None for an auxiliary node.
        views: number of views derived again beyond the schedule.
        releases: number of nodes that end the lifetime of an unread value.
    """

    proto: onnx.ModelProto
    positions: tuple[int | None, ...]
    views: int
    releases: int

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the nodes in executed order; constants do not run."""
        return tuple(node.name for node in self.proto.graph.node if (node.domain, node.op_type) != ("", "Constant"))


def rewrite(model: SizedModel, graph: Graph, computes: Sequence[str]) -> Rewritten:
    """Return a model with its nodes in the order of `computes`.

    The given model is changed.

    The result keeps the bound sizes: the plan is valid for no others.

    Args:
        model: the model as read, with its data.
        graph: the planned graph: the same model, read with the same options.
        computes: names of ops in executed order; each op that is not dead at least once, after the producers of its
            inputs.

    Raises:
        GraphError: an op needs an estimated size of a value that does not exist yet.
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
    """Names of the instances of values and nodes.

    The first instance keeps the file's name; for an output of the graph, the last instance keeps it.
    """

    results: frozenset[str]
    names: NodeNames
    runs: Mapping[str, int]  # number of runs of each node
    so_far: Counter[str] = field(default_factory=Counter)
    latest: dict[str, str] = field(default_factory=dict)  # by value: name of its latest instance
    value_of: dict[str, str] = field(default_factory=dict)  # by name of an instance: its value

    def written(self, run: NodeRun) -> onnx.NodeProto:
        """Return the node for the next run in order."""
        node = run.node
        self.so_far[node.name] += 1
        number = self.so_far[node.name]
        proto = type(node.proto)()
        proto.CopyFrom(node.proto)
        proto.name = node.name if number == 1 else self.names.fresh(f"{node.name}__remat{number}")
        for inner in (one for body in bodies_of(proto) for one in all_nodes(body.node) if not one.name):
            # onnxruntime would name the node by type and number, like another node.
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
    """Rename the values that a node and its bodies read.

    In bodies this concerns values from outside.
    """
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
    """Return nodes that end unread values' lifetimes, with their places.

    A place is an index among the nodes.
    """
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
    """Declare the type of every value.

    onnxruntime sees there which values it can overwrite, and people read them.

    A type in the file stays only if nothing better is known: it was true for open sizes, or for none.
    """
    from onnx import ValueInfoProto

    graph, values = model.model.graph, model.graph.values
    declared = {info.name: info.type for info in (*graph.value_info, *graph.output)}
    results = {info.name for info in graph.output}
    optional, unsized = _optional_names(graph), _spoiled_in_place(graph)
    types = {
        name: _type(values[value], declared.get(value))
        for name, value in value_of.items()
        if name not in results | unsized and (name not in optional or value in declared)
    }
    del graph.value_info[:]
    graph.value_info.extend(ValueInfoProto(name=name, type=kind) for name, kind in types.items() if kind is not None)
    for info in (*graph.input, *graph.output):
        known = _type(values[info.name], info.type)
        if known is not None:
            info.type.CopyFrom(known)


def _spoiled_in_place(graph: onnx.GraphProto) -> set[str]:
    """Return results that an onnxruntime kernel computes wrongly over its input.

    It writes over the input only if it knows both shapes, so that of these results is not declared. In 1.32 this is the
    L2 norm of Normalizer.
    """
    normalizers = (node for node in graph.node if node.op_type == "Normalizer")
    l2 = (node for node in normalizers if (norm := attribute_of(node, "norm")) is not None and norm.s == b"L2")
    return {name for node in l2 for name in node.output}


def _optional_names(graph: onnx.GraphProto, outer: Set[str] = frozenset()) -> set[str]:
    """Return the names of optional values.

    Their types look like those of their content.
    """
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
    """Return the type of a value, with all known sizes.

    Without known sizes it is the declared type.
    """
    is_tensor = declared is None or declared.WhichOneof("value") in (None, "tensor_type")
    if is_tensor and isinstance(value.type, TensorType) and value.type.shape is not None and not value.guessed:
        return type_proto(value.type)
    return declared
