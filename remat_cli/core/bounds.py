"""Bounds that hold for every planner and every order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from remat_cli.core.graph import Graph, Op


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """The most memory that any op or the end must have.

    No plan has a lower peak.

    Attributes:
        bytes: resident bytes, graph inputs, and the tensors that must be in memory together.
        op: the op that needs them; None for the outputs at the end.
        tensors: these tensors, largest first, without graph inputs.
    """

    bytes: int
    op: str | None
    tensors: tuple[str, ...]


@lru_cache(maxsize=8)  # both planners and reports ask for it
def largest_working_set(graph: Graph, *, residents_stay: bool = False) -> WorkingSet:
    """Return the largest working set of any op, or of the end.

    An op's inputs, outputs and workspace are in memory together while it runs; one that can work in place may take over
    its input's storage. At the end all outputs are in memory.

    Args:
        graph: the graph.
        residents_stay: whether plans keep all residents on the device; otherwise only an op that reads one needs it.
    """
    away = 0 if residents_stay else sum(graph.tensors[name].bytes for name in graph.residents)
    ends = tuple(name for name in graph.outputs if name in graph.producer)
    best = WorkingSet(_bytes_of(graph, ends) - away, None, _by_size(graph, ends))
    for op in graph.ops:
        needed = working_set_bytes(graph, op) - away
        if away:
            needed += sum(graph.tensors[name].bytes for name in op.inputs if graph.tensors[name].resident is not None)
        if needed > best.bytes:
            produced = tuple(name for name in (*op.inputs, *op.outputs) if name in graph.producer)
            best = WorkingSet(needed, op.name, _by_size(graph, produced))
    return best


def working_set_bytes(graph: Graph, op: Op) -> int:
    """Return the least memory that `op` needs to run.

    Resident bytes and graph inputs count, too.
    """
    needed = _bytes_of(graph, (*op.inputs, *op.outputs)) + op.workspace_bytes
    if op.inplace is not None and op.inplace in graph.producer:
        needed -= min(graph.tensors[op.inplace].bytes, graph.tensors[op.outputs[0]].bytes)
    return needed


def _bytes_of(graph: Graph, names: tuple[str, ...]) -> int:
    """Return the memory in use with these tensors, each counted once."""
    return sum(map(graph.freeable_bytes.__getitem__, names), graph.fixed_bytes)


def _by_size(graph: Graph, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: (-graph.tensors[name].bytes, name)))
