"""A first order by list scheduling: least added memory first."""

from __future__ import annotations

import heapq

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.planners.shared.numbering import Ints


def greedy_order(graph: Graph) -> Ints:
    """Return the topological order that always adds the least memory next.

    Among equals the first op in the input order comes first. The time is near-linear in the number of reads.
    """
    return np.array(_ListScheduling(graph).run(), dtype=np.int64)


class _ListScheduling:
    """One run of list scheduling.

    An op adds its needed outputs, minus the inputs that it is the last to read.
    """

    def __init__(self, graph: Graph) -> None:
        arrays = graph.arrays
        count = len(graph.ops)
        is_made = (arrays.producer >= 0).tolist()
        self._inputs, self._outputs = arrays.inputs, arrays.outputs
        self._ending_bytes = np.where(arrays.is_output | (arrays.producer < 0), 0, arrays.tensor_bytes).tolist()
        self._readers: list[list[int]] = [[] for _ in is_made]
        for op, inputs in enumerate(self._inputs):
            for tensor in inputs:
                self._readers[tensor].append(op)
        self._unread = [len(readers) for readers in self._readers]
        # Sum of the numbers of the ops that have yet to read a tensor: with one op left, this is that op's number.
        self._to_read = [sum(readers) for readers in self._readers]
        self._unmade = [sum(is_made[tensor] for tensor in inputs) for inputs in self._inputs]
        needed = (arrays.is_output | np.array([count > 0 for count in self._unread], dtype=np.bool_)).tolist()
        sizes = arrays.tensor_bytes.tolist()
        self._adds = [sum(sizes[tensor] for tensor in outputs if needed[tensor]) for outputs in self._outputs]
        self._queue: list[tuple[int, int]] = []
        for tensor, unread in enumerate(self._unread):
            if unread == 1:
                self._adds[self._to_read[tensor]] -= self._ending_bytes[tensor]
        for op in range(count):
            self._offer(op)

    def run(self) -> list[int]:
        """Return the order of the ops."""
        order: list[int] = []
        while self._queue:
            adds, op = heapq.heappop(self._queue)
            if adds != self._adds[op]:
                continue  # outdated: another op's reads lowered its addition, and it was queued again
            order.append(op)
            for tensor in self._inputs[op]:
                self._read(tensor, op)
            for tensor in self._outputs[op]:
                self._make(tensor)
        return order

    def _offer(self, op: int) -> None:
        if self._unmade[op] == 0:
            heapq.heappush(self._queue, (self._adds[op], op))

    def _read(self, tensor: int, op: int) -> None:
        self._unread[tensor] -= 1
        self._to_read[tensor] -= op
        if self._unread[tensor] == 1 and self._ending_bytes[tensor] > 0:
            last = self._to_read[tensor]
            self._adds[last] -= self._ending_bytes[tensor]
            self._offer(last)

    def _make(self, tensor: int) -> None:
        for reader in self._readers[tensor]:
            self._unmade[reader] -= 1
            self._offer(reader)
