"""Sizes in a captured function that depend on the data of its inputs, as of boolean masks: constants of a call."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.fakes import has_data, symbols_of_data
from remat_cli.pytorch.unstable.tensors import known_size

# Of one result: its size in each dimension, None where that follows from the sizes of inputs; or the number that it is.
Known = tuple[int | None, ...] | int


class _Part(NamedTuple):
    """The part of a function that decides its sizes.

    Attributes:
        module: takes all inputs of the captured function, and returns the results that are sized by data.
        reads: the positions of the inputs that it uses.
    """

    module: fx.GraphModule
    reads: tuple[int, ...]


class DataSizes:
    """Computes data-dependent sizes of a captured function from its inputs.

    A graph network's masks are of that kind: they depend on the edges. Sizes that depend on parameters, or on what is
    drawn at random, are not known before the call.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        """Find data-dependent sizes in the front end's capture."""
        nodes = list(module.graph.nodes)
        self._places = [place for place, node in enumerate(nodes) if _is_sized_by_data(node)]
        asked = [nodes[place] for place in self._places]
        self._unknown = [_unknown(node) for node in asked]
        self._part = _part_for(module, asked) if asked else None

    def of(self, inputs: Sequence[Any]) -> tuple[Known, ...] | None:
        """Return the known sizes of results that depend on data.

        None if inputs do not decide them.

        Args:
            inputs: inputs of the captured function.
        """
        if not self._places:
            return ()
        if self._part is None or any(_has_no_data(inputs[place]) for place in self._part.reads):
            return None
        before = torch.get_rng_state()
        with torch.no_grad():
            results = self._part.module(*inputs)
        if not torch.equal(torch.get_rng_state(), before):
            torch.set_rng_state(before)
            return None
        return tuple(map(_known, results, self._unknown))

    def fix(self, graph: fx.Graph, known: Sequence[Known]) -> None:
        """Have a copy of the captured graph take sizes as known; it raises RuntimeError where they are others."""
        nodes = list(graph.nodes)
        for node in nodes:
            node.meta.pop(_BINDINGS, None)  # or torch takes the sizes of this trace for those of another
        for place, sizes in zip(self._places, known, strict=True):
            node = nodes[place]
            if isinstance(sizes, int):
                node.replace_all_uses_with(sizes)
                graph.erase_node(node)
                continue
            with graph.inserting_after(node):
                fixed = graph.call_function(_with_sizes, (node, sizes))
            fixed.meta = {key: value for key, value in node.meta.items() if key != "example_value"}
            node.replace_all_uses_with(fixed, delete_user_cb=lambda user, fixed=fixed: user is not fixed)
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
            graph.erase_node(node)  # of sizes that are known now

    @staticmethod
    def write_down(joint: fx.Graph) -> None:
        """Have a joint graph say the sizes that are known, where they are symbols still."""
        for node in joint.nodes:
            value = node.meta.get("val")
            node.meta["val"] = pytree.tree_map_only(torch.Tensor, _without_symbols, value)


_BINDINGS = "unbacked_bindings"


def _is_sized_by_data(node: fx.Node) -> bool:
    """Whether a result introduces a size that depends on data.

    It may be a number of this kind, too.

    If the op has several results, they decide.
    """
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor | torch.SymInt):
        return False
    is_one_of_several = node.target is operator.getitem and isinstance(_value(node.args[0]), tuple | list)
    (source,) = node.all_input_nodes if is_one_of_several else (node,)
    return bool(_unbacked(value) - {symbol for given in source.all_input_nodes for symbol in _unbacked(_value(given))})


def _value(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def _unbacked(value: Any) -> set[Any]:
    """Return the symbols of sizes that depend on data."""
    leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor | torch.SymInt)]
    return {symbol for leaf in leaves for symbol in symbols_of_data(leaf)}


def _masks(node: fx.Node) -> list[fx.Node]:
    """Return the masks by which a tensor is indexed; they alone decide on the size."""
    if node.target is not operator.getitem:
        return []
    places = node.args[1] if isinstance(node.args[1], tuple | list) else (node.args[1],)
    values = [(place, _value(place)) for place in places if isinstance(place, fx.Node)]
    return [place for place, value in values if isinstance(value, torch.Tensor) and value.dtype is torch.bool]


def _counted(*masks: torch.Tensor) -> int:
    return max(int(mask.count_nonzero()) for mask in masks)


def _unknown(node: fx.Node) -> tuple[bool, ...] | None:
    """Return which sizes of a tensor depend on data; None of a number."""
    value = node.meta["example_value"]
    return tuple(bool(_unbacked(size)) for size in value.shape) if isinstance(value, torch.Tensor) else None


def _known(result: Any, unknown: tuple[bool, ...] | None) -> Known:
    if unknown is None:
        return int(result)
    sizes = result.shape if isinstance(result, torch.Tensor) else (result,) * len(unknown)
    return tuple(int(size) if is_asked else None for size, is_asked in zip(sizes, unknown, strict=True))


def _part_for(module: fx.GraphModule, asked: Sequence[fx.Node]) -> _Part | None:
    """Return the part that computes some results, or None.

    None if a value in the part is changed in place.
    """
    needed: set[fx.Node] = set()
    left = [root for node in asked for root in (_masks(node) or [node])]
    last = max(asked)
    while left:
        node = left.pop()
        if node not in needed:
            needed.add(node)
            left += node.all_input_nodes
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        if _writes(node) and node < last and not needed.isdisjoint(node.all_input_nodes):
            return None
        if node.op == "placeholder" or node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    counted = [[copies[mask] for mask in _masks(node)] for node in asked]
    results = [
        graph.call_function(_counted, tuple(masks)) if masks else copies[node]
        for node, masks in zip(asked, counted, strict=True)
    ]
    graph.output(tuple(results))
    places = {node: place for place, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    return _Part(fx.GraphModule(module, graph), tuple(places[node] for node in needed if node in places))


def _writes(node: fx.Node) -> bool:
    """Whether an op writes to its inputs, by the conventions of its name."""
    if node.target is operator.setitem or "out" in node.kwargs:
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_in_place = name.endswith("_") and not name.endswith("__") and node.op in ("call_method", "call_function")
    return is_in_place or (getattr(node.target, "__module__", "") == "_operator" and name in _IN_PLACE)


_IN_PLACE = {"iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift", "isub"}
_IN_PLACE |= {"itruediv", "ixor"}


def _has_no_data(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return value.requires_grad or not has_data(value)


def _without_symbols(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor without data with numbers in place of decided symbols."""
    shape, strides = [[_as_number(size) for size in sizes] for sizes in (value.shape, value.stride())]
    if shape == list(value.shape) and all(type(size) is int for size in value.shape):
        return value
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)


def _as_number(size: Any) -> Any:
    known = size.node.maybe_as_int() if isinstance(size, torch.SymInt) else size
    return size if known is None else known


def _with_sizes(value: torch.Tensor, sizes: tuple[int | None, ...]) -> torch.Tensor:
    """Return a view of a tensor with known sizes in place of traced ones' symbols."""
    shape = [value.size(place) if size is None else size for place, size in enumerate(sizes)]
    for place, size in enumerate(sizes):
        if size is not None:
            known_size(value, place, size)
    return value.view(shape)
