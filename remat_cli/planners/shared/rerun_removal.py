"""Removal of reruns whose outputs the budget can keep instead.

A plan that fits rarely fills the budget at every step. A rerun can be dropped if the outputs of the op's run before fit
in memory until their next read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import Generic

from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Ints
from remat_cli.planners.shared.sequence import AnySequence

# The memory of a dropped run: lower than any other, whatever is added.
_NOTHING = -(2**62)


def without_needless_reruns(sequence: AnySequence, budget_bytes: int, limits: Limits | None = None) -> AnySequence:
    """Drop the reruns whose outputs the budget can keep.

    The search is greedy: reruns that save the most time for each kept byte come first.

    Args:
        sequence: a sequence that fits the budget.
        budget_bytes: device memory, including resident bytes and graph inputs.
        limits: limits after which the sequence is returned as it is then.
    """
    if limits is not None and limits.is_over:
        return sequence
    shrinking = _ShrinkingSequence(sequence)
    time, runs = sequence.graph.arrays.op_time.tolist(), sequence.ops.tolist()
    waiting = sorted(shrinking.reruns(), key=lambda at: (-time[runs[at]] / max(shrinking.written_bytes(at), 1), at))
    while waiting:
        refused = []
        for at in waiting:
            if limits is not None and limits.is_over:
                return shrinking.left()
            if not shrinking.leave_out(at, budget_bytes):
                refused.append(at)
        # Dropped runs may have made memory for others.
        waiting = refused if len(refused) < len(waiting) else []
    return shrinking.left()


class _ShrinkingSequence(Generic[AnySequence]):
    """A sequence from which runs are dropped, with its memory.

    Runs keep their positions when others are dropped.

    Attributes:
        memory: bytes during each run; far below 0 for dropped runs.
    """

    memory: Ints

    def __init__(self, sequence: AnySequence) -> None:
        graph = sequence.graph
        arrays = graph.arrays
        self._sequence = sequence
        self._runs: list[int] = sequence.ops.tolist()
        self._producer: list[int] = arrays.producer.tolist()
        self._inputs = [tuple(t for t in tensors if self._producer[t] >= 0) for tensors in arrays.inputs]
        self._outputs, self._inplace = arrays.outputs, arrays.inplace
        self._inplace_bytes: list[int] = arrays.inplace_bytes.tolist()
        self._size: list[int] = arrays.tensor_bytes.tolist()
        self._is_output: list[bool] = arrays.is_output.tolist()
        self._runs_of: list[list[int]] = [[] for _ in graph.ops]  # positions
        self._reads_of: list[list[int]] = [[] for _ in graph.tensors]  # positions
        for at, op in enumerate(self._runs):
            self._runs_of[op].append(at)
            for t in self._inputs[op]:
                self._reads_of[t].append(at)
        self.memory = sequence.memory.copy()

    def reruns(self) -> Iterator[int]:
        """Yield the positions of reruns."""
        for positions in self._runs_of:
            yield from positions[1:]

    def written_bytes(self, at: int) -> int:
        """Return the output bytes of a run that are needed afterwards."""
        return sum(self._size[t] for t in self._outputs[self._runs[at]] if self._end(t, at) > at)

    def left(self) -> AnySequence:
        """Return the sequence without the dropped runs."""
        return replace(self._sequence, ops=self._sequence.ops[self.memory >= 0])

    def leave_out(self, at: int, budget_bytes: int) -> bool:
        """Drop a run and the runs that only it needs, if the rest fits.

        Tells whether the run is dropped.
        """
        if self.memory[at] < 0:
            return True
        changes = list(self._changes_without(at))
        begin = min((start for start, _, _ in changes), default=at)
        memory = self.memory[begin:at].copy()
        for start, stop, size in changes:
            memory[start - begin : stop - begin] += size
        if memory.size and memory.max() > budget_bytes:
            return False
        self.memory[begin:at] = memory
        self._remove(at)
        return True

    def _remove(self, at: int) -> None:
        op = self._runs[at]
        self.memory[at] = _NOTHING
        self._runs_of[op].remove(at)
        for t in self._inputs[op]:
            self._reads_of[t].remove(at)
        for t in self._inputs[op]:
            run = self._producing_run(t, at)
            if self.memory[run] >= 0 and self._is_useless(run):
                self.leave_out(run, budget_bytes=2**62)

    def _is_useless(self, at: int) -> bool:
        """Tell whether no run needs the run's outputs, and its op has another."""
        op = self._runs[at]
        return len(self._runs_of[op]) > 1 and all(self._end(t, at) == at for t in self._outputs[op])

    def _changes_without(self, at: int) -> Iterator[tuple[int, int, int]]:
        """Yield (start, stop, bytes) changes of memory without a run.

        They concern the positions before the run.
        """
        op = self._runs[at]
        for t in self._outputs[op]:
            if self._end(t, at) > at:  # its last instance lives on
                end = self._end(t, self._producing_run(t, at))
                yield end + 1, at, self._size[t]
                yield end, end + 1, self._shared(t, end)
        for t in self._inputs[op]:
            run = self._producing_run(t, at)
            if self._end(t, run) == at:
                end = self._last_read(t, run, at)
                yield end + 1, at, -self._size[t]
                yield end, end + 1, -self._shared(t, end)

    def _shared(self, tensor: int, at: int) -> int:
        """Return the bytes that a run saves by taking over an ending tensor."""
        op = self._runs[at]
        return self._inplace_bytes[op] if self._inplace[op] == tensor else 0

    def _producing_run(self, tensor: int, before: int) -> int:
        """Return the position of a tensor's last producing run before `before`."""
        positions = self._runs_of[self._producer[tensor]]
        return positions[bisect_left(positions, before) - 1]

    def _end(self, tensor: int, run: int) -> int:
        """Return the position after which an instance is freed.

        The instance is the one produced at `run`. A position past the end means never.
        """
        positions = self._runs_of[self._producer[tensor]]
        after = bisect_right(positions, run)
        if after < len(positions):
            return self._last_read(tensor, run, positions[after])
        return len(self._runs) if self._is_output[tensor] else self._last_read(tensor, run, len(self._runs))

    def _last_read(self, tensor: int, run: int, before: int) -> int:
        """Return the last position before `before` that reads an instance.

        The instance is the one produced at `run`, which is the result without a reader.
        """
        reads = self._reads_of[tensor]
        place = bisect_left(reads, before)
        return max(reads[place - 1], run) if place else run
