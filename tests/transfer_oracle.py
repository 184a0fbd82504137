"""The truth about very small graphs with a link to the host, by trying everything: the least time within a budget.

A search over the states that a device and its link can be in, along every step that the schedule format allows. It
shares nothing with the planners nor with the judge, whose rules it states a second time. Times count from the end of
the compute stream, so that states that differ only in when they are reached are one. For graphs of about four ops.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, count
from math import ceil
from typing import NamedTuple

from remat_cli.core.graph import Graph, Op
from remat_cli.core.link import Duplex, Link


class _State(NamedTuple):
    """Of a device, its link, and the host.

    Attributes:
        live: tensors in device memory, those on their way back included.
        done: ops that have run.
        on_host: tensors with a copy there, or on its way there.
        leaving: tensors whose way out has not been waited for, and how much longer it takes.
        returning: the same of the way back.
        busy: how much longer each queue of the link is.
        written: residents whose update has run.
        away: residents that start and end on the host.
    """

    live: frozenset[str]
    done: frozenset[str]
    on_host: frozenset[str]
    leaving: frozenset[tuple[str, int]]
    returning: frozenset[tuple[str, int]]
    busy: tuple[int, ...]
    written: frozenset[str] = frozenset()
    away: frozenset[str] = frozenset()

    def after(self, time: int) -> _State:
        """Return the state when the compute stream has gone on for some time.

        What has ended by then counts as waited for: that takes no time.
        """
        return self._replace(
            leaving=frozenset((name, left - time) for name, left in self.leaving if left > time),
            returning=frozenset((name, left - time) for name, left in self.returning if left > time),
            busy=tuple(max(0, left - time) for left in self.busy),
        )


@dataclass(frozen=True)
class TransferOracle:
    """Tries every schedule of a graph.

    Attributes:
        graph: what is planned.
        budget_bytes: device memory.
        link: to the host.
    """

    graph: Graph
    budget_bytes: int
    link: Link

    def least_time(self) -> int | None:
        """Return the least time of any schedule within the budget; None where there is none."""
        queues = 1 if self.link.duplex is Duplex.HALF else 2
        none: frozenset[str] = frozenset()
        residents = [name for name, tensor in self.graph.tensors.items() if tensor.resident]
        starts = [
            _State(frozenset(residents) - away, none, away, frozenset(), frozenset(), (0,) * queues, none, away)
            for number in range(len(residents) + 1)
            for away in map(frozenset, combinations(residents, number))
        ]
        cost = {start: 0 for start in starts if self._bytes(start.live) <= self.budget_bytes}
        number = count(0, -1)
        queue = [(0, next(number), start) for start in cost]
        heapq.heapify(queue)
        while queue:
            time, _, state = heapq.heappop(queue)
            if time > cost[state]:
                continue
            if self._is_end(state):
                return time
            for took, after in self._steps(state):
                if time + took < cost.get(after, time + took + 1):
                    cost[after] = time + took
                    heapq.heappush(queue, (time + took, next(number), after))
        return None

    def _is_end(self, state: _State) -> bool:
        if len(state.done) < len(self.graph.ops):
            return False
        wanted = {name for name in self.graph.outputs if name in self.graph.producer}
        wanted |= {name for name, tensor in self.graph.tensors.items() if tensor.resident} - state.away
        ready = state.live - {name for name, _ in state.returning}
        return wanted <= ready and not state.away & state.live

    def _bytes(self, live: frozenset[str]) -> int:
        others = [tensor.bytes for name, tensor in self.graph.tensors.items() if self._is_plain_input(name)]
        return self.graph.resident_bytes + sum(others) + sum(self.graph.tensors[name].bytes for name in live)

    def _is_plain_input(self, name: str) -> bool:
        return name not in self.graph.producer and not self.graph.tensors[name].resident

    def _steps(self, state: _State) -> Iterator[tuple[int, _State]]:
        """Yield what can be done next: the time that it takes, and the state after it."""
        leaving, returning = dict(state.leaving), dict(state.returning)
        ready = state.live - returning.keys()
        for op in self.graph.ops:
            yield from self._runs(state, op, ready, leaving.keys() | returning.keys())
        for name in ready - leaving.keys():
            if not self.graph.tensors[name].bytes:
                continue  # nothing is gained without it
            if not self.graph.tensors[name].resident or name in state.on_host:
                yield 0, state._replace(live=state.live - {name})
            if name not in state.on_host:
                left, busy = self._queued(state, name, 0)
                moved = state.leaving | {(name, left)}
                yield 0, state._replace(on_host=state.on_host | {name}, leaving=moved, busy=busy)
        for name in state.on_host - state.live:
            live = state.live | {name}
            if self._bytes(live) <= self.budget_bytes:
                left, busy = self._queued(state, name, -1)
                yield 0, state._replace(live=live, returning=state.returning | {(name, left)}, busy=busy)
        for left in {*leaving.values(), *returning.values()}:
            yield left, state.after(left)

    def _queued(self, state: _State, name: str, way: int) -> tuple[int, tuple[int, ...]]:
        """Return when a copy that is queued now ends, and how long the queues are then."""
        left = state.busy[way] + ceil(Fraction(self.graph.tensors[name].bytes) / self.link.bytes_per_time)
        busy = list(state.busy)
        busy[way] = left
        return left, tuple(busy)

    def _runs(self, state: _State, op: Op, ready: frozenset[str], moving: set[str]) -> Iterator[tuple[int, _State]]:
        produced = self.graph.producer
        needed = [name for name in op.inputs if not self._is_plain_input(name)]
        if any(name not in ready for name in needed) or moving & {*op.outputs, *op.writes}:
            return
        if state.written & set(op.inputs):
            return
        if op.name in state.done and not op.recomputable:
            return
        now = state.live | set(op.outputs)
        memory = self._bytes(now) + op.workspace_bytes
        done = state.done | {op.name}
        if memory <= self.budget_bytes:
            written, on_host = state.written | set(op.writes), state.on_host - set(op.writes)
            yield op.time, state.after(op.time)._replace(live=now, done=done, written=written, on_host=on_host)
        taken = op.inplace
        if taken is None or taken not in produced or taken in moving or op.outputs[0] in state.live:
            return
        memory -= min(self.graph.tensors[taken].bytes, self.graph.tensors[op.outputs[0]].bytes)
        if memory <= self.budget_bytes:
            yield op.time, state.after(op.time)._replace(live=now - {taken}, done=done)
