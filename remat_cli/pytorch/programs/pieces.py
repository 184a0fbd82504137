"""A pass compiled in pieces: with copies to and from the host between them, or with writes of regions in parts.

Inductor orders the ops of a graph anew, and frees memory by itself. So a pass is cut (`programs/cuts.py`): what lies
between two cuts is a piece, a graph of its own that inductor compiles; equal pieces of parts are compiled once. A value
is passed from piece to piece, and is dropped before the last piece that reads it runs, so that the piece frees its
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from remat_cli.errors import GraphError
from remat_cli.pytorch.capture.live_storages import LiveStorages
from remat_cli.pytorch.capture.ops import layouts_of
from remat_cli.pytorch.capture.sizes import with_strides
from remat_cli.pytorch.memory import transfers
from remat_cli.pytorch.programs.cuts import COPIES, cut_at_copies, cut_at_parts, is_write
from remat_cli.pytorch.unstable.fakes import mode_of
from remat_cli.pytorch.unstable.inductor import CompiledGraph, decomposed
from remat_cli.pytorch.unstable.tensors import storage_key

# Tensors of a run by their nodes.
_Values = dict[fx.Node, Any]
# Compiled graphs by all that they depend on.
KnownPieces = dict[str, CompiledGraph]


@dataclass(frozen=True)
class _HostCopy:
    """A host copy without its data.

    Attributes:
        elements: size of its memory, in elements.
        dtype: element type.
        layout: shape, strides and offset, in elements.
    """

    elements: int
    dtype: torch.dtype
    layout: tuple[Any, Any, Any]


@dataclass(frozen=True, eq=False)
class _Piece:
    """Ops between two copies.

    Attributes:
        compiled: the compiled ops.
        inputs: the values that they read.
        outputs: the values that are read later.
    """

    compiled: CompiledGraph
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


class CompiledPieces:
    """A pass in compiled pieces, with copies and writes in between.

    Its use is that of `CompiledGraph`.

    Attributes:
        inputs: fake tensors and numbers that it was compiled for.
        output_strides: strides of each output, in elements; None where an output has none.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        *,
        user_outputs: range,
        is_backward: bool,
        keeps_order: bool = False,
        known: KnownPieces | None = None,
    ) -> None:
        """Compile a pass.

        Arguments and errors are those of `CompiledGraph`, but for one.

        Args:
            module: see there.
            user_outputs: see there.
            is_backward: see there.
            keeps_order: see there.
            known: pieces compiled so far, for a pass of eager's ops; None: inductor has decomposed the ops.
        """
        self._known = known
        self._constants = {
            node: getattr(module, str(node.target))
            for node in module.graph.find_nodes(op="get_attr")
            if isinstance(getattr(module, str(node.target)), torch.Tensor)
        }
        self._given = list(module.graph.find_nodes(op="placeholder"))
        self.inputs = [node.meta["val"] for node in self._given]
        self._fakes: _Values = dict(zip(self._given, self.inputs, strict=True))
        self._mode = mode_of(self.inputs)
        if known is not None:
            self._fakes |= {node: self._mode.from_tensor(value) for node, value in self._constants.items()}
        # Shapes are made of them, so each piece is given all.
        self._sizes = [node for node in self._given if isinstance(node.meta["val"], torch.SymInt)]
        (outputs,) = module.graph.output_node().args
        assert isinstance(outputs, tuple)
        self._outputs: Sequence[Any] = outputs
        of_user = {outputs[place] for place in user_outputs}
        compile_piece = partial(CompiledGraph, is_backward=is_backward, keeps_order=keeps_order)
        self._steps: list[fx.Node | _Piece] = []
        for step in cut_at_copies(module.graph) if known is None else cut_at_parts(module.graph):
            if isinstance(step, fx.Node) and (step.target in COPIES or self._runs(step)):
                self._steps.append(self._copy(step) if step.target in COPIES else step)
                continue
            nodes = [step] if isinstance(step, fx.Node) else step
            if (piece := self._piece(module, nodes, of_user, compile_piece)) is not None:
                self._steps.append(piece)
        self._last = self._last_reads()
        fakes = [self._fakes.get(value) if isinstance(value, fx.Node) else None for value in outputs]
        self.output_strides = [fake.stride() if isinstance(fake, torch.Tensor) else None for fake in fakes]
        del self._fakes

    @property
    def kernels(self) -> list[str]:
        """Names of its compiled kernels."""
        return [name for piece in self._pieces for name in piece.compiled.kernels]

    @property
    def _pieces(self) -> list[_Piece]:
        return [step for step in self._steps if isinstance(step, _Piece)]

    def run(self, arguments: list[Any]) -> Any:
        """Run the pass; the list of arguments is emptied."""
        return self._run(arguments, lambda piece, values: piece.run(values), {}, self._constants)

    def replay(self, arguments: list[Any], make: Callable[..., torch.Tensor], ran: Callable[[str], None]) -> Any:
        """Run the code around the kernels on tensors without data; see `CompiledGraph.replay`."""
        copies = {target: partial(copy, make) for target, copy in _WITHOUT_DATA.items()}
        constants = {node: value.to("meta") for node, value in self._constants.items()}
        return self._run(arguments, lambda piece, values: piece.replay(values, make, ran), copies, constants)

    def _run(
        self,
        arguments: list[Any],
        run: Callable[[CompiledGraph, list[Any]], Any],
        copies: Mapping[Any, Callable[..., Any]],
        constants: Mapping[fx.Node, torch.Tensor],
    ) -> list[Any]:
        """Run pieces and other steps, and drop each value before its last reader runs.

        Args:
            arguments: of the pass; the list is emptied.
            run: runs a piece.
            copies: functions that run instead of those that copy; empty where there are data.
            constants: tensors of the module.
        """
        values: _Values = dict(zip(self._given, arguments, strict=True)) | dict(constants)
        given_memory = _followed(values.values()) if copies else LiveStorages()
        arguments.clear()
        for node in self._last[0]:
            values.pop(node, None)
        for step, last in zip(self._steps, self._last[1:], strict=True):
            if isinstance(step, _Piece):
                read = [values.pop(node) if node in last else values[node] for node in step.inputs]
                values.update(zip(step.outputs, run(step.compiled, read), strict=True))
            else:
                given: Any
                named: Any
                given, named = map_arg((step.args, step.kwargs), values.__getitem__)
                if copies and "device" in named:
                    named = {**named, "device": "meta"}
                for node in last:
                    del values[node]
                if copies and is_write(step):
                    _check_own(step, given[0], given_memory, values.values())
                values[step] = copies.get(step.target, step.target)(*given, **named)  # type: ignore[operator]
                del given, named
        return [values[value] if isinstance(value, fx.Node) else value for value in self._outputs]

    def _last_reads(self) -> list[frozenset[fx.Node]]:
        """Return the values that are dropped before all steps, and at each step."""
        read = {value for value in self._outputs if isinstance(value, fx.Node)}
        last: list[frozenset[fx.Node]] = []
        for step in reversed(self._steps):
            inputs = step.inputs if isinstance(step, _Piece) else step.all_input_nodes
            last.append(frozenset(inputs) - read)
            read.update(inputs)
        return [frozenset((*self._given, *self._constants)) - read, *reversed(last)]

    def _copy(self, node: fx.Node) -> fx.Node:
        """Note the layout of a copy's result."""
        if "val" in node.meta:
            # `in_memory_of` has the layout of its second argument, a copy that of its first.
            layout = self._fakes[node.all_input_nodes[-1]]
            self._fakes[node] = with_strides(node.meta["val"], layout.stride())
        return node

    def _runs(self, node: fx.Node) -> bool:
        """Run an op on tensors without data; return whether it takes the layouts that pieces make.

        A view may not.
        """
        if is_write(node):
            self._fakes[node] = self._fakes[node.args[0]]  # type: ignore[index]
            return True
        args, kwargs = map_arg((node.args, node.kwargs), self._fakes.__getitem__)
        try:
            with self._mode:
                self._fakes[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        except RuntimeError:
            return False
        return True

    def _piece(
        self,
        module: fx.GraphModule,
        nodes: Sequence[fx.Node],
        of_user: set[Any],
        compiled: Callable[..., CompiledGraph],
    ) -> _Piece | None:
        """Compile a piece; return None if nothing in it has an effect."""
        within = set(nodes)
        sources = dict.fromkeys(source for node in nodes for source in node.all_input_nodes)
        read = [node for node in sources if node not in within and (node.op != "get_attr" or node in self._fakes)]
        inputs = tuple(dict.fromkeys((*self._sizes, *read)))
        outputs = tuple(node for node in nodes if node.op != "get_attr" and not within.issuperset(node.users))
        if not outputs and not any(node.is_impure() for node in nodes):
            return None
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = {**node.meta, "val": self._fakes[node]}
        for node in _with_constants(nodes):
            if node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in outputs))
        kept = [place for place, node in enumerate(outputs) if node in of_user]
        done = self._compiled(fx.GraphModule(module, graph), partial(compiled, user_outputs=kept))
        for node, stride in zip(outputs, done.output_strides, strict=True):
            self._fakes[node] = with_strides(node.meta["val"], stride)
        return _Piece(done, inputs, outputs)

    def _compiled(self, module: fx.GraphModule, compiled: partial[CompiledGraph]) -> CompiledGraph:
        """Compile a piece, or return an equal piece."""
        if self._known is None:
            return compiled(module)
        kind = f"{compiled.keywords} {_kind(module)}"
        if kind not in self._known:
            self._known[kind] = compiled(decomposed(module))
        return self._known[kind]


def _followed(values: Iterable[Any]) -> LiveStorages:
    """Follow the memory of values."""
    memory = LiveStorages()
    for value in values:
        if isinstance(value, torch.Tensor):
            memory.follow(value.untyped_storage())
    return memory


def _check_own(write: fx.Node, result: torch.Tensor, given: LiveStorages, others: Iterable[Any]) -> None:
    """Check that a write changes no other value: the compiler may put two values into one memory.

    Args:
        write: the write.
        result: where it writes.
        given: memory of the pass's arguments.
        others: values that are read later.

    Raises:
        GraphError: it changes another value.
    """
    key = storage_key(result)
    if key in given or any(isinstance(other, torch.Tensor) and storage_key(other) == key for other in others):
        raise GraphError(
            f"inductor has what {write.name!r} writes into in memory that is read later",
            hint="plan without fused=True, or without split=True",
        )


def _kind(module: fx.GraphModule) -> str:
    """Return all that a graph's kernels depend on."""
    places = {node: place for place, node in enumerate(module.graph.nodes)}
    written: list[Any] = []
    for node in module.graph.nodes:
        given: Any = str(node.target)
        if node.op == "placeholder":
            given = layouts_of(node.meta["val"]) or node.meta["val"]
        elif node.op == "get_attr":  # a subgraph: two of one name may differ
            given = id(getattr(module, given))
        written.append((node.op, given, map_arg((node.args, node.kwargs), lambda source: f"%{places[source]}")))
    return str(written)


def _with_constants(nodes: Sequence[fx.Node]) -> Iterator[fx.Node]:
    """Yield nodes, and before them the module's tensors that they read."""
    yield from dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source.op == "get_attr")
    yield from (node for node in nodes if node.op != "get_attr")


def _offload(make: Callable[..., torch.Tensor], value: torch.Tensor) -> _HostCopy:
    del make
    elements = value.untyped_storage().nbytes() // value.itemsize
    return _HostCopy(elements, value.dtype, (value.shape, value.stride(), value.storage_offset()))


def _prefetch(make: Callable[..., torch.Tensor], host: _HostCopy, device: torch.device) -> torch.Tensor:
    del device
    return make((host.elements,), (1,), host.dtype).as_strided(*host.layout)


def _wait(*_: Any) -> None:
    """Wait for nothing."""


def _in_memory_of(make: Callable[..., torch.Tensor], one: Any, other: Any) -> Any:
    del make
    if isinstance(one, torch.Tensor):
        return one.view(other.dtype).as_strided(*other.layout)
    return _HostCopy(one.elements, other.dtype, (other.shape, other.stride(), other.storage_offset()))


# Functions that stand for those that copy, where there is no data; they get a function that makes memory first.
_WITHOUT_DATA: Mapping[Any, Callable[..., Any]] = {
    transfers.offload: _offload,
    transfers.prefetch: _prefetch,
    transfers.wait: _wait,
    transfers.in_memory_of: _in_memory_of,
}
