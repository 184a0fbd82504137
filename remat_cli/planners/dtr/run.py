"""One run of a graph as in DTR's runtime, with evictions.

Ops run one after the other; when memory is short, the least important tensor is evicted. Source: Kirisame et al.,
Dynamic Tensor Rematerialization, ICLR 2021, section 2 and appendix C (the simulator), with eager eviction: a tensor is
evicted right after its last reader, and recomputed if a recomputation needs it. This run adds the judge's rules: an
op's workspace counts while it runs, ops work in place, some run only once, a graph output stays from its last reader
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.planners.dtr.costs import ClassCosts, EvictionCosts, RegionCosts
from remat_cli.planners.dtr.options import Heuristic

_WITHOUT_AGE = (Heuristic.MSPS, Heuristic.SIZE)
_WITHOUT_SIZE = (Heuristic.LRU,)
# Replaces a time of 0 since the last use, so that tensors without cost still go first.
_NO_TIME = 1e-9


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The limits at which a run is given up.

    Attributes:
        bytes: device memory that the run may use by its own count, without graph inputs and resident bytes.
        time: largest total time of the ops' runs.
        runs: largest number of the ops' runs.
        deadline: end of the run by `time.monotonic()`.
    """

    bytes: int
    time: int
    runs: int
    deadline: float


class _GivenUp(Exception):
    """No tensor is left to evict, or a limit is reached."""


class EvictingDevice:
    """The device while a graph runs."""

    def __init__(self, graph: Graph, heuristic: Heuristic, limits: RunLimits) -> None:
        arrays = graph.arrays
        self._limits = limits
        self._producer: list[int] = arrays.producer.tolist()
        self._inputs = [[t for t in row if self._producer[t] >= 0] for row in arrays.inputs]
        self._outputs = arrays.outputs
        self._inplace = arrays.inplace
        self._size: list[int] = arrays.tensor_bytes.tolist()
        self._is_output: list[bool] = arrays.is_output.tolist()
        self._time: list[int] = arrays.op_time.tolist()
        self._workspace: list[int] = arrays.workspace_bytes.tolist()
        self._recomputable: list[bool] = arrays.recomputable.tolist()

        count = len(self._size)
        self._is_here = bytearray(count)
        self._is_lost = bytearray(count)  # evicted, and possibly needed again
        self._locks = [0] * count
        self._unread = [0] * count  # readers that have not run yet
        for row in self._inputs:
            for t in row:
                self._unread[t] += 1
        # An op is finished when it will not run again: it may not, or nothing needs its outputs.
        self._wanted_by = list(self._unread)  # readers that are not finished
        self._wanted_outputs = [sum(self._wanted_by[t] > 0 for t in row) for row in self._outputs]
        self._has_run = bytearray(len(graph.ops))

        self._used = 0
        self._clock = 0
        self._order: list[int] = []
        self._can_go = np.zeros(count, dtype=np.bool_)
        self._last_access = np.zeros(count, dtype=np.int64)
        self._costs = _costs(graph, heuristic, self._inputs)
        self._ages = heuristic not in _WITHOUT_AGE
        sizes = np.ones(count) if heuristic in _WITHOUT_SIZE else np.maximum(arrays.tensor_bytes, 1)
        self._per_byte = 1 / sizes

    def computes(self) -> list[int] | None:
        """Return the ops in the order of their runs; None if given up."""
        try:
            for op in range(len(self._outputs)):
                self._compute(op)
                self._count_first_run(op)
        except _GivenUp:
            return None
        return self._order

    def _compute(self, op: int) -> None:
        """Run `op` after the ops that recompute its missing inputs."""
        stack = [(op, self._open(op))]
        while stack:
            op, missing = stack[-1]
            if missing and self._is_here[missing[-1]]:
                self._lock(missing.pop())
            elif missing:
                producer = self._producer[missing[-1]]
                stack.append((producer, self._open(producer)))
            else:
                stack.pop()
                self._run(op)

    def _open(self, op: int) -> list[int]:
        """Lock the inputs in memory; return the missing ones, last first."""
        inputs = self._inputs[op]
        self._last_access[inputs] = self._clock
        for t in inputs:
            if self._is_here[t]:
                self._lock(t)
        return [t for t in reversed(inputs) if not self._is_here[t]]

    def _run(self, op: int) -> None:
        produced = [t for t in self._outputs[op] if not self._is_here[t]]
        new_bytes = sum(self._size[t] for t in produced)
        taken = self._taken_over(op)
        shared = 0 if taken is None else min(self._size[taken], self._size[produced[0]])
        self._make_room(new_bytes + self._workspace[op] - shared)
        self._order.append(op)
        self._clock += self._time[op]
        self._check_limits()
        self._used += new_bytes
        for t in self._inputs[op]:
            self._unlock(t)
        if taken is not None:
            self._evict(taken)
        for t in produced:
            self._arrive(t)

    def _check_limits(self) -> None:
        limits = self._limits
        if self._clock > limits.time or len(self._order) > limits.runs or monotonic() >= limits.deadline:
            raise _GivenUp

    def _taken_over(self, op: int) -> int | None:
        """Return the input whose storage the first output takes over.

        No other op may wait for that input. None if there is none.
        """
        taken = self._inplace[op]
        if taken < 0 or self._producer[taken] < 0 or self._is_here[self._outputs[op][0]]:
            return None
        waits_for_this = 0 if self._has_run[op] else 1
        is_free = self._locks[taken] == 1 and self._unread[taken] == waits_for_this
        stays = self._is_output[taken] or not self._recomputable[self._producer[taken]]
        return taken if is_free and not stays else None

    def _make_room(self, needed: int) -> None:
        while self._used + needed > self._limits.bytes:
            self._evict(self._least())

    def _least(self) -> int:
        """Return the tensor of lowest score.

        Scores may be lower bounds until the lowest one is exact.
        """
        if not self._can_go.any():
            raise _GivenUp
        scores = np.where(self._can_go, self._scores(slice(None)), np.inf)
        while True:
            least = int(scores.argmin())
            if not self._costs.settle(least):
                return least
            scores[least] = self._scores(least)

    def _scores(self, tensors: slice | int) -> Any:
        scores = self._costs.values[tensors] * self._per_byte[tensors]
        if self._ages:
            scores = scores / np.maximum(self._clock - self._last_access[tensors], _NO_TIME)
        return scores

    def _arrive(self, tensor: int) -> None:
        self._is_here[tensor] = True
        if self._is_lost[tensor]:
            self._is_lost[tensor] = False
            self._costs.found(tensor)
        else:
            self._last_access[tensor] = self._clock
        if not self._wanted_by[tensor] and not self._is_output[tensor]:
            self._evict(tensor)
        else:
            self._can_go[tensor] = self._may_go(tensor)

    def _evict(self, tensor: int) -> None:
        self._is_here[tensor] = False
        self._can_go[tensor] = False
        self._used -= self._size[tensor]
        if self._wanted_by[tensor]:
            self._is_lost[tensor] = True
            self._costs.lost(tensor)

    def _lock(self, tensor: int) -> None:
        self._locks[tensor] += 1
        self._can_go[tensor] = False

    def _unlock(self, tensor: int) -> None:
        self._locks[tensor] -= 1
        self._can_go[tensor] = self._may_go(tensor)

    def _may_go(self, tensor: int) -> bool:
        """Tell whether `tensor`, which is in memory, may be evicted for space."""
        stays = self._locks[tensor] or not self._recomputable[self._producer[tensor]] or not self._size[tensor]
        return not stays and (self._unread[tensor] > 0 or not self._is_output[tensor])

    def _count_first_run(self, op: int) -> None:
        """Record the first run of `op`, and evict tensors that waited only for `op`."""
        self._has_run[op] = True
        for t in self._inputs[op]:
            self._unread[t] -= 1
        if not (self._recomputable[op] and self._wanted_outputs[op]):
            self._let_go(op)
        for t in (*self._inputs[op], *self._outputs[op]):
            if self._is_here[t]:
                self._can_go[t] = self._may_go(t)
                if self._can_go[t] and not self._unread[t]:
                    self._evict(t)

    def _let_go(self, op: int) -> None:
        """Free tensors for good whose readers are all finished.

        `op` is finished from now on.
        """
        through = [op]
        while through:
            for t in self._inputs[through.pop()]:
                self._wanted_by[t] -= 1
                if self._wanted_by[t]:
                    continue
                if self._is_lost[t]:
                    self._is_lost[t] = False
                    self._costs.found(t)
                elif self._is_here[t] and not self._is_output[t]:
                    self._evict(t)
                producer = self._producer[t]
                self._wanted_outputs[producer] -= 1
                if self._recomputable[producer] and not self._wanted_outputs[producer]:
                    through.append(producer)


def _costs(graph: Graph, heuristic: Heuristic, inputs: Sequence[Sequence[int]]) -> EvictionCosts:
    """Return the numerators of the heuristic's score."""
    producer = graph.arrays.producer
    own = np.where(producer >= 0, graph.arrays.op_time[producer], 0).astype(np.float64)
    if heuristic in (Heuristic.LRU, Heuristic.SIZE):
        return EvictionCosts(np.ones_like(own))
    if heuristic is Heuristic.LOCAL:
        return EvictionCosts(own)
    sources_of: list[Sequence[int]] = [inputs[op] if op >= 0 else () for op in producer]
    readers_of: list[list[int]] = [[] for _ in own]
    for t, sources in enumerate(sources_of):
        for source in sources:
            readers_of[source].append(t)
    if heuristic is Heuristic.EQ:
        return ClassCosts(own, [[*above, *below] for above, below in zip(sources_of, readers_of, strict=True)])
    if heuristic is Heuristic.MSPS:
        return RegionCosts(own, (sources_of,), (readers_of,))
    return RegionCosts(own, (sources_of, readers_of), (readers_of, sources_of))
