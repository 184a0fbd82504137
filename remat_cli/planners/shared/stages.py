"""A graph laid out in one order of first runs, as integer arrays.

Stage t runs the t-th op for the first time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.planners.shared.numbering import Bools, GraphReads, Ints, Ragged


@dataclass(frozen=True, eq=False)
class Stages:
    """Ops and tensors of a graph in a fixed order of first runs.

    Tensors of 0 bytes and graph inputs do not appear: keeping them costs nothing. Tensors are numbered in the order of
    their production. Stage N stands for the end, where the graph's outputs are read.

    Attributes:
        graph: the graph to plan.
        order: [N] number in the graph of the op that each stage runs.
        bytes: [T] int64, size of each tensor.
        produced_at: [T] stage of each tensor's producer; ascending.
        tensor: [T] number of each tensor in `graph.arrays`.
        read_tensor: [R] tensor of each read; reads are distinct, sorted by tensor, then by stage.
        read_stage: [R] stage of each read, up to N.
    """

    graph: Graph
    order: Ints
    bytes: Ints
    produced_at: Ints
    tensor: Ints
    read_tensor: Ints
    read_stage: Ints

    @classmethod
    def of(cls, graph: Graph, order: Ints | None = None) -> Stages:
        """Lay out `graph` in a topological order of its ops' numbers.

        The default is the input order.
        """
        arrays = graph.arrays
        count = len(graph.ops)
        order = np.arange(count) if order is None else order
        stage_of_op = np.empty(count, dtype=np.int64)
        stage_of_op[order] = np.arange(count)
        producer = arrays.producer
        produced_at = np.where(producer >= 0, stage_of_op[producer], -1)
        real = np.flatnonzero((producer >= 0) & (arrays.tensor_bytes > 0))
        real = real[np.argsort(produced_at[real], kind="stable")]
        number = np.full(len(producer), -1, dtype=np.int64)
        number[real] = np.arange(len(real))
        readers, tensors = GraphReads.of(graph).every_read
        stages = stage_of_op[readers]
        kept = np.flatnonzero(arrays.is_output)
        tensors = number[np.concatenate([tensors, kept])]
        stages = np.concatenate([stages, np.full(len(kept), count)])
        keys = np.unique(tensors[tensors >= 0] * (count + 1) + stages[tensors >= 0])
        return cls(
            graph=graph,
            order=order,
            bytes=arrays.tensor_bytes[real],
            produced_at=produced_at[real],
            tensor=real,
            read_tensor=keys // (count + 1),
            read_stage=keys % (count + 1),
        )

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def time(self) -> Ints:
        """[N] time of each stage's op."""
        return self.graph.arrays.op_time[self.order]

    @cached_property
    def workspace(self) -> Ints:
        """[N] workspace of each stage's op, in bytes."""
        return self.graph.arrays.workspace_bytes[self.order]

    @cached_property
    def recomputable(self) -> Bools:
        """[N] whether each stage's op may run again."""
        return self.graph.arrays.recomputable[self.order]

    @cached_property
    def inputs(self) -> Ragged:
        """The tensors that each stage's op reads."""
        inside = self.read_stage < len(self)
        stages, tensors = self.read_stage[inside], self.read_tensor[inside]
        by_stage = np.argsort(stages, kind="stable")
        return Ragged.of(stages[by_stage], tensors[by_stage], len(self))

    @cached_property
    def outputs(self) -> Ragged:
        """The tensors that each stage's op produces."""
        return Ragged.of(self.produced_at, np.arange(len(self.produced_at)), len(self))

    @cached_property
    def last_read(self) -> Ints:
        """[T] stage of each tensor's last read, or of its producer if unread."""
        last = self.produced_at.copy()
        np.maximum.at(last, self.read_tensor, self.read_stage)
        return last

    @cached_property
    def shared_input(self) -> Ints:
        """[N] tensor whose storage the op's first output can take over, or -1."""
        # the last entry is for ops that cannot work in place
        number = np.full(len(self.graph.tensors) + 1, -1, dtype=np.int64)
        number[self.tensor] = np.arange(len(self.tensor))
        return number[np.array(self.graph.arrays.inplace, dtype=np.int64)[self.order]]

    @cached_property
    def shared_bytes(self) -> Ints:
        """[N] bytes that each stage's op saves by working in place."""
        return self.graph.arrays.inplace_bytes[self.order]

    @cached_property
    def own_bytes(self) -> Ints:
        """[N] bytes of inputs, outputs and workspace of each stage's op.

        Savings from working in place are not included.
        """
        return self.inputs.sums(self.bytes) + self.outputs.sums(self.bytes) + self.workspace

    @cached_property
    def plain_bytes(self) -> Ints:
        """[N] bytes in memory during each stage without recomputation.

        Fixed bytes are left out.
        """
        count = len(self)
        # A tensor is held through the stages between its production and its last read, as neither input nor output.
        change = np.zeros(count + 2, dtype=np.int64)
        np.add.at(change, self.produced_at, self.bytes)
        np.add.at(change, self.last_read + 1, -self.bytes)
        alive = np.cumsum(change)[:count]
        ends_here = np.zeros(count, dtype=np.bool_)
        can = self.shared_input >= 0
        ends_here[can] = self.last_read[self.shared_input[can]] == np.flatnonzero(can)
        return alive + self.workspace - np.where(ends_here, self.shared_bytes, 0)
