"""The states of a device during execution, and the runs between states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from remat_cli.core.graph import Graph, Op

# The number of cached results of each method below.
_KEPT = 1 << 16


class DeviceState(NamedTuple):
    """The state of a device between two runs.

    Attributes:
        live: the tensors in memory that may still be read, a bit each; graph inputs, which never leave, have none.
        done: the ops that have run, a bit each.
    """

    live: int
    done: int


class _OpBits(NamedTuple):
    """An op, with its inputs and outputs as bits of tensors."""

    number: int
    bit: int
    reads: int
    makes: int
    workspace_bytes: int
    time: int
    recomputable: bool
    takes: int  # the tensor whose storage its first output can take over; 0 if that saves nothing
    shared_bytes: int  # bytes saved in that way


class StateSpace:
    """The states of a graph under a budget.

    Tensors are freed only when their memory is needed: more tensors in memory never hurt, as freeing takes no time.
    Then a minimal set of tensors that frees enough memory is removed; each such set leads to a state of its own.
    Tensors that are never read again are left out of the states.
    """

    def __init__(self, graph: Graph, room_bytes: int) -> None:
        """Lay out a graph.

        Args:
            graph: the graph to plan.
            room_bytes: device memory for outputs of ops.
        """
        self._room = room_bytes
        self._bit = {name: 1 << number for number, name in enumerate(graph.producer)}
        self._bytes = {bit: graph.tensors[name].bytes for name, bit in self._bit.items()}
        # The largest first, as `_smallest_sets` requires; tensors of 0 bytes never need to leave.
        self._sized = sorted((bit for bit, size in self._bytes.items() if size), key=lambda bit: -self._bytes[bit])
        self._runs = [self._run(number, op, graph) for number, op in enumerate(graph.ops)]
        self._outputs = self._bits(graph.outputs)
        self._all_done = (1 << len(graph.ops)) - 1
        self._bytes_of = lru_cache(_KEPT)(self._bytes_of)  # type: ignore[method-assign]
        self._wanted = lru_cache(_KEPT)(self._wanted)  # type: ignore[method-assign]
        self._smallest_sets = lru_cache(_KEPT)(self._smallest_sets)  # type: ignore[method-assign]

    def _bits(self, names: Iterable[str]) -> int:
        return sum(self._bit.get(name, 0) for name in set(names))

    def _run(self, number: int, op: Op, graph: Graph) -> _OpBits:
        takes = self._bit.get(op.inplace or "", 0)
        shared = min(self._bytes[takes], graph.tensors[op.outputs[0]].bytes) if takes else 0
        return _OpBits(
            number=number,
            bit=1 << number,
            reads=self._bits(op.inputs),
            makes=self._bits(op.outputs),
            workspace_bytes=op.workspace_bytes,
            time=op.time,
            recomputable=op.recomputable,
            takes=takes if shared else 0,
            shared_bytes=shared,
        )

    def is_end(self, state: DeviceState) -> bool:
        """Tell whether all ops have run and the graph's outputs are in memory."""
        return state.done == self._all_done and not self._outputs & ~state.live

    def least_time_left(self, state: DeviceState) -> int | None:
        """Return the time of the remaining runs with unlimited memory.

        None if no runs lead to the end.

        These are the ops that have not run, and the producers of missing tensors. A run lowers this time by no more
        than its own time, so A* reaches every state on a shortest path.
        """
        live, done = state
        missing, time = self._outputs & ~live, 0
        for run in reversed(self._runs):
            if run.bit & done:
                if not run.makes & missing:
                    continue
                if not run.recomputable:
                    return None
            missing |= run.reads & ~live
            time += run.time
        return time

    def moves(self, state: DeviceState) -> Iterator[tuple[int, int, DeviceState]]:
        """Yield the possible next runs: op number, time and next state."""
        live, done = state
        wanted = self._wanted(done)
        for run in self._runs:
            if run.reads & ~live:
                continue
            if run.bit & done and not (run.recomputable and run.makes & wanted & ~live):
                continue
            after = done | run.bit
            for now in self._memory_after(run, live):
                yield run.number, run.time, DeviceState(now & self._wanted(after), after)

    def _memory_after(self, run: _OpBits, live: int) -> Iterator[int]:
        """Yield the tensors in memory after a run, for each choice to free."""
        now = live | run.makes
        excess = self._bytes_of(now) + run.workspace_bytes - self._room
        if excess <= 0:
            yield now
            return
        others = live & ~run.reads & ~run.makes
        for freed in self._smallest_sets(others, excess):
            yield now & ~freed
        if run.takes:
            for freed in self._smallest_sets(others, excess - run.shared_bytes):
                yield now & ~run.takes & ~freed

    def _bytes_of(self, tensors: int) -> int:
        return sum(size for bit, size in self._bytes.items() if bit & tensors)

    def _wanted(self, done: int) -> int:
        """Return the tensors that later runs may read, including reruns."""
        wanted = self._outputs
        for run in reversed(self._runs):
            if not run.bit & done or (run.recomputable and run.makes & wanted):
                wanted |= run.reads
        return wanted

    def _smallest_sets(self, tensors: int, excess: int) -> tuple[int, ...]:
        """Return the minimal sets of these tensors that have `excess` bytes or more."""
        bits = [bit for bit in self._sized if bit & tensors]
        left = [0]
        for bit in reversed(bits):
            left.append(left[-1] + self._bytes[bit])
        left.reverse()
        smallest = []
        # The last one taken is the smallest: if it is needed, all of them are.
        stack = [(0, excess, 0)]
        while stack:
            first, missing, taken = stack.pop()
            if missing <= 0:
                smallest.append(taken)
            elif missing <= left[first]:
                stack.append((first + 1, missing, taken))
                stack.append((first + 1, missing - self._bytes[bits[first]], taken | bits[first]))
        return tuple(smallest)
