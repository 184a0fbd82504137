"""The memory of verified schedules at other sizes, without a replay by the judge.

No rule of the judge depends on sizes: a schedule that is valid at some sizes is valid at all, with the same tensors in
memory at each step. A step's memory is the sum of their bytes and its kernel's workspace. So the tensors are read from
the schedule once, and the peak at other sizes is the largest of these sums. Tests hold it against the judge's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.graph import LARGEST_TOTAL, Graph
from remat_cli.core.schedule import Compute, Free, Inplace, Prefetch, Schedule, Step, plain_run
from remat_cli.core.solve import Activations


class SizedMemory:
    """The memory of a verified schedule as a function of sizes.

    Attributes:
        time: time of its ops, without waits for copies to the host.
    """

    def __init__(self, graph: Graph, schedule: Schedule) -> None:
        self.time = sum(graph.op[name].time for name in schedule.computes)
        tensor_index = {name: index for index, name in enumerate(graph.tensors)}
        op_index = {op.name: index for index, op in enumerate(graph.ops)}
        live = set(graph.inputs)
        changes: list[tuple[int, int]] = []  # a tensor that comes or goes, and the sign of its bytes
        moments: list[tuple[int, int]] = []  # how many changes come before a moment, and its op or -1
        for step in schedule.steps:
            for added, removed, op in _moments(graph, step):
                changes += ((tensor_index[name], 1) for name in added if name not in live)
                changes += ((tensor_index[name], -1) for name in removed)
                live.update(added)
                live.difference_update(removed)
                moments.append((len(changes), op_index.get(op, -1)))
        self._changed, self._signs = np.array(changes, dtype=np.int64).reshape(-1, 2).T
        self._before, self._ops = np.array(moments, dtype=np.int64).reshape(-1, 2).T

    def levels(self, sizes: NDArray[np.int64], workspaces: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes at each moment beyond those that no plan frees.

        Args:
            sizes: bytes of the graph's tensors, in their order.
            workspaces: bytes of each op's workspace, in their order, and a 0.
        """
        sums = np.concatenate(([0], np.cumsum(self._signs * sizes[self._changed])))
        return sums[self._before] + workspaces[self._ops]


def _moments(graph: Graph, step: Step) -> Iterator[tuple[Sequence[str], Sequence[str], str]]:
    """Yield each moment of a step: added tensors, removed tensors, running op.

    While an op works in place, the larger of its input and its output counts. These are two moments.
    """
    match step:
        case Compute(op=name):
            yield graph.op[name].outputs, (), name
        case Inplace(op=name):
            op = graph.op[name]
            yield op.outputs[1:], (), name
            yield op.outputs[:1], (op.inplace or "",), name
        case Prefetch(tensor=name):
            yield (name,), (), ""
        case Free(tensor=name):
            yield (), (name,), ""


@lru_cache(maxsize=4)
def plain_memory(graph: Graph) -> SizedMemory:
    """Return the memory of the plain run.

    Where an op saves nothing by working in place, as a tensor is empty, the plain run has it make a copy. That changes
    no peak, so here all ops work in place that can.
    """
    unempty = resized(graph, {name: 1 for name, tensor in graph.tensors.items() if tensor.view_of is None})
    return SizedMemory(unempty, plain_run(unempty))


class ResizedGraph:
    """A graph with tensors of other sizes, built in full only at need.

    Attributes:
        fixed_bytes: bytes that no plan frees.
    """

    def __init__(self, given: Graph, sizes: Mapping[str, int]) -> None:
        """Take a graph to other sizes.

        Args:
            given: the graph at its planned sizes.
            sizes: bytes of its tensors, without tokens, which have none.

        Raises:
            GraphError: the sizes are too large.
        """
        sizes = {name: sizes.get(name, tensor.bytes) for name, tensor in given.tensors.items()}
        workspaces = _workspaces(given, sizes)
        if sum(sizes.values()) + sum(workspaces) + given.resident_bytes > LARGEST_TOTAL:
            resized(given, sizes)
        self._given = given
        self._sizes = np.fromiter(sizes.values(), dtype=np.int64, count=len(sizes))
        self._workspaces = np.array((*workspaces, 0), dtype=np.int64)
        self.fixed_bytes = given.resident_bytes + sum(sizes[name] for name in given.inputs)

    @cached_property
    def graph(self) -> Graph:
        """The graph itself, for the judge."""
        return resized(self._given, dict(zip(self._given.tensors, self._sizes.tolist(), strict=True)))

    def levels(self, memory: SizedMemory) -> NDArray[np.int64]:
        """Return the bytes of a schedule of the given graph at these sizes; see `SizedMemory`."""
        return memory.levels(self._sizes, self._workspaces)

    def peak_bytes(self, memory: SizedMemory) -> int:
        """Return the peak of a schedule of the given graph."""
        return self.fixed_bytes + int(self.levels(memory).max())

    @cached_property
    def plain_peak_bytes(self) -> int:
        """The peak of the plain run."""
        return self.peak_bytes(plain_memory(self._given))

    @cached_property
    def activations(self) -> Activations:
        """The plain run's memory, divided into activations and the rest."""
        is_other = np.isin(list(self._given.tensors), self._given.gradients)
        alone = plain_memory(self._given).levels(np.where(is_other, 0, self._sizes), self._workspaces)
        return Activations(self.fixed_bytes + int(self._sizes[is_other].sum()), int(alone.max()))


def resized(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return a graph with tensors of other sizes.

    The workspace of a kernel grows with the largest growth among the op's tensors, and never shrinks.

    Args:
        graph: the graph at its planned sizes.
        sizes: bytes of its tensors, without tokens, which have none.
    """
    tensors = dict(graph.tensors)
    for name, size in sizes.items():
        if tensors[name].bytes != size:
            tensors[name] = replace(tensors[name], bytes=size, shape=None)
    workspaces = _workspaces(graph, {name: tensor.bytes for name, tensor in tensors.items()})
    ops = (
        op if op.workspace_bytes == size else op.edited(workspace_bytes=size)
        for op, size in zip(graph.ops, workspaces, strict=True)
    )
    return replace(graph, tensors=tensors, ops=tuple(ops))


def _workspaces(graph: Graph, sizes: Mapping[str, int]) -> list[int]:
    """Return the workspace of each op where tensors have other sizes; see `resized`."""
    grown = {name for name, tensor in graph.tensors.items() if sizes[name] > tensor.bytes > 0}
    workspaces = [op.workspace_bytes for op in graph.ops]
    for place, op in enumerate(graph.ops if grown else ()):
        if own := op.workspace_bytes:
            names = grown.intersection((*op.inputs, *op.outputs))
            workspaces[place] = max((-(-own * sizes[name] // graph.tensors[name].bytes) for name in names), default=own)
    return workspaces
