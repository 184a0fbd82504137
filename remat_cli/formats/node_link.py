"""Node-link JSON from networkx, with the names of public data sets.

These are data sets for rematerialization. One node is one op with one output. Attributes of a node: its size is
`cost_ram` or `out_cost`, its time `cost_cpu` or `duration`; `backward: true` marks the backward pass. Its id is `id`,
or `name` without it. Links have their ends under `source`/`target` or "0"/"1". The input order is `graph.order`, or
without it a topological order close to the order of the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError
from math import isfinite
from typing import Any

from remat_cli.core.graph import Graph, Kind, Op, Phase, Tensor, build_graph, describe_cycle, find_cycle
from remat_cli.errors import GraphError
from remat_cli.formats.file_order import file_order
from remat_cli.formats.reader import Reading, ReadOptions
from remat_cli.formats.source import Source

_SIZE_NAMES = ("cost_ram", "out_cost")
_TIME_NAMES = ("cost_cpu", "duration")
_BACKWARD_SUFFIX = "_backward"
# Fractional times are scaled by the smallest power of ten up to this that makes them integers.
_LARGEST_SCALE = 10**9


def recognises(source: Source) -> bool:
    """Tell whether the file holds a node-link graph."""
    return "nodes" in source.document and ("links" in source.document or "edges" in source.document)


@dataclass(frozen=True, slots=True)
class _Node:
    key: Any
    label: str
    size: int
    time: float
    backward: bool


def read(source: Source, options: ReadOptions) -> Reading:
    """Read a node-link graph; `options` have no effect.

    Raises:
        GraphError: a node lacks a size or time, a link's end is unknown, the graph has a cycle.
    """
    del options
    where, document = str(source.path), source.document
    nodes = _nodes(document, where)
    sources = _links(document, nodes, where)
    order = _order(document, nodes, sources, where)
    scale, notes = _time_scale(nodes, where)
    try:
        graph = _graph(document, [nodes[key] for key in order], nodes, sources, scale)
    except GraphError as error:
        raise GraphError(f"{where}: {error.message}", hint=error.remedy) from None
    return Reading(graph, notes=notes)


def _graph(
    document: Mapping[str, Any],
    ordered: Sequence[_Node],
    nodes: Mapping[Any, _Node],
    sources: Mapping[Any, Sequence[Any]],
    scale: int,
) -> Graph:
    forward = {node.label for node in ordered if not node.backward}
    ops = [
        Op(
            name=node.label,
            type="",
            inputs=tuple(nodes[key].label for key in sources[node.key]),
            outputs=(_output(node),),
            time=_scaled(node.time, scale),
            phase=Phase.BACKWARD if node.backward else Phase.FORWARD,
            grad_of=_differentiated(node, forward),
        )
        for node in ordered
    ]
    header = document.get("graph")
    name = header.get("name", "") if isinstance(header, Mapping) else ""
    return build_graph(
        name=str(name) or "graph",
        kind=Kind.TRAINING if any(node.backward for node in ordered) else Kind.INFERENCE,
        time_unit="unit",
        resident_bytes=0,
        tensors=[Tensor(_output(node), node.size) for node in ordered],
        ops=ops,
    )


def _scaled(time: float, scale: int) -> int:
    """Convert a time to the graph's unit.

    Whole numbers stay exact, however large; others are rounded.
    """
    return int(time) * scale if time == int(time) else round(time * scale)


def _output(node: _Node) -> str:
    """Return the name of a node's output, which is that of the node."""
    return node.label


def _differentiated(node: _Node, forward: set[str]) -> str | None:
    """Return the forward op of a backward one, by name.

    The data sets use names such as conv1 and conv1_backward.
    """
    stem = node.label.removesuffix(_BACKWARD_SUFFIX)
    return stem if node.backward and stem in forward else None


def _nodes(document: Mapping[str, Any], where: str) -> dict[Any, _Node]:
    items = document["nodes"]
    if not isinstance(items, list) or not items:
        raise GraphError(f"{where}: nodes is not a list of nodes, or is empty", hint="there is nothing to plan")
    nodes: dict[Any, _Node] = {}
    labels: set[str] = set()
    for i, item in enumerate(items):
        node = _node(item, f"{where}: nodes[{i}]", labels)
        if node.key in nodes:
            raise GraphError(f"{where}: nodes[{i}]: {node.key!r} is defined twice", hint="give each node its own id")
        nodes[node.key] = node
        labels.add(node.label)
    return nodes


def _node(item: Any, where: str, labels: set[str]) -> _Node:
    if not isinstance(item, dict):
        raise GraphError(f"{where}: expected an object", hint="put its attributes in { }")
    key = item.get("id", item.get("name"))
    if key is None or isinstance(key, dict | list):
        raise GraphError(f"{where}: has no id and no name", hint="give each node an 'id'")
    size = _number(item, _SIZE_NAMES, where)
    if size != int(size):
        raise GraphError(f"{where}: size {size!r} is not a whole number", hint="sizes are whole numbers of bytes")
    label = str(item.get("name", key))
    if label in labels:
        label = f"{label}#{key}"
    return _Node(key, label, int(size), _number(item, _TIME_NAMES, where), item.get("backward") is True)


def _number(item: Mapping[str, Any], names: Sequence[str], where: str) -> float:
    for name in names:
        if name in item:
            value: float = item[name]
            # A whole number may be too large for floating point; `Graph` refuses that.
            is_number = type(value) is int or (type(value) is float and isfinite(value))
            if not is_number or value < 0:
                raise GraphError(f"{where}.{name}: {value!r} is not a number, 0 or more", hint="correct the file")
            return value
    raise GraphError(f"{where}: has neither {' nor '.join(names)}", hint=f"give each node {names[0]!r}")


def _links(document: Mapping[str, Any], nodes: Mapping[Any, _Node], where: str) -> dict[Any, list[Any]]:
    """Return the nodes that each node reads, in the order of the links."""
    field = "links" if "links" in document else "edges"
    sources: dict[Any, list[Any]] = {key: [] for key in nodes}
    if not isinstance(document[field], list):
        raise GraphError(f"{where}: {field} is not a list", hint="write it as networkx.node_link_data does")
    for i, link in enumerate(document[field]):
        place = f"{where}: {field}[{i}]"
        if not isinstance(link, dict):
            raise GraphError(f"{place}: expected an object", hint="write {'source': ..., 'target': ...}")
        ends = (link.get("source", link.get("0")), link.get("target", link.get("1")))
        for end in ends:
            if isinstance(end, dict | list) or end not in nodes:
                raise GraphError(f"{place}: {end!r} is not the id of a node", hint="correct the link, or add the node")
        if ends[0] not in sources[ends[1]]:
            sources[ends[1]].append(ends[0])
    return sources


def _order(
    document: Mapping[str, Any], nodes: Mapping[Any, _Node], sources: Mapping[Any, Sequence[Any]], where: str
) -> list[Any]:
    header = document.get("graph")
    order = header.get("order") if isinstance(header, Mapping) else None
    if order is None:
        return _topological_order(nodes, sources, where)
    if not isinstance(order, list) or any(isinstance(key, dict | list) for key in order):
        raise GraphError(f"{where}: graph.order is not a list of node ids", hint="correct it, or leave it out")
    if len(order) != len(nodes) or set(order) != set(nodes):
        raise GraphError(
            f"{where}: graph.order does not name every node exactly once", hint="correct it, or leave it out"
        )
    return order


def _topological_order(nodes: Mapping[Any, _Node], sources: Mapping[Any, Sequence[Any]], where: str) -> list[Any]:
    keys = list(nodes)
    position = {key: place for place, key in enumerate(keys)}
    try:
        return [keys[place] for place in file_order([[position[source] for source in sources[key]] for key in keys])]
    except CycleError:
        labels = {nodes[key].label: [nodes[source].label for source in sources[key]] for key in keys}
        raise GraphError(
            f"{where}: the graph has a cycle: {describe_cycle(find_cycle(labels))}",
            hint="a computation graph must be acyclic; remove one of these links",
        ) from None


def _time_scale(nodes: Mapping[Any, _Node], where: str) -> tuple[int, tuple[str, ...]]:
    """Return the factor that makes every time an integer, with a note."""
    fractions = [node.time for node in nodes.values() if node.time != int(node.time)]
    if not fractions:
        return 1, ()
    scale = 1
    while scale < _LARGEST_SCALE and any(abs(time * scale - round(time * scale)) > 1e-6 for time in fractions):
        scale *= 10
    return scale, (f"{where}: times are not whole numbers; they are counted in 1/{scale} of the file's unit",)
