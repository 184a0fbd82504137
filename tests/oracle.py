"""The truth about small graphs, by trying everything: the least time within a budget, and the least peak.

A search over the states that a device can be in, (which tensors are in memory, which ops have run), along every step
that the schedule format allows without transfers: run an op, run it in place, free a tensor. It shares nothing with
the planners nor with the judge, whose rules it states a second time; meant for graphs of about eight ops.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from remat_cli.graph import Graph, Op
from remat_cli.problem import Scope
from remat_cli.schedule import Compute, Free, Inplace, Schedule, Step


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
        scope: `ANY_ORDER`, or `FIXED_ORDER`: ops run for the first time in the input order.
    """
    return _best_path(
        graph, scope, lambda cost, move: cost + move.time if move.bytes <= budget_bytes else None, start=0
    )


def least_peak(graph: Graph, scope: Scope = Scope.ANY_ORDER) -> Optimum:
    """Return a schedule of the least peak, whatever its time; scope as in `least_time`."""
    best = _best_path(graph, scope, lambda cost, move: max(cost, move.bytes), start=graph.fixed_bytes)
    assert best is not None  # without a budget, the plain run is one path
    return best


class _State(NamedTuple):
    live: frozenset[str]  # tensors that ops produced and that are in memory
    done: frozenset[str]  # ops that have run


class _Move(NamedTuple):
    step: Step
    after: _State
    bytes: int  # in memory while the step is carried out
    time: int


def _best_path(
    graph: Graph, scope: Scope, cost_after: Callable[[int, _Move], int | None], *, start: int
) -> Optimum | None:
    """Dijkstra's algorithm; `cost_after` is the cost of a path one move on, never less than before; None forbids it."""
    origin = _State(frozenset(), frozenset())
    cost = {origin: start}
    came_by: dict[_State, tuple[_State, _Move]] = {}
    # Among equal costs the newest state first: where the budget is loose, that runs straight to the end.
    newest_first = count(0, -1)
    queue = [(start, next(newest_first), origin)]
    while queue:
        cost_here, _, state = heapq.heappop(queue)
        if cost_here > cost[state]:
            continue
        if _is_end(graph, state):
            return _optimum(graph, state, came_by)
        for move in _moves(graph, scope, state):
            new_cost = cost_after(cost_here, move)
            if new_cost is not None and new_cost < cost.get(move.after, new_cost + 1):
                cost[move.after] = new_cost
                came_by[move.after] = (state, move)
                heapq.heappush(queue, (new_cost, next(newest_first), move.after))
    return None


def _is_end(graph: Graph, state: _State) -> bool:
    kept = {name for name in graph.outputs if name in graph.producer}
    return len(state.done) == len(graph.ops) and kept <= state.live


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


def _moves(graph: Graph, scope: Scope, state: _State) -> Iterator[_Move]:
    for op in _runnable(graph, scope, state):
        done = state.done | {op.name}
        outputs = frozenset(op.outputs)
        live = state.live | outputs
        yield _Move(Compute(op.name), _State(live, done), _bytes(graph, live) + op.workspace_bytes, op.time)
        if op.inplace in state.live and op.outputs[0] not in state.live:
            # Both share one storage, as large as the larger of the two.
            shared = min(graph.tensors[op.inplace].bytes, graph.tensors[op.outputs[0]].bytes)
            memory = _bytes(graph, live) - shared + op.workspace_bytes
            yield _Move(Inplace(op.name), _State(live - {op.inplace}, done), memory, op.time)
    for name in sorted(state.live):
        live = state.live - {name}
        yield _Move(Free(name), _State(live, state.done), _bytes(graph, live), 0)


def _runnable(graph: Graph, scope: Scope, state: _State) -> Iterator[Op]:
    # Under a fixed order the ops that have run are always the first ones of the input order.
    next_first_run = graph.ops[len(state.done)] if len(state.done) < len(graph.ops) else None
    for op in graph.ops:
        may_be_next = scope is Scope.ANY_ORDER or op is next_first_run
        allowed = op.recomputable if op.name in state.done else may_be_next
        if allowed and all(name in state.live or name not in graph.producer for name in op.inputs):
            yield op


def _bytes(graph: Graph, live: frozenset[str]) -> int:
    return graph.fixed_bytes + sum(graph.tensors[name].bytes for name in live)
