"""A joint graph with a region in parts: the ops of the region run on some of the rows, part after part.

A region results in rows or in sums. Each part writes its rows into a slice of the whole, and adds to the sums, both in
place if the plan allows that. Each part reads a slice of the region's inputs, which is a view.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from remat_cli.pytorch.capture.axes import axes_of, in_part, taken_for_contiguous
from remat_cli.pytorch.capture.joint import rewritten
from remat_cli.pytorch.capture.joint_capture import Captured, outputs_of
from remat_cli.pytorch.capture.linear import GradientFactor, factor_of
from remat_cli.pytorch.capture.mutation import is_backward
from remat_cli.pytorch.capture.ops import IN_PLACE, PART, is_item, is_view, layouts_of, tensors_of, value_of
from remat_cli.pytorch.capture.rows_first import rows_first
from remat_cli.pytorch.capture.shifted import without_shifts
from remat_cli.pytorch.capture.views import follow_operands, views_and_items
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.dispatch import without_modes
from remat_cli.pytorch.unstable.fakes import FakeTensor
from remat_cli.pytorch.unstable.tensors import storage_key
from remat_cli.splitting import Axis, Part, Region, RowOp, Split, bounds, region_to_split, runs_in_one_go

_aten = torch.ops.aten
_UNSPLITTABLE = "each of its results depends on all that it reads"
_ANOTHER = "name another op; those that see all rows, as batch norm does, bound a region"


def split(captured: Captured, cuts: Mapping[str, Split]) -> Captured:
    """Return a copy of a graph with the regions around these ops in parts.

    Args:
        captured: the graph.
        cuts: cuts by the name of an op in the region, made in the order of names.

    Raises:
        UsageError: the op does not exist, or has no rows that parts can share.
    """
    if not cuts:
        return captured
    captured = rewritten(captured)
    graph = copied(captured.module.graph)
    for rewrite in (without_shifts, rows_first):
        rewrite(graph)
    for seed, cut in sorted(cuts.items()):
        graph = _cut(graph, seed, cut)
    for gradient in outputs_of(graph):
        if isinstance(gradient, fx.Node) and gradient.target is _aten.add.Tensor and is_backward(gradient):
            _allow_in_place(gradient)
            if IN_PLACE not in gradient.meta and not gradient.kwargs:  # the first one is a view: sums have no order
                given, gradient.args = gradient.args, gradient.args[::-1]
                _allow_in_place(gradient)
                if IN_PLACE not in gradient.meta:  # the result is laid out as the first one
                    gradient.args = given
    return replace(captured, module=fx.GraphModule(captured.module, graph))


def _allow_in_place(node: fx.Node) -> None:
    """Let an op write its result over its first operand, if that is laid out as the result and no view.

    Both must be of one pass: saved tensors stay as they are, since the backward pass may run again.
    """
    operand, result = node.args[0], node.meta["val"]
    if not isinstance(operand, fx.Node) or operand.op != "call_function" or is_view(operand):
        return
    if is_backward(operand) != is_backward(node):
        return
    given = operand.meta["val"]
    if given.dtype is result.dtype and given.shape == result.shape and given.stride() == result.stride():
        node.meta[IN_PLACE] = True


def copied(graph: fx.Graph) -> fx.Graph:
    """Return a copy of a graph, on the same memory."""
    copy = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        nodes[node] = copy.node_copy(node, nodes.__getitem__)
    return copy


def row_ops(graph: fx.Graph) -> tuple[list[RowOp], dict[str, int]]:
    """Return the ops of a graph with the rows that they can work on, and the bytes of the values by name."""
    ops: list[RowOp] = []
    sizes: dict[str, int] = {}
    labels = _label_ops(graph)
    for node in graph.nodes:
        value = node.meta.get("val")
        sizes[node.name] = value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0
        if node.op == "call_function" and not is_item(node):
            items = [user.name for user in node.users if is_item(user)]
            makes = (node.name,) if isinstance(value, torch.Tensor) else tuple(items)
            reads = tuple(source.name for source in node.all_input_nodes)
            axes = () if node in labels else axes_of(node)
            ops.append(RowOp(node.name, reads, makes, axes, int(is_backward(node))))
    return ops, sizes


def _label_ops(graph: fx.Graph) -> set[fx.Node]:
    """Return the ops that read labels and masks alone.

    They run whole, before the region: a loss is divided by the number of its labels, and every part would wait for all
    others.
    """
    on_labels: set[fx.Node] = set()
    for node in graph.nodes:
        tensors = tensors_of(node.meta.get("val"))
        of_labels = all(source.op == "placeholder" or source in on_labels for source in node.all_input_nodes)
        if node.op == "call_function" and of_labels and tensors and not any(map(_is_number, tensors)):
            on_labels.add(node)
    return on_labels


def _is_number(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _cut(graph: fx.Graph, seed: str, cut: Split) -> fx.Graph:
    ops, sizes = row_ops(graph)
    region = region_to_split(ops, seed, sizes, cut, unsplittable=_UNSPLITTABLE, hint=_ANOTHER)
    factor = None if cut.again else _factor(graph, ops, region)
    return _Writer(graph, region, cut.parts, factor).written()


def _factor(graph: fx.Graph, ops: Sequence[RowOp], region: Region) -> GradientFactor | None:
    """Return the number that all gradients in a region are a multiple of; None where they cannot be made at once."""
    nodes = {node.name: node for node in graph.nodes}
    members = [nodes[name] for name in region.members]
    factor = factor_of(graph, members)
    if factor is None:
        return None
    of_one_group = [
        replace(
            op,
            group=0,
            reads=tuple(
                name for name in op.reads if op.name not in region.members or nodes[name] not in factor.entering
            ),
        )
        for op in ops
    ]
    return factor if runs_in_one_go(of_one_group, region) else None


@dataclass
class _Writer:
    """Writes a graph with a region in parts.

    Attributes:
        old: the graph to copy from.
        region: the region to split.
        parts: how many there are.
        factor: factor of the region's gradients, which each part computes at once; None: they are computed later.
        new: the graph to write.
        values: copies of values of the old graph, by value.
        locals: copies within each part, by value.
        unscaled: values that still have to be multiplied by the factor.
        leaving: values of the region that are wanted whole.
        derived: views of the region that are derived of these once more.
    """

    old: fx.Graph
    region: Region
    parts: int
    factor: GradientFactor | None
    new: fx.Graph = field(default_factory=fx.Graph)
    values: dict[fx.Node, fx.Node] = field(default_factory=dict)
    locals: list[dict[fx.Node, fx.Node]] = field(default_factory=list)
    unscaled: dict[fx.Node, fx.Node] = field(default_factory=dict)
    slices: dict[Any, fx.Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known: dict[str, fx.Node] = {}  # ops of the new graph by kind: parts have equal ones
        self.nodes = list(self.old.nodes)
        self.views = views_and_items(self.old)
        self.locals = [{} for _ in range(self.parts)]
        self.group: dict[fx.Node, int] = {}
        for node in self.nodes:
            if node.name in self.region.members:
                group = 0 if self.factor is not None else int(is_backward(node))
                self.group.update(dict.fromkeys([node, *_items(node)], group))
        self.leaving, self.derived = self._whole_values()

    def written(self) -> fx.Graph:
        """Return the graph."""
        for unit in self.in_order():
            if isinstance(unit, int):
                self.write_group(unit)
            else:
                self.copy(unit)
        return self.new

    def in_order(self) -> Iterable[fx.Node | int]:
        """Yield nodes and numbers of groups in an order that respects reads."""
        places = {node: place for place, node in enumerate(self.nodes)}
        units: dict[fx.Node | int, int] = {}
        for node in self.nodes:
            units.setdefault(self.group.get(node, node), places[node])
        before: dict[fx.Node | int, set[fx.Node | int]] = {unit: set() for unit in units}
        for node in self.nodes:
            unit = self.group.get(node, node)
            before[unit].update(self.group.get(source, source) for source in self._sources(node))
            before[unit].discard(unit)
        after: dict[fx.Node | int, list[fx.Node | int]] = {unit: [] for unit in units}
        for unit, sources in before.items():
            for source in sources:
                after[source].append(unit)
        waiting = {unit: len(sources) for unit, sources in before.items()}
        ready = [(units[unit], unit) for unit, count in waiting.items() if not count]
        heapq.heapify(ready)
        while ready:
            _, unit = heapq.heappop(ready)
            yield unit
            for later in after[unit]:
                waiting[later] -= 1
                if not waiting[later]:
                    heapq.heappush(ready, (units[later], later))

    def _sources(self, node: fx.Node) -> list[fx.Node]:
        sources = list(node.all_input_nodes)
        if self.factor is None:
            return sources
        if node in self.group:  # what the gradients enter by is computed for a factor of 1
            inner = [source for source in sources if source not in self.factor.entering]
            return [
                *inner,
                *(s for early in self.factor.before for s in early.all_input_nodes if s in self.factor.known),
            ]
        if any(source in self.group and source in self.factor.multiples for source in sources):
            sources.append(self.factor.value)
        return sources

    def copy(self, node: fx.Node) -> None:
        """Copy an op that is not in the region."""
        self.values[node] = self.new.node_copy(node, self.read)
        if node in self.views and tensors_of(node.meta.get("val")):
            follow_operands(self.values[node])

    def read(self, node: fx.Node) -> fx.Node:
        if node in self.unscaled:
            self.values[node] = self.scaled(node, self.unscaled.pop(node))
        elif node in self.derived and node not in self.values:
            self.copy(node)
        return self.values[node]

    def scaled(self, node: fx.Node, value: fx.Node) -> fx.Node:
        assert self.factor is not None
        factor = self.read(self.factor.value)
        scaled = self.op(_aten.mul.Tensor, (value, factor), {}, node, f"{node.name}_scaled", forward=False)
        _allow_in_place(scaled)
        return scaled

    def op(
        self,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        like: fx.Node,
        name: str,
        *,
        forward: bool | None = None,
        number: int | None = None,
    ) -> fx.Node:
        """Add an op that stands where `like` stood.

        Args:
            target: function of torch.
            args: arguments, nodes of the new graph.
            kwargs: keyword arguments, nodes of the new graph.
            like: says where it comes from.
            name: name of the op.
            forward: the pass that it belongs to; None: that of `like`, or the forward pass where all is made at once.
            number: number of the part; None for an op of no part.
        """
        node = self.new.create_node("call_function", target, args, kwargs, name=name)
        left_out = ("val", "tensor_meta", IN_PLACE, PART)
        node.meta = {key: value for key, value in like.meta.items() if key not in left_out}
        if "seq_nr" in node.meta:
            node.meta["seq_nr"] = (node.meta["seq_nr"], number or 0)
        if number is not None:
            node.meta[PART] = number
        if forward is None:
            forward = not is_backward(like) or self.factor is not None
        node.meta["partitioner_tag"] = "is_forward" if forward else "is_backward"
        places = {source: place for place, source in enumerate(node.all_input_nodes)}
        kind = str((target, map_arg((args, kwargs), lambda source: (places[source], layouts_of(source.meta["val"])))))
        if kind in self.known:
            node.meta["val"] = _value_as(self.known[kind], node)
        else:
            node.meta["val"] = value_of(target, args, kwargs, like)
            self.known[kind] = node
        return node

    def write_group(self, group: int) -> None:
        """Write the members of a group part by part, and join their results."""
        members = [node for node in self.nodes if self.group.get(node) == group and node.name in self.region.members]
        self.begin()
        whole: dict[fx.Node, fx.Node] = {}
        for number, span in enumerate(bounds(self.region.rows, self.parts)):
            for node in members:
                self.run(node, number, span, whole)
        for value in whole:
            (self.unscaled if self._is_unscaled(value) else self.values)[value] = whole[value]
        for view in members:
            if view in self.derived and not self._is_unscaled(view):  # the others wait for the factor
                self.read(view)

    def _is_unscaled(self, value: fx.Node) -> bool:
        return self.factor is not None and value in self.factor.multiples

    def begin(self) -> None:
        """Compute the entering values for a gradient of 1."""
        if self.factor is None:
            return
        value = self.factor.value.meta["val"]
        kinds = {"dtype": value.dtype, "device": value.device}
        entered = {self.factor.value: self.op(_aten.full.default, ([], 1), kinds, self.factor.value, "factor_one")}
        for early in self.factor.before:
            args, kwargs = map_arg((early.args, early.kwargs), lambda node: entered.get(node) or self.read(node))
            entered[early] = self.op(early.target, args, kwargs, early, f"{early.name}_of_one")
        for local in self.locals:
            local.update(entered)

    def _whole_values(self) -> tuple[set[fx.Node], set[fx.Node]]:
        """Return the values that are wanted whole, and the views that are derived of these once more."""
        leaving: set[fx.Node] = set()
        derived: set[fx.Node] = set()
        for node in reversed(self.nodes):
            for value in _results(node) if node.name in self.region.members else ():
                if any(user in derived or self.wants_whole(user, value) for user in value.users):
                    (derived if is_view(node) and value is node else leaving).add(value)
        return leaving, derived

    def wants_whole(self, user: fx.Node, value: fx.Node) -> bool:
        """Tell whether an op needs all rows of a value that the region makes."""
        axis = self.region.members.get(user.name)
        if axis is None:
            return True
        same_rows = self.part_of(value) is not None and axis.reads.get(value.name) == self.part_of(value)
        return self.group[user] != self.group[value] and not same_rows

    def part_of(self, value: fx.Node) -> Part | None:
        return self.region.parts.get(value.name)

    def run(
        self,
        node: fx.Node,
        number: int,
        span: tuple[int, int],
        whole: dict[fx.Node, fx.Node],
    ) -> None:
        """Run an op on the rows of a part."""
        axis, local = self.region.members[node.name], self.locals[number]
        args, kwargs = in_part(node, axis, span[1] - span[0])
        args, kwargs = map_arg((args, kwargs), lambda source: self.operand(source, node, axis, number, span))
        adds = node in self.leaving and self.part_of(node) is None and number > 0
        if adds and node.target is _aten.mm.default:  # without memory for the summand
            whole[node] = self.in_place(
                _aten.addmm.default, (whole[node], *args), node, f"{node.name}_part{number}", number
            )
            return
        result = self.op(node.target, args, kwargs, node, f"{node.name}_part{number}", number=number)
        local[node] = result
        for item in _items(node):
            name = f"{item.name}_part{number}"
            local[item] = self.op(item.target, (result, item.args[1]), {}, item, name, number=number)
        for value in _results(node):
            if value in self.leaving:
                whole[value] = self.joined(value, local[value], number, span, whole)

    def joined(
        self, value: fx.Node, of_part: fx.Node, number: int, span: tuple[int, int], whole: Mapping[fx.Node, fx.Node]
    ) -> fx.Node:
        """Return the whole value with one part's rows or sum added."""
        part = self.part_of(value)
        if part is None:
            if not number:
                return of_part
            return self.in_place(_aten.add.Tensor, (whole[value], of_part), value, f"{value.name}_sum{number}", number)
        if not number:
            full = value.meta["val"]
            strides = full.stride() if _is_dense(full) else torch.empty(full.shape, device="meta").stride()
            kinds = {"dtype": full.dtype, "device": full.device}
            size = (list(full.shape), list(strides))
            whole = {value: self.op(_aten.empty_strided.default, size, kinds, value, f"{value.name}_rows")}
        place = (part.dim, span[0] * part.unit, span[1] * part.unit)
        name = f"{value.name}_rows{number}"
        return self.in_place(_aten.slice_scatter.default, (whole[value], of_part, *place), value, name, number)

    def in_place(self, target: Any, args: tuple[Any, ...], like: fx.Node, name: str, number: int) -> fx.Node:
        """Add an op that may write its result into the memory of its first operand."""
        node = self.op(target, args, {}, like, name, number=number)
        node.meta[IN_PLACE] = True
        return node

    def operand(self, source: fx.Node, reader: fx.Node, axis: Axis, number: int, span: tuple[int, int]) -> fx.Node:
        """Return the operand of a part: what the part made, a slice of the whole, or the whole."""
        part, local = axis.reads.get(source.name), self.locals[number].get(source)
        if local is not None and source in self.group and part is not None and part == self.part_of(source):
            return local
        early = not is_backward(source)
        if local is None or source in self.group:
            whole = self.read(source)
        else:
            whole, early = local, True
        if part is None:
            return whole
        key = (whole, part, span)
        if key not in self.slices:
            place = (part.dim, span[0] * part.unit, span[1] * part.unit)
            name = f"{source.name}_slice{number}"
            self.slices[key] = self.op(
                _aten.slice.Tensor, (whole, *place), {}, source, name, forward=early, number=number
            )
        sliced = self.slices[key]
        if part.dim == 0 or source not in taken_for_contiguous(reader):
            return sliced
        layout = {"memory_format": torch.contiguous_format}
        return self.op(_aten.clone.default, (sliced,), layout, reader, f"{source.name}_copy{number}", number=number)


def _items(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if is_item(user)]


def _results(node: fx.Node) -> list[fx.Node]:
    return [node] if isinstance(node.meta.get("val"), torch.Tensor) else _items(node)


def _is_dense(value: torch.Tensor) -> bool:
    """Tell whether a tensor fills its memory, each entry with a place of its own."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense(value))


def _value_as(known: fx.Node, node: fx.Node) -> Any:
    """Return the results of an op without running it on tensors without data, which takes longer.

    Args:
        known: an equal op on operands of the same layout.
        node: the op.
    """
    moved: dict[int, tuple[torch.UntypedStorage, int]] = {}  # memory of results that are views, and their shifts
    for other, source in zip(known.all_input_nodes, node.all_input_nodes, strict=True):
        for old, new in zip(tensors_of(other.meta["val"]), tensors_of(source.meta["val"]), strict=True):
            moved[storage_key(old)] = new.untyped_storage(), int(new.storage_offset()) - int(old.storage_offset())

    def as_here(value: torch.Tensor) -> torch.Tensor:
        key = storage_key(value)
        if key not in moved:
            memory = torch.empty(value.untyped_storage().nbytes(), dtype=torch.uint8, device="meta")
            moved[key] = memory.untyped_storage(), 0
        storage, shift = moved[key]
        bare = torch.empty(0, dtype=value.dtype, device="meta")
        bare.set_(storage, value.storage_offset() + shift, value.shape, value.stride())
        return FakeTensor(value.fake_mode, bare, value.device)  # type: ignore[attr-defined]

    with without_modes():
        return pytree.tree_map_only(torch.Tensor, as_here, known.meta["val"])
