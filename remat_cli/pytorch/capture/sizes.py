"""Sizes that differ between calls of one captured graph, which torch has captured as symbols.

A plan needs known sizes. So the graph is rewritten for certain sizes, as if it had been captured with them. Every
tensor has its size there. A value computed from sizes, such as a view's shape, is a *size node*: it has its value at
these sizes, and stands for the expression that gives the value at others. A graph of fixed sizes has no symbols, and
is taken as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx, nn

from remat_cli.errors import GraphError
from remat_cli.pytorch.capture.formulas import Formula, formula, number, substitution
from remat_cli.pytorch.capture.joint import Joint, rewritten
from remat_cli.pytorch.capture.joint_capture import SIZE, Captured, Primal, primals_of
from remat_cli.pytorch.capture.ops import tensors_of
from remat_cli.pytorch.capture.places import readable, root_of
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.dispatch import without_modes
from remat_cli.pytorch.unstable.fakes import FakeTensor, FakeTensorMode, is_object
from remat_cli.pytorch.unstable.joint_graphs import input_index
from remat_cli.pytorch.unstable.tensors import storage_key

# The value of each symbol, in the order of `Sizes.symbols`.
Values = tuple[int | float, ...]
# Under this name a node of a graph at certain sizes has its value at any sizes.
_AT_ANY = "remat value at any sizes"
# In what torch calls a parameter or a buffer.
_OF_MODULE = re.compile(r"\._(parameters|buffers)\[")
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True, eq=False)
class SizedJoint:
    """A captured graph put down for certain sizes.

    Attributes:
        of: the symbols.
        values: values of the symbols.
        captured: the graph.
        joint: the joint graph, resolved.
        bytes: sizes of storages, by name: an expression of the symbols, or a number.
    """

    of: Sizes
    values: Values
    captured: Captured
    joint: Joint
    bytes: Mapping[str, Any]

    @cached_property
    def in_numbers(self) -> Captured:
        """The graph with numbers for its size nodes, for rewrites that hold at these sizes alone."""
        graph = fx.Graph()
        copies: dict[fx.Node, Any] = {}
        for node in self.captured.module.graph.nodes:
            copies[node] = node.meta["val"] if SIZE in node.meta else _copied(graph, node, copies)
        return replace(self.captured, module=fx.GraphModule(self.captured.module, graph))

    @cached_property
    def formula(self) -> Formula:
        """The formula for `bytes`, in their order."""
        return formula(tuple(self.bytes.values()), self.of.symbols)


@dataclass(frozen=True, eq=False)
class Sizes:
    """The symbols of a captured graph.

    Attributes:
        captured: the graph as torch handed it over; `rewritten`, with a size node for each expression.
        expressions: expressions of the size nodes, in order.
        symbols: sizes that differ between calls; none where all sizes are fixed.
        first: their values when torch captured the graph.
        read_from: for each symbol, the place among the primals of one that tells its value; and which of that tensor's
            dimensions it is, None where the primal is the number itself.
        environment: torch's knowledge of the symbols; None where there are none.
    """

    captured: Captured
    expressions: tuple[sympy.Expr, ...]
    symbols: tuple[sympy.Symbol, ...]
    first: Values
    read_from: tuple[tuple[int, int | None], ...]
    environment: Any

    @classmethod
    def of(cls, captured: Captured) -> Sizes:
        """Return the symbols of a graph.

        Raises:
            GraphError: no plan can be made for the graph at any size.
        """
        read_from: dict[sympy.Symbol, tuple[int, int | None]] = {}
        first: dict[sympy.Symbol, int | float] = {}
        environment = None
        for place, primal in enumerate(primals_of(captured.module.graph)):
            value = primal.meta.get("val")
            dimensions = tuple(enumerate(value.shape)) if isinstance(value, torch.Tensor) else ((None, value),)
            for dimension, size in dimensions:
                if isinstance(size, _SYMBOLIC) and isinstance(symbol := size.node.expr, sympy.Symbol):
                    read_from.setdefault(symbol, (place, dimension))
                    first[symbol] = size.node.hint
                    environment = size.node.shape_env
        with_nodes, expressions = _with_size_nodes(captured) if read_from else (captured, ())
        return cls(
            rewritten(with_nodes),
            expressions,
            tuple(read_from),
            tuple(first.values()),
            tuple(read_from.values()),
            environment,
        )

    def values(self, primals: Sequence[Any]) -> Values:
        """Return the value of each symbol in a call that is given these primals."""
        return tuple(
            primals[place] if dimension is None else primals[place].shape[dimension]
            for place, dimension in self.read_from
        )

    def values_given(self, inputs: Sequence[Any]) -> Values:
        """Return the value of each symbol in a call that gives the captured function these inputs.

        Raises:
            GraphError: torch computed the only tensor that tells a size from several inputs.
        """
        primals = primals_of(self.captured.module.graph)
        places = [input_index(primals[place]) for place, _ in self.read_from]
        if None in places:
            raise GraphError("a size is told by no input alone")
        return tuple(
            inputs[place] if dimension is None else inputs[place].shape[dimension]
            for place, (_, dimension) in zip(places, self.read_from, strict=True)
            if place is not None
        )

    def input_shapes(self, values: Values) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a call's inputs at these sizes, by name."""
        return {name: tuple(map(int, shape(values))) for name, shape in self._input_shapes.items()}

    def values_of(self, shapes: Mapping[str, tuple[int, ...]]) -> Values | None:
        """Return the value of each symbol where inputs have these shapes, by name; None where they do not tell."""
        root = root_of(tuple(primal.source for primal in self.captured.primals))
        sizes: dict[Any, int] = {}
        for node, primal in zip(primals_of(self.captured.module.graph), self.captured.primals, strict=True):
            value, shape = node.meta.get("val"), shapes.get(_input_name(primal.source, root), ())
            if isinstance(value, torch.Tensor) and value.dim() == len(shape):
                sizes.update(zip(map(_expression, value.shape), shape, strict=True))
        return tuple(sizes[symbol] for symbol in self.symbols) if sizes.keys() >= set(self.symbols) else None

    def numbers(self, values: Values) -> tuple[int | float, ...]:
        """Return the value of each size node at these sizes."""
        return self._numbers(values)

    def bytes_at(self, sized: SizedJoint, values: Values) -> dict[str, int]:
        """Return the bytes of the step's memory, by name, at these sizes.

        Args:
            sized: the graph at any sizes, which names its memory.
            values: values of the symbols.
        """
        return dict(zip(sized.bytes, map(int, sized.formula(values)), strict=True))

    def allows(self, values: Values) -> bool:
        """Tell whether torch would run the graph at these sizes, as far as its guards say."""
        if not self.symbols:
            return True
        at = substitution(self.symbols, values)
        ranges = (self.environment.var_to_range[symbol] for symbol in self.symbols)
        within = all(bounds.lower <= value <= bounds.upper for bounds, value in zip(ranges, values, strict=True))
        return within and all(guard.expr.xreplace(at) != sympy.false for guard in self.environment.guards)

    def at(self, values: Values) -> SizedJoint:
        """Return the graph as if it had been captured at these sizes."""
        return self._at_first if values == self.first else self._at(values)

    @cached_property
    def _at_first(self) -> SizedJoint:
        return self._at(self.first)

    def _at(self, values: Values) -> SizedJoint:
        if not self.symbols:
            joint = Joint.of(self.captured)
            known = {storage.name: storage.bytes for storage in joint.storages.values()}
            return SizedJoint(self, values, self.captured, joint, known)
        fixed = _Fixed(self.captured, substitution(self.symbols, values))
        captured = fixed.captured()
        joint = Joint.of(captured)
        return SizedJoint(
            self, values, captured, joint,
            {storage.name: fixed.bytes[key] if storage.bytes else 0 for key, storage in joint.storages.items()},
        )  # fmt: skip

    @cached_property
    def _numbers(self) -> Formula:
        return formula(self.expressions, self.symbols)

    @cached_property
    def _input_shapes(self) -> Mapping[str, Formula]:
        """A formula for the shape of each input, by its name."""
        shapes = input_shapes(self.captured, _expression)
        return {name: formula(shape, self.symbols) for name, shape in shapes.items()}

    def without_data(self, value: Any, values: Values) -> Any:
        """Return a symbolic value at these sizes: a number, or a tensor on the device "meta"."""
        if is_object(value):
            return value
        at = substitution(self.symbols, values)
        if not isinstance(value, torch.Tensor):
            return number(_expression(value), at)
        shape, strides = ([int(number(_expression(size), at)) for size in of] for of in (value.shape, value.stride()))
        return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")


def put_symbols_back(module: fx.GraphModule) -> None:
    """Give the values of a graph at certain sizes their symbols again."""
    for node in module.graph.nodes:
        if _AT_ANY in node.meta:
            node.meta["val"] = node.meta[_AT_ANY]


def meta_with(change: Callable[[torch.Tensor], torch.Tensor], node: fx.Node) -> dict[str, Any]:
    """Return the meta of a node that makes a changed value of another node, at its sizes and with symbols.

    Args:
        change: changes a fake tensor.
        node: the other node.
    """
    return {key: change(node.meta[key]) for key in ("val", _AT_ANY) if key in node.meta}


def with_strides(fake: Any, strides: Sequence[Any] | None) -> Any:
    """Return a fake tensor with other strides, if given; they are compared without a guard."""
    if strides is None or not isinstance(fake, torch.Tensor):
        return fake
    if all(_expression(one) == _expression(other) for one, other in zip(strides, fake.stride(), strict=True)):
        return fake
    return fake.as_strided(fake.shape, tuple(strides), fake.storage_offset())


def input_shapes(captured: Captured, known: Callable[[Any], int] = int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that a call is given, by name: inputs that are no parameters or buffers.

    Args:
        captured: the graph.
        known: gives a size as a number.
    """
    root = root_of(tuple(primal.source for primal in captured.primals))
    values = (node.meta.get("val") for node in primals_of(captured.module.graph))
    return {
        _input_name(primal.source, root): tuple(map(known, value.shape))
        for primal, value in zip(captured.primals, values, strict=True)
        if isinstance(value, torch.Tensor) and primal.source and not _OF_MODULE.search(primal.source)
    }


def without_inputs(captured: Captured, modules: Sequence[nn.Module] = ()) -> Captured:
    """Return a capture without the call's tensors, which would stay in memory.

    Args:
        captured: the capture.
        modules: modules whose parameters and buffers stay, by whatever name the graph reads them.
    """
    own = {storage_key(tensor) for module in modules for tensor in (*module.parameters(), *module.buffers())}

    def kept(primal: Primal) -> Primal:
        value = primal.value
        is_own = isinstance(value, nn.Parameter) or bool(_OF_MODULE.search(primal.source))
        is_own = is_own or (value is not None and storage_key(value) in own)
        return primal if is_own else replace(primal, value=None)

    return replace(captured, primals=tuple(map(kept, captured.primals)))


def _input_name(source: str, root: str) -> str:
    return readable(source, root).removeprefix("kwargs.")


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, _SYMBOLIC) else size


def _with_size_nodes(captured: Captured) -> tuple[Captured, tuple[sympy.Expr, ...]]:
    """Return a copy of a graph with computed sizes as inputs.

    The expressions of these sizes are returned, too.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    nodes = list(captured.module.graph.nodes)
    for node in nodes:
        if node.op == "placeholder":
            copies[node] = _copied(graph, node, copies)
    size_nodes: dict[sympy.Expr, fx.Node] = {}
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, _SYMBOLIC):
            expression = value.node.expr
            if expression not in size_nodes:
                size_nodes[expression] = graph.placeholder(f"size_{len(size_nodes)}")
                size_nodes[expression].meta = {"val": value, SIZE: True}
            copies[node] = size_nodes[expression]  # an input that is a number is read as such, too
    for node in nodes:
        if node not in copies:
            copies[node] = _copied(graph, node, copies)
    module = fx.GraphModule(captured.module, graph)
    return replace(captured, module=module), tuple(size_nodes)


def _copied(graph: fx.Graph, node: fx.Node, copies: Mapping[fx.Node, Any]) -> fx.Node:
    copy = graph.node_copy(node, copies.__getitem__)
    copy.meta = dict(node.meta)
    return copy


@dataclass
class _Fixed:
    """Puts a graph down for certain sizes.

    Attributes:
        whole: the graph.
        at: the value of each symbol.
        bytes: sizes of storages, by key: an expression or a number.
    """

    whole: Captured
    at: Mapping[sympy.Symbol, Any]
    bytes: dict[int, Any] = field(default_factory=dict)
    _mode: FakeTensorMode = field(default_factory=FakeTensorMode)
    _known: dict[sympy.Expr, int | float] = field(default_factory=dict)
    _storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)  # by the key of the original

    def captured(self) -> Captured:
        with without_modes():  # those of torch, while it captures
            return self._captured()

    def _captured(self) -> Captured:
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in self.whole.module.graph.nodes:
            copies[node] = _copied(graph, node, copies)
            if (value := node.meta.get("val")) is not None:
                copies[node].meta |= {"val": pytree.tree_map(self.value, value), _AT_ANY: value}
        module = fx.GraphModule(self.whole.module, graph)
        return Captured(module, self.whole.forward_outputs, self.whole.primals, self.whole.old_values)

    def value(self, value: Any) -> Any:
        """Return a value of a node at these sizes."""
        if isinstance(value, _SYMBOLIC):
            expression = value.node.expr
            if expression not in self._known:
                self._known[expression] = number(expression, self.at)
            return self._known[expression]
        return self.tensor(value) if isinstance(value, torch.Tensor) else value

    def _storage_bytes(self, tensor: torch.Tensor) -> Any:
        """Return the bytes of the memory that a tensor is in, as an expression, or a number.

        An input may be a view of a tensor that is no input: its sizes are symbols of their own. Then what is seen of it
        counts.
        """
        size = _expression(tensor.untyped_storage().nbytes())
        if getattr(size, "free_symbols", frozenset()) <= self.at.keys():
            return size
        key = storage_key(tensor)
        values = (value for node in self.whole.module.graph.nodes for value in tensors_of(node.meta.get("val")))
        strided = (value for value in values if value.layout is torch.strided)
        return sympy.Max(*(_extent(value) for value in strided if storage_key(value) == key))

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor at these sizes."""
        if tensor.layout is not torch.strided:
            return tensor
        key = storage_key(tensor)
        if key not in self._storages:
            size = self._storage_bytes(tensor)
            memory = torch.empty(int(number(size, self.at)), dtype=torch.uint8, device="meta")
            self._storages[key] = memory.untyped_storage()
            self.bytes[storage_key(memory)] = size
        shape, strides = tuple(map(self.value, tensor.shape)), tuple(map(self.value, tensor.stride()))
        bare = torch.empty(0, dtype=tensor.dtype, device="meta")
        bare.set_(self._storages[key], self.value(tensor.storage_offset()), shape, strides)
        # As if it had been made in the mode, which would look at each of these calls for longer than they take.
        return FakeTensor(self._mode, bare, tensor.device)


def _extent(tensor: torch.Tensor) -> Any:
    """Return the bytes from the begin of the memory that a tensor is in to its last number."""
    steps = (
        (_expression(size) - 1) * _expression(stride)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (_expression(tensor.storage_offset()) + 1 + sum(steps)) * tensor.element_size()
