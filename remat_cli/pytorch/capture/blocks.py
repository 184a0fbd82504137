"""Equal blocks that follow each other in a model: torch traces few of them, and lines lead from there to all.

Tracing the backward pass takes most of the time. So torch's front end walks through the whole model, and finds the
blocks whose ops, constants, layouts, module paths and inputs are equal. Then it traces the backward pass of models with
4, 5 and 6 of these blocks, and `lines` computes the trace of the whole model.

This assumes that the trace of a block depends on the graph, not on the number of blocks before it. Three traces on one
line bear the assumption out, and the computed trace must be a valid graph with the whole model's inputs.

Without it (CPU time, torch 2.13): a GPT of 80 blocks and 3,211 ops is read in 20.8 s instead of 7.8 s, one of 32 blocks
in 6.6 s instead of 5.7 s, one of 12 blocks in the same time. `remat fit` reads a step once for each size that it tries.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx
from torch.fx.node import map_arg

from remat_cli.core.graph import Graph
from remat_cli.errors import GraphError
from remat_cli.formats.reader import Reading
from remat_cli.pytorch.capture.joint_capture import Captured, Trace, given_of
from remat_cli.pytorch.capture.lines import followed, form_and_numbers
from remat_cli.pytorch.capture.ops import tensors_of
from remat_cli.pytorch.capture.places import readable, root_of
from remat_cli.pytorch.unstable.tensors import storage_key

# Of the whole model's nodes, so large a share at most is traced in parts; else to trace it as a whole is no slower.
LARGEST_SHARE = 0.3
_TRACED = (4, 5, 6)  # fewer leave none between the blocks at both ends, which are named in another way
# How many of the first blocks may look like the others and read something else, and how many of the last be read later.
_LEADING, _READ_LATER = 2, 2
_CALLS = ("call_function", "call_method")


def read_by_few(
    module: fx.GraphModule, inputs: Sequence[Any], trace: Trace, read: Callable[[Captured], Reading]
) -> Reading | None:
    """Return the reading of a model's joint graph from a few blocks, or None.

    Args:
        module: the model as torch's front end hands it over, before autograd.
        inputs: its inputs.
        trace: has torch make the joint graph.
        read: reads a joint graph, with signatures written out.
    """
    repetition = repetition_of(module.graph, inputs)
    if repetition is None:
        return None
    traces: list[Captured] = []
    for blocks in _TRACED:
        captured = trace(*repetition.shortened(module, inputs, blocks))
        if captured is None or any(captured.forward_outputs != other.forward_outputs for other in traces):
            return None
        traces.append(captured)
    try:
        reading = followed(list(map(read, traces)), repetition.blocks - _TRACED[0])
    except GraphError:  # what is wrong with the model, if anything, is found where it is traced as a whole
        return None
    return reading if reading is not None and _has_inputs(reading.graph, module, inputs) else None


def _has_inputs(graph: Graph, module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Tell whether a graph's first inputs are those of the captured model, in their order."""
    given = given_of(module, inputs)
    root = root_of(tuple(primal.source for primal in given))
    expected = [
        (readable(primal.source, root), tuple(value.shape)) for primal, value in zip(given, inputs, strict=True)
    ]
    return [(name, graph.tensors[name].shape) for name in graph.inputs[: len(expected)]] == expected


@dataclass(frozen=True)
class Repetition:
    """Equal consecutive blocks in torch's capture of a model.

    Attributes:
        first: place of the first block's first node among the nodes that are no inputs.
        length: nodes of a block.
        own_inputs: for each block, places of the inputs that no other block reads.
    """

    first: int
    length: int
    own_inputs: tuple[frozenset[int], ...]

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return len(self.own_inputs)

    def shortened(self, module: fx.GraphModule, inputs: Sequence[Any], blocks: int) -> tuple[fx.GraphModule, list[Any]]:
        """Return the module with its first blocks alone, and their inputs; behind them, the last stand for the last."""
        unread = frozenset[int]().union(*self.own_inputs[blocks:])
        placeholders, calls = _inputs_and_calls(module.graph)
        kept = [place for place in range(len(placeholders)) if place not in unread]
        after, end = self.first + blocks * self.length, self.first + self.blocks * self.length
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in (*(placeholders[place] for place in kept), *calls[:after]):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        reach = _READ_LATER * self.length
        last, last_kept = calls[end - reach : end], calls[after - reach : after]
        copies |= {node: copies[same] for node, same in zip(last, last_kept, strict=True)}
        for node in calls[end:]:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        short = fx.GraphModule(module, graph)
        short.meta.update(module.meta)
        return short, [inputs[place] for place in kept]


def repetition_of(graph: fx.Graph, inputs: Sequence[Any]) -> Repetition | None:
    """Return the repeating blocks in torch's capture of a model, or None.

    None if too few blocks repeat, or not exactly.

    Args:
        graph: graph of torch's front end, before autograd.
        inputs: inputs of the graph.
    """
    if not _apart(inputs):
        return None
    front = _Front(graph, inputs)
    first, length, blocks = _longest_run(front.forms)
    for skipped in range(min(_LEADING, blocks - 1) + 1):
        begin, left = first + skipped * length, blocks - skipped
        traced = sum(len(front.calls) - (left - few) * length for few in _TRACED)
        if traced > LARGEST_SHARE * len(front.calls):
            return None
        if (repetition := front.repetition(begin, length, left)) is not None:
            return repetition
    return None


class _Front:
    """The capture of a model by torch's front end.

    Attributes:
        placeholders: the inputs.
        calls: all other nodes.
        forms: the part of each call that is the same in equal blocks.
        read: for each call, places of the calls that it reads.
        given: for each call, places of the inputs that it reads.
        in_paths: for each call, numbers in the path of its module.
    """

    def __init__(self, graph: fx.Graph, inputs: Sequence[Any]) -> None:
        self.placeholders, self.calls = _inputs_and_calls(graph)
        self.place = {node: place for nodes in (self.placeholders, self.calls) for place, node in enumerate(nodes)}
        layouts = {node: _layout(value) for node, value in zip(self.placeholders, inputs, strict=True)}
        self.forms: list[Hashable] = []
        self.read, self.given, self.in_paths = list[list[int]](), list[list[int]](), list[list[int]]()
        for node in self.calls:
            given = [source for source in node.all_input_nodes if source in layouts]
            path, in_path = form_and_numbers(_path(node))
            self.forms.append((_form(node), tuple(layouts[source] for source in given), path))
            self.read.append([self.place[source] for source in node.all_input_nodes if source not in layouts])
            self.given.append([self.place[source] for source in given])
            self.in_paths.append(in_path)

    def repetition(self, first: int, length: int, blocks: int) -> Repetition | None:
        """Return blocks of equal forms as a repetition, or None.

        None if their reads do not lie on lines.
        """
        end = first + blocks * length
        numbers = self.read, self.given, self.in_paths
        tables = read, given, _ = [_by_block(of, first, length, blocks) for of in numbers]
        # Each block reads what the one before, or all, read: in blocks that go before it, or before all.
        follows = (read[1] - read[0] == length) | ((read[1] == read[0]) & (read[0] < first))
        read_behind = {place for places in self.read[end:] for place in places}
        if (
            any(np.diff(table, n=2, axis=0).any() for table in tables)
            or not follows.all()
            or not read_behind.isdisjoint(range(first, end - _READ_LATER * length))
            or any(node.op not in _CALLS for node in self.calls[first:end])
        ):
            return None
        own = given[:, given[0] != given[1]]
        for begin, places in zip(range(first, end, length), own.tolist(), strict=True):
            users = (self.place[user] for place in places for user in self.placeholders[place].users)
            if any(not begin <= user < begin + length for user in users):
                return None
        return Repetition(first, length, tuple(frozenset(row) for row in own.tolist()))


def _inputs_and_calls(graph: fx.Graph) -> tuple[list[fx.Node], list[fx.Node]]:
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    return inputs, [node for node in graph.nodes if node.op != "placeholder"]


def _apart(inputs: Sequence[Any]) -> bool:
    """Tell whether inputs are dense tensors of one device, each in memory of its own.

    Otherwise all of them count: who shares memory with whom, and which device has most of the bytes.
    """
    dense = [value for value in inputs if isinstance(value, torch.Tensor) and value.layout is torch.strided]
    alone = len({storage_key(value) for value in dense}) == len(inputs)
    return alone and len({value.device for value in dense}) == 1


@dataclass(frozen=True)
class _Slot:
    """Stands for an input of a node, by its number."""

    number: int


def _form(node: fx.Node) -> Hashable:
    """Return the form of a node.

    It is the op, with constants, place in the user's code, and layouts of results.
    """
    number = {source: _Slot(number) for number, source in enumerate(node.all_input_nodes)}
    operands = repr(map_arg((node.args, node.kwargs), lambda source: number[source]))  # type: ignore[arg-type,return-value]
    kinds = tuple(source.op == "placeholder" for source in number)
    value = node.meta.get("example_value")
    layouts = type(value), *map(_layout, tensors_of(value))
    return node.op, node.target, operands, kinds, layouts, node.meta.get("stack_trace")


def _path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    return "".join(str(path) for path, _ in list(stack.values())[-1:])


def _layout(tensor: torch.Tensor) -> Hashable:
    kind = type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad
    if tensor.layout is not torch.strided:  # refused where the whole is read
        return kind
    memory = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes()
    return *kind, repr(memory), tensor.is_conj(), tensor.is_neg()  # sizes that depend on data have no hash


def _longest_run(forms: Sequence[Hashable]) -> tuple[int, int, int]:
    """Return the longest repeating stretch.

    The result is its start, the length of a period, and the number of periods.
    """
    known: dict[Hashable, int] = {}
    kinds = np.array([known.setdefault(form, len(known)) for form in forms])
    best = (0, 1, 1)
    for length in range(1, int(LARGEST_SHARE / sum(_TRACED) * len(kinds)) + 1):
        differs = np.flatnonzero(np.concatenate(([True], kinds[:-length] != kinds[length:], [True])))
        runs = np.diff(differs) - 1
        longest = int(runs.argmax())
        blocks = int(runs[longest]) // length + 1
        if blocks > 1 and blocks * length > best[1] * best[2]:
            best = (int(differs[longest]), length, blocks)
    return best


def _by_block(numbers: Sequence[list[int]], first: int, length: int, blocks: int) -> NDArray[np.int64]:
    """Return numbers of calls, [blocks, numbers of a block]."""
    starts = range(first, first + blocks * length, length)
    rows = [[number for of in numbers[start : start + length] for number in of] for start in starts]
    return np.array(rows, dtype=np.int64)
