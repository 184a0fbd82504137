"""The states that a device can be in while a graph is executed, and the runs that lead from one to the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from remat_cli.graph import Graph, Op

# What the methods below compute once is kept for so many arguments each.
_KEPT = 1 << 16


class State(NamedTuple):
    """What matters of a device between two runs.

    Attributes:
        live: the tensors in memory that may still be read, a bit each; graph inputs, always there, have none.
        done: the ops that have run, a bit each.
    """

    live: int
    done: int


class _Run(NamedTuple):
    """An op, with what it reads and makes as bits of tensors."""

    number: int
    bit: int
    reads: int
    makes: int
    workspace_bytes: int
    time: int
    recomputable: bool
    takes: int  # the tensor whose storage its first output can take over; 0 where that saves nothing
    shared_bytes: int  # what that saves


class StateSpace:
    """The states of a graph under a budget.

    Nothing is freed before its room is needed: whatever can be done with less in memory can be done with more, as
    freeing takes no time. Then a smallest set of tensors is freed that makes enough room, and every such set leads to
    a state of its own. What is never read again is left out of the states.
    """

    def __init__(self, graph: Graph, room_bytes: int) -> None:
        """Lay out a graph.

        Args:
            graph: what is planned.
            room_bytes: device memory for what ops make.
        """
        self._room = room_bytes
        self._bit = {name: 1 << number for number, name in enumerate(graph.producer)}
        self._bytes = {bit: graph.tensors[name].bytes for name, bit in self._bit.items()}
        # The largest first, as `_smallest_sets` has to have them; those of 0 bytes never need to go.
        self._sized = sorted((bit for bit, size in self._bytes.items() if size), key=lambda bit: -self._bytes[bit])
        self._runs = [self._run(number, op, graph) for number, op in enumerate(graph.ops)]
        self._outputs = self._bits(graph.outputs)
        self._all_done = (1 << len(graph.ops)) - 1
        self._bytes_of = lru_cache(_KEPT)(self._bytes_of)  # type: ignore[method-assign]
        self._wanted = lru_cache(_KEPT)(self._wanted)  # type: ignore[method-assign]
        self._smallest_sets = lru_cache(_KEPT)(self._smallest_sets)  # type: ignore[method-assign]

    def _bits(self, names: Iterable[str]) -> int:
        return sum(self._bit.get(name, 0) for name in set(names))

    def _run(self, number: int, op: Op, graph: Graph) -> _Run:
        takes = self._bit.get(op.inplace or "", 0)
        shared = min(self._bytes[takes], graph.tensors[op.outputs[0]].bytes) if takes else 0
        return _Run(
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

    def is_end(self, state: State) -> bool:
        """Tell whether all ops have run and the graph's outputs are there."""
        return state.done == self._all_done and not self._outputs & ~state.live

    def least_time_left(self, state: State) -> int | None:
        """Return the time of what must still run if memory were unlimited; None where that cannot be done.

        That is every op that has not run, and every maker of what is missing. A run makes it less by no more than its
        own time, so that in A* no state is better reached a second time.
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

    def moves(self, state: State) -> Iterator[tuple[int, int, State]]:
        """Yield the runs that may come next: the op's number, its time, and the state after it."""
        live, done = state
        wanted = self._wanted(done)
        for run in self._runs:
            if run.reads & ~live:
                continue
            if run.bit & done and not (run.recomputable and run.makes & wanted & ~live):
                continue
            after = done | run.bit
            for now in self._memory_after(run, live):
                yield run.number, run.time, State(now & self._wanted(after), after)

    def _memory_after(self, run: _Run, live: int) -> Iterator[int]:
        """Yield what is in memory after a run, for each way to make room for it."""
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
        """Return the tensors that may be read from here on, whatever is recomputed."""
        wanted = self._outputs
        for run in reversed(self._runs):
            if not run.bit & done or (run.recomputable and run.makes & wanted):
                wanted |= run.reads
        return wanted

    def _smallest_sets(self, tensors: int, excess: int) -> tuple[int, ...]:
        """Return the sets of these tensors that have so many bytes, and would not without any one of them."""
        bits = [bit for bit in self._sized if bit & tensors]
        left = [0]
        for bit in reversed(bits):
            left.append(left[-1] + self._bytes[bit])
        left.reverse()
        found = []
        # The last one that is taken is the smallest. If that is needed, all of them are.
        stack = [(0, excess, 0)]
        while stack:
            first, missing, taken = stack.pop()
            if missing <= 0:
                found.append(taken)
            elif missing <= left[first]:
                stack.append((first + 1, missing, taken))
                stack.append((first + 1, missing - self._bytes[bits[first]], taken | bits[first]))
        return tuple(found)
