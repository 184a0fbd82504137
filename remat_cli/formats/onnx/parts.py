"""A model with regions in parts: the nodes of a region run on some of the rows, part after part.

Each part reads a `Slice` of what enters the region. Rows that leave it are joined by a `Concat`, sums are added up.
onnxruntime writes no rows into a tensor that is there, so what leaves in rows is in memory twice for a moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper, numpy_helper

from remat_cli.formats.onnx.axes import axes_of
from remat_cli.formats.onnx.expansion import NodeNames
from remat_cli.formats.onnx.structure import Node, captured_names, executable_nodes, stored_names
from remat_cli.formats.onnx.values import Origin, Value, Values
from remat_cli.splitting import Axis, Part, Region, RowOp, Split, bounds, region_to_split

if TYPE_CHECKING:
    import onnx

# From this operator set on, Slice gets its bounds as inputs.
_BOUNDS_AS_INPUTS = 10
_UNSPLITTABLE = "its results depend on all that it reads, or remat has no rule for it"
_ANOTHER = "name another op; those without a rule bound a region, too"
# The input of an op that is the shape of its result.
_SHAPE_INPUT = {"Reshape": 1, "Expand": 1}


def split(graph: onnx.GraphProto, values: Values, opset: int, cuts: Mapping[str, Split]) -> None:
    """Change a graph: the regions around these nodes run in parts.

    Args:
        graph: the main graph.
        values: its values at the bound sizes, for which alone the result is valid.
        opset: version of ONNX's own operator set.
        cuts: cuts by the name of a node in the region. That of the node that touches most bytes comes first, and no
            region has the node of another.

    Raises:
        UsageError: the node does not exist, or has no rows that parts can share.
    """
    nodes, folded = _nodes_and_constants(graph, values)
    ops = [_row_op(node, values, opset) for node in nodes]
    sizes = {name: values[name].type.bytes for op in ops for name in (*op.reads, *op.makes)}
    regions: list[tuple[Region, int]] = []
    touched = {op.name: sum(sizes[name] for name in (*op.reads, *op.makes)) for op in ops}
    taken: set[str] = set()
    for seed, cut in sorted(cuts.items(), key=lambda item: (-touched.get(item[0], 0), item[0])):
        bounding = taken | (cuts.keys() - {seed})
        free = [op if op.name not in bounding else replace(op, axes=()) for op in ops]
        region = region_to_split(free, seed, sizes, cut, unsplittable=_UNSPLITTABLE, hint=_ANOTHER)
        regions.append((region, cut.parts))
        taken.update(region.members)
    _write(graph, values, opset, regions, nodes, folded)


def write(graph: onnx.GraphProto, values: Values, opset: int, regions: Sequence[tuple[Region, int]]) -> None:
    """Change a graph: these regions run in parts.

    Args:
        graph: the main graph.
        values: its values at the bound sizes.
        opset: version of ONNX's own operator set.
        regions: regions without a common node, and how many parts each has.
    """
    _write(graph, values, opset, regions, *_nodes_and_constants(graph, values))


def _write(
    graph: onnx.GraphProto,
    values: Values,
    opset: int,
    regions: Sequence[tuple[Region, int]],
    nodes: Sequence[Node],
    folded: Mapping[str, Value],
) -> None:
    """Write regions in parts among the nodes that run, and add the constants that are read."""
    names = NodeNames()
    names.take(graph)
    order: list[Node | _Writer] = [*nodes]
    for region, parts in regions:
        inside = [each for each in order if isinstance(each, Node) and each.name in region.members]
        before, after = _around(order, inside)
        read = {name for each in (*before, *after) for name in each.reads} | {value.name for value in graph.output}
        writer = _Writer(graph, values, opset, region, parts, names, inside, read)
        order = [*before, writer, *after]
    written = [proto for each in order for proto in _protos(each)]
    del graph.node[:]
    graph.node.extend(written)
    read = {name for node in written for name in (*node.input, *captured_names(node))}
    read.update(value.name for value in graph.output)
    constants = {name: np.asarray(value.data) for name, value in folded.items() if name in read}
    graph.initializer.extend(numpy_helper.from_array(data, name) for name, data in constants.items())
    _forget_types(graph)


def _nodes_and_constants(graph: onnx.GraphProto, values: Values) -> tuple[list[Node], dict[str, Value]]:
    """Return the nodes that run, in order, and the results of the others, which become initializers.

    Those compute shapes and other small constants. A node of a region may not be there as a whole, so nobody can ask
    for the shape of its result.
    """
    nodes, _ = executable_nodes(graph, ())
    folded: dict[str, Value] = {}
    for node in nodes:
        known = {name: values[name] for name in node.outputs}
        if all(value.origin is Origin.FOLDED and value.data is not None for value in known.values()):
            folded |= known
    return [node for node in nodes if folded.keys().isdisjoint(node.outputs)], folded


def _row_op(node: Node, values: Values, opset: int) -> RowOp:
    axes = () if node.captured else axes_of(node.proto, values, opset)
    return RowOp(node.name, node.reads, node.outputs, axes)


@dataclass(frozen=True)
class _Writer:
    """Writes a region in parts.

    Attributes:
        graph: the graph, which takes constants.
        values: all values.
        opset: version of ONNX's own operator set.
        region: the region.
        parts: how many there are.
        names: names of the graph, to find unused ones.
        nodes: members of the region, in order.
        outside: values that other nodes read, or that the graph returns.
    """

    graph: onnx.GraphProto
    values: Values
    opset: int
    region: Region
    parts: int
    names: NodeNames
    nodes: Sequence[Node]
    outside: Set[str]
    _of_parts: dict[tuple[str, int], str] = field(default_factory=dict)

    @cached_property
    def reads(self) -> frozenset[str]:
        """Names of the values that enter the region."""
        return _entering(self.nodes)

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Names of the values that members make."""
        return frozenset(name for node in self.nodes for name in node.outputs)

    def protos(self) -> Iterator[onnx.NodeProto]:
        """Yield the nodes of all parts, in order."""
        for number, (first, end) in enumerate(bounds(self.region.rows, self.parts)):
            part = _Part(self, number, first, end)
            for node in self.nodes:
                yield from part.nodes(node)
        for node in self.nodes:
            yield from self._joined(node)

    def _joined(self, node: Node) -> Iterator[onnx.NodeProto]:
        """Yield the nodes that join the rows of a member's results."""
        for place, name in enumerate(node.outputs):
            rows = self.region.members[node.name].makes[name]
            if rows is not None and name in self.outside:
                parts = [self.own(name, number) for number in range(self.parts)]
                joining = self.names.fresh(f"{node.name}_rows{place}")
                yield helper.make_node("Concat", parts, [name], joining, axis=rows.dim)

    def own(self, name: str, number: int) -> str:
        """Return the name of a part's share of a value."""
        if (name, number) not in self._of_parts:
            self._of_parts[name, number] = self.names.fresh(f"{name}_part{number}")
        return self._of_parts[name, number]

    def constant(self, name: str, numbers: Sequence[int]) -> str:
        """Add a constant of whole numbers, and return its name."""
        name = self.names.fresh(name)
        self.graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name


@dataclass
class _Part:
    """One part of a region.

    Attributes:
        writer: of the region.
        number: of the part.
        first: first row.
        end: end of the rows.
        slices: names of slices so far, by value and dimension.
    """

    writer: _Writer
    number: int
    first: int
    end: int
    slices: dict[tuple[str, Part], str] = field(default_factory=dict)

    def nodes(self, node: Node) -> Iterator[onnx.NodeProto]:
        """Yield the node for these rows, with its slices before and its joins after."""
        axis, own = self.writer.region.members[node.name], self.writer.names.fresh(f"{node.name}_part{self.number}")
        names: dict[str, str] = {}
        for name in node.reads:
            part = axis.reads.get(name)
            if name in self.writer.outputs:
                names[name] = self.writer.own(name, self.number)
            elif part is not None:
                if (name, part) not in self.slices:
                    yield self._slice(name, part, own)
                names[name] = self.slices[name, part]
        proto = type(node.proto)()
        proto.CopyFrom(node.proto)
        proto.name = own
        proto.input[:] = [names.get(name, name) for name in proto.input]
        proto.output[:] = [name and self.writer.own(name, self.number) for name in proto.output]
        self._resize(proto, node, axis)
        yield proto
        for name in node.outputs:
            if axis.makes[name] is None:
                yield from self._added(name, node.name)

    def _slice(self, name: str, part: Part, reader: str) -> onnx.NodeProto:
        node = self.writer.names.fresh(f"{reader}_slice{len(self.slices)}")
        output = self.slices[name, part] = self.writer.names.fresh(f"{node}_out")
        first, end = self.first * part.unit, self.end * part.unit
        if self.writer.opset < _BOUNDS_AS_INPUTS:
            return helper.make_node("Slice", [name], [output], node, starts=[first], ends=[end], axes=[part.dim])
        given = {"starts": first, "ends": end, "axes": part.dim}
        bound = [self.writer.constant(f"{output}_{what}", [number]) for what, number in given.items()]
        return helper.make_node("Slice", [name, *bound], [output], node)

    def _resize(self, proto: onnx.NodeProto, node: Node, axis: Axis) -> None:
        """Let an op that is given the shape of its result, or takes it from sizes of 1, make that of these rows."""
        place = _SHAPE_INPUT.get(proto.op_type)
        if proto.op_type == "Squeeze" and not any(proto.input[1:]) and not proto.attribute:
            proto.op_type, place = "Reshape", 1  # else a part of one row would lose this dimension, too
            proto.input[1:] = [""]
        part = axis.makes[node.outputs[0]]
        shape = self.writer.values[node.outputs[0]].type.shape
        if place is not None and part is not None and shape is not None:
            own = list(shape)
            own[part.dim] = (self.end - self.first) * part.unit
            proto.input[place] = self.writer.constant(f"{proto.name}_shape", own)

    def _added(self, name: str, maker: str) -> Iterator[onnx.NodeProto]:
        """Yield the node that adds these rows' share to a sum."""
        writer, own = self.writer, self.writer.own(name, self.number)
        is_last, node = self.number == writer.parts - 1, writer.names.fresh(f"{maker}_sum{self.number}")
        if self.number:
            so_far = writer.own(name if self.number == 1 else f"{name}_sum", self.number - 1)
            total = name if is_last else writer.own(f"{name}_sum", self.number)
            yield helper.make_node("Add", [so_far, own], [total], node)
        elif is_last:
            yield helper.make_node("Identity", [own], [name], node)


def _entering(nodes: Sequence[Node]) -> frozenset[str]:
    """Return the names of the values that nodes read and do not make."""
    read = {name for node in nodes for name in node.reads}
    return frozenset(read.difference(*(node.outputs for node in nodes)))


def _around(
    order: Sequence[Node | _Writer], inside: Sequence[Node]
) -> tuple[list[Node | _Writer], list[Node | _Writer]]:
    """Return the other nodes before and after the members of a region, so that these can stand together.

    What they depend on comes before them, what depends on them after; others stay on their side of the first member.
    """
    members, needed = set(map(id, inside)), set(_entering(inside))
    begun = False
    before: list[Node | _Writer] = []
    after: list[Node | _Writer] = []
    needed_by: dict[int, bool] = {}
    for each in reversed(order):
        if id(each) not in members:
            needed_by[id(each)] = not needed.isdisjoint(each.outputs)
            if needed_by[id(each)]:
                needed.update(each.reads)
    for each in order:
        if id(each) in members:
            begun = True
        elif not begun or needed_by[id(each)]:
            before.append(each)
        else:
            after.append(each)
    return before, after


def _protos(each: Node | _Writer) -> Iterator[onnx.NodeProto]:
    if isinstance(each, _Writer):
        yield from each.protos()
        return
    proto = type(each.proto)()
    proto.CopyFrom(each.proto)
    proto.name = each.name
    yield proto


def _forget_types(graph: onnx.GraphProto) -> None:
    """Drop the types of values that are not there any more."""
    there = {name for node in graph.node for name in node.output} | stored_names(graph)
    there |= {value.name for value in graph.input}
    kept = [value for value in graph.value_info if value.name in there]
    del graph.value_info[:]
    graph.value_info.extend(kept)
