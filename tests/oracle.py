"""The truth about small graphs, by trying everything: the least time within a budget, and the least peak.

A search over the states that a device can be in, (which tensors are in memory, which ops have run), along every step
that the schedule format allows without transfers: run an op, run it in place, free a tensor. It shares nothing with
the planners nor with the judge, whose rules it states a second time; meant for graphs of about eight ops.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Scope
from remat_cli.core.schedule import Compute, Free, Inplace, Schedule, Step


@dataclass(frozen=True)
class Optimum:
    """A best schedule.

    Attributes:
        schedule: one of the best.
        time: its time, in the graph's time unit.
        peak_bytes: its peak in bytes, resident bytes and graph inputs included.
    """

    schedule: Schedule
    time: int
    peak_bytes: int


def least_time(graph: Graph, budget_bytes: int, scope: Scope = Scope.ANY_ORDER) -> Optimum | None:
    """Return a schedule of the least time whose peak is at most `budget_bytes`; None where there is none.

    Args:
        graph: what is planned.
        budget_bytes: device memory, resident bytes and graph inputs included.
        scope: `ANY_ORDER`, or `FIXED_ORDER`: ops run for the first time in the input order. Nothing is moved to the
            host: without a link, `ANY_PLAN` is the same as `ANY_ORDER`.
    """
    return _best_path(
        _Device(graph, scope), 0, lambda cost, move: cost + move.time if move.bytes <= budget_bytes else None
    )


def least_peak(graph: Graph, scope: Scope = Scope.ANY_ORDER) -> Optimum:
    """Return a schedule of the least peak, whatever its time; scope as in `least_time`."""
    best = _best_path(_Device(graph, scope), graph.fixed_bytes, lambda cost, move: max(cost, move.bytes))
    assert best is not None  # without a budget, the plain run is one path
    return best


# Tensors that ops produced and that are in memory, and ops that have run: a bit each.
_State = tuple[int, int]


class _Move(NamedTuple):
    step: Step
    after: _State
    bytes: int  # in memory while the step is carried out
    time: int


class _Run(NamedTuple):
    """An op as a step: what it reads and makes, as bits of tensors."""

    step: Step
    step_in_place: Step
    bit: int
    reads: int
    makes: int
    bytes: int  # workspace
    time: int
    recomputable: bool
    takes: int  # whose storage it may take over, 0 for none,
    first: int  # for this output;
    shared_bytes: int  # both share one storage, as large as the larger of the two: so much is saved


class _Device:
    """The rules: from one state, the steps that can be carried out."""

    def __init__(self, graph: Graph, scope: Scope) -> None:
        self.graph = graph
        self._fixed_order = scope is Scope.FIXED_ORDER
        self._bit = {name: 1 << number for number, name in enumerate(sorted(graph.producer))}
        self._size = {bit: graph.tensors[name].bytes for name, bit in self._bit.items()}
        self._runs = [self._run(number) for number in range(len(graph.ops))]
        self._frees = [(bit, Free(name)) for name, bit in self._bit.items()]
        self._all_done = (1 << len(graph.ops)) - 1
        self._wanted = self._bits(graph.outputs)
        self._bytes_of: dict[int, int] = {}

    def _bits(self, names: Iterable[str]) -> int:
        """Return the bits of tensors; graph inputs, which are always there, have none."""
        return sum(self._bit.get(name, 0) for name in set(names))

    def _run(self, number: int) -> _Run:
        op = self.graph.ops[number]
        takes = self._bit.get(op.inplace or "", 0)
        first = self._bit[op.outputs[0]] if op.outputs else 0
        shared = min(self._size[takes], self._size[first]) if takes else 0
        return _Run(
            step=Compute(op.name),
            step_in_place=Inplace(op.name),
            bit=1 << number,
            reads=self._bits(op.inputs),
            makes=self._bits(op.outputs),
            bytes=op.workspace_bytes,
            time=op.time,
            recomputable=op.recomputable,
            takes=takes,
            first=first,
            shared_bytes=shared,
        )

    def is_end(self, state: _State) -> bool:
        """Tell whether all ops have run and the graph's outputs are there."""
        live, done = state
        return done == self._all_done and not self._wanted & ~live

    def moves(self, state: _State) -> Iterator[_Move]:
        """Yield the steps that can be carried out."""
        live, done = state
        for run in self._runs:
            if run.reads & ~live or not self._may_run(run, done):
                continue
            now, after = live | run.makes, done | run.bit
            memory = self._bytes(now) + run.bytes
            yield _Move(run.step, (now, after), memory, run.time)
            if run.takes & live and not run.first & live:
                yield _Move(run.step_in_place, (now & ~run.takes, after), memory - run.shared_bytes, run.time)
        for bit, free in self._frees:
            if bit & live:
                yield _Move(free, (live & ~bit, done), self._bytes(live & ~bit), 0)

    def _may_run(self, run: _Run, done: int) -> bool:
        if run.bit & done:
            return run.recomputable
        # Under a fixed order the ops that have run are always the first ones of the input order.
        return not self._fixed_order or run.bit == done + 1

    def _bytes(self, live: int) -> int:
        if live not in self._bytes_of:
            tensors = sum(size for bit, size in self._size.items() if bit & live)
            self._bytes_of[live] = self.graph.fixed_bytes + tensors
        return self._bytes_of[live]


def _best_path(device: _Device, start: int, cost_after: Callable[[int, _Move], int | None]) -> Optimum | None:
    """Dijkstra's algorithm; `cost_after` is the cost of a path one move on, never less than before; None forbids it."""
    origin: _State = (0, 0)
    cost = {origin: start}
    came_by: dict[_State, tuple[_State, _Move]] = {}
    # Among equal costs the newest state first: where the budget is loose, that runs straight to the end.
    newest_first = count(0, -1)
    queue = [(start, next(newest_first), origin)]
    while queue:
        cost_here, _, state = heapq.heappop(queue)
        if cost_here > cost[state]:
            continue
        if device.is_end(state):
            return _optimum(device.graph, state, came_by)
        for move in device.moves(state):
            new_cost = cost_after(cost_here, move)
            if new_cost is not None and new_cost < cost.get(move.after, new_cost + 1):
                cost[move.after] = new_cost
                came_by[move.after] = (state, move)
                heapq.heappush(queue, (new_cost, next(newest_first), move.after))
    return None


def _optimum(graph: Graph, end: _State, came_by: dict[_State, tuple[_State, _Move]]) -> Optimum:
    moves = []
    state = end
    while state in came_by:
        state, move = came_by[state]
        moves.append(move)
    moves.reverse()
    return Optimum(
        Schedule(tuple(move.step for move in moves)),
        time=sum(move.time for move in moves),
        peak_bytes=max(graph.fixed_bytes, *(move.bytes for move in moves)),
    )
