"""A pass with copies to and from the host, compiled in pieces.

Inductor orders the ops of a graph anew, and frees memory by itself. So a pass is cut at its copies: what lies between
two of them is a piece, a graph of its own that inductor compiles. A value is passed from piece to piece, and is dropped
before the last piece that reads it runs, so that the piece frees its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import fx

from remat_cli.pytorch.capture.sizes import with_strides
from remat_cli.pytorch.memory import transfers
from remat_cli.pytorch.unstable.inductor import CompiledGraph

# Tensors of a run by their nodes.
_Values = dict[fx.Node, Any]


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
    """A pass in compiled pieces, with copies between them.

    Its use is that of `CompiledGraph`.

    Attributes:
        inputs: fake tensors and numbers that it was compiled for.
        output_strides: strides of each output, in elements; None where an output has none.
    """

    def __init__(
        self, module: fx.GraphModule, *, user_outputs: range, is_backward: bool, keeps_order: bool = False
    ) -> None:
        """Compile a pass; arguments and errors are those of `CompiledGraph`."""
        self._given = list(module.graph.find_nodes(op="placeholder"))
        self.inputs = [node.meta["val"] for node in self._given]
        self._fakes: _Values = dict(zip(self._given, self.inputs, strict=True))
        # Shapes are made of them, so each piece is given all.
        self._sizes = [node for node in self._given if isinstance(node.meta["val"], torch.SymInt)]
        (outputs,) = module.graph.output_node().args
        assert isinstance(outputs, tuple)
        self._outputs: Sequence[Any] = outputs
        of_user = {outputs[place] for place in user_outputs}
        compile_piece = partial(CompiledGraph, is_backward=is_backward, keeps_order=keeps_order)
        self._steps: list[fx.Node | _Piece] = []
        run = [node for node in module.graph.nodes if node.op in ("call_function", "get_attr")]
        for are_copies, nodes in groupby(run, key=lambda node: node.target in _WITHOUT_DATA):
            if are_copies:
                self._steps += map(self._copy, nodes)
            elif (piece := self._piece(module, list(nodes), of_user, compile_piece)) is not None:
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
        return self._run(arguments, lambda piece, values: piece.run(values), {})

    def replay(self, arguments: list[Any], make: Callable[..., torch.Tensor], ran: Callable[[str], None]) -> Any:
        """Run the code around the kernels on tensors without data; see `CompiledGraph.replay`."""
        copies = {target: partial(copy, make) for target, copy in _WITHOUT_DATA.items()}
        return self._run(arguments, lambda piece, values: piece.replay(values, make, ran), copies)

    def _run(
        self,
        arguments: list[Any],
        run: Callable[[CompiledGraph, list[Any]], Any],
        copies: Mapping[Any, Callable[..., Any]],
    ) -> list[Any]:
        """Run pieces and copies, and drop each value before its last reader runs.

        Args:
            arguments: of the pass; the list is emptied.
            run: runs a piece.
            copies: functions that run instead of those that copy.
        """
        values: _Values = dict(zip(self._given, arguments, strict=True))
        arguments.clear()
        for node in self._last[0]:
            values.pop(node, None)
        for step, last in zip(self._steps, self._last[1:], strict=True):
            if isinstance(step, _Piece):
                read = [values.pop(node) if node in last else values[node] for node in step.inputs]
                values.update(zip(step.outputs, run(step.compiled, read), strict=True))
            else:
                given = [values[value] if isinstance(value, fx.Node) else value for value in step.args]
                for node in last:
                    del values[node]
                values[step] = copies.get(step.target, step.target)(*given)  # type: ignore[operator]
                del given
        return [values[value] if isinstance(value, fx.Node) else value for value in self._outputs]

    def _last_reads(self) -> list[frozenset[fx.Node]]:
        """Return the values that are dropped before all steps, and at each step."""
        read = {value for value in self._outputs if isinstance(value, fx.Node)}
        last: list[frozenset[fx.Node]] = []
        for step in reversed(self._steps):
            inputs = step.inputs if isinstance(step, _Piece) else step.all_input_nodes
            last.append(frozenset(inputs) - read)
            read.update(inputs)
        return [frozenset(self._given) - read, *reversed(last)]

    def _copy(self, node: fx.Node) -> fx.Node:
        """Note the layout of a copy's result."""
        if "val" in node.meta:
            # `in_memory_of` has the layout of its second argument, a copy that of its first.
            layout = self._fakes[node.all_input_nodes[-1]]
            self._fakes[node] = with_strides(node.meta["val"], layout.stride())
        return node

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
        read = [node for node in sources if node not in within and node.op != "get_attr"]
        inputs = tuple(dict.fromkeys((*self._sizes, *read)))
        outputs = tuple(node for node in nodes if node.op != "get_attr" and not within.issuperset(node.users))
        if not outputs and not any(node.is_impure() for node in nodes):
            return None
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = {**node.meta, "val": self._fakes[node]}
        for node in _with_constants(nodes):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in outputs))
        kept = [place for place, node in enumerate(outputs) if node in of_user]
        done = compiled(fx.GraphModule(module, graph), user_outputs=kept)
        for node, stride in zip(outputs, done.output_strides, strict=True):
            self._fakes[node] = with_strides(node.meta["val"], stride)
        return _Piece(done, inputs, outputs)


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
