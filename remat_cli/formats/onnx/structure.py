"""The structure of the file's graph: names, definitions and order.

Each name has one producer, every input is defined, and the order can be executed. onnx's checker is not used: it stops
at the first error, needs shapes on outputs and opens external data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from graphlib import CycleError
from typing import TYPE_CHECKING

from remat_cli.core.graph import describe_cycle, find_cycle
from remat_cli.errors import GraphError
from remat_cli.formats.file_order import file_order
from remat_cli.formats.onnx.scopes import noted_module
from remat_cli.formats.onnx.walk import bodies_of

if TYPE_CHECKING:
    import onnx

_DAMAGED = "the file is damaged, or its export went wrong; export it again"


@dataclass(frozen=True)
class Node:
    """A node with a unique name.

    Attributes:
        name: unique within its graph.
        proto: the node in the file.
        captured: names of outer values that its bodies read.
    """

    name: str
    proto: onnx.NodeProto
    captured: tuple[str, ...]

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Names of all values that the node reads, each once."""
        return tuple(dict.fromkeys((*filter(None, self.proto.input), *self.captured)))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the values that the node produces."""
        return tuple(filter(None, self.proto.output))


def executable_nodes(graph: onnx.GraphProto, outer: Collection[str], path: str = "") -> tuple[tuple[Node, ...], bool]:
    """Return the nodes in an executable order.

    Also return whether that is the order of the file. Nodes that are out of order move as little as needed: the sort is
    stable.

    Args:
        graph: the main graph or a body.
        outer: names that the surrounding graphs define.
        path: prefix of the nodes' names.

    Raises:
        GraphError: a name has two producers, an input is undefined, or there is a cycle.
    """
    nodes = [
        Node(path + name, proto, captured_names(proto))
        for name, proto in zip(_unique_names(graph.node), graph.node, strict=True)
    ]
    inputs = Counter(value.name for value in graph.input)
    for name, count in inputs.items():
        if count > 1:
            raise GraphError(f"the graph has {count} inputs named {name!r}", hint=_DAMAGED)
    given = inputs.keys() | stored_names(graph)
    producer = _producers(nodes, given)
    for node in nodes:
        for name in node.reads:
            if name not in given and name not in producer and name not in outer:
                raise GraphError(
                    f"op {node.name!r} reads {name!r}, which nothing defines",
                    hint=did_you_mean(name, [*given, *producer]),
                )
    for value in graph.output:
        if value.name not in given and value.name not in producer and value.name not in outer:
            raise GraphError(
                f"the graph's output {value.name!r} is defined by nothing", hint=did_you_mean(value.name, producer)
            )
    return _sorted(nodes, producer)


def captured_names(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the outer values that a node's bodies read, at any depth."""
    names: dict[str, None] = {}
    for body in bodies_of(node):
        own = {value.name for value in body.input} | stored_names(body)
        own.update(name for inner in body.node for name in inner.output)
        for inner in body.node:
            names |= dict.fromkeys(name for name in (*inner.input, *captured_names(inner)) if name and name not in own)
        names |= dict.fromkeys(value.name for value in body.output if value.name not in own)
    return tuple(names)


def stored_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the values that a graph stores."""
    return {tensor.name for tensor in graph.initializer} | {tensor.values.name for tensor in graph.sparse_initializer}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the closest known name, if one is close."""
    # Matching against all names of a large graph would take longer than reading it.
    close = get_close_matches(name, sorted(known)[:5000], n=1)
    return f"did you mean {close[0]!r}?" if close else _DAMAGED


def _unique_names(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """Return a unique name for each node.

    It is the node's own, or "Conv_12" for the node at index 12; repeated names are numbered. A name invented by
    PyTorch's exporter, such as node_MatMul_887, is replaced by the node's module.
    """
    own_names = [f"{module}/{node.op_type}" if (module := noted_module(node)) else node.name for node in nodes]
    taken = set(own_names)
    given: set[str] = set()
    next_number: Counter[str] = Counter()
    names = []
    for index, (node, own_name) in enumerate(zip(nodes, own_names, strict=True)):
        name = wanted = own_name or f"{node.op_type}_{index}"
        is_free = wanted not in (given if own_name else taken)
        while not is_free:
            next_number[wanted] += 1
            name = f"{wanted}_{next_number[wanted] + 1}"
            is_free = name not in taken
        given.add(name)
        taken.add(name)
        names.append(name)
    return names


def _producers(nodes: Sequence[Node], given: Collection[str]) -> dict[str, int]:
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.outputs:
            if name in producer or name in given:
                other = f"op {nodes[producer[name]].name!r}" if name in producer else "the inputs or initializers"
                raise GraphError(
                    f"{name!r} is defined twice, by {other} and by op {node.name!r}",
                    hint="each value of an ONNX graph has one definition; export the model again",
                )
            producer[name] = index
    return producer


def _sorted(nodes: Sequence[Node], producer: dict[str, int]) -> tuple[tuple[Node, ...], bool]:
    """Sort the nodes after their inputs; tell whether they were sorted."""
    try:
        order = file_order([{producer[name] for name in node.reads if name in producer} for node in nodes])
    except CycleError:
        raise _cycle_error(nodes, producer) from None
    return tuple(nodes[index] for index in order), order == list(range(len(nodes)))


def _cycle_error(nodes: Sequence[Node], producer: dict[str, int]) -> GraphError:
    cycle = find_cycle(
        {node.name: [nodes[producer[name]].name for name in node.reads if name in producer] for node in nodes}
    )
    return GraphError(
        f"the graph has a cycle: {describe_cycle(cycle)}",
        hint="a computation graph must be acyclic; express loops with Loop or Scan",
    )
