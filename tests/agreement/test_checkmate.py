"""Checkmate and its rounding against the best staged plan, found by trying everything, and against the oracle."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Problem, Scope, Status
from remat_cli.core.solve import solve
from remat_cli.planners.published.checkmate.options import RoundingRule, SolverName
from remat_cli.planners.published.checkmate.planner import Checkmate, CheckmateLP
from tests.graphs import problems, scaled, small_graphs, training_graphs
from tests.oracle import least_time
from tests.unit.planners.published.checkmate.test_mip import each_solver

GRAPHS = small_graphs(max_ops=7) | training_graphs(max_forward_ops=3)
SMALLER_GRAPHS = small_graphs(max_ops=6) | training_graphs(max_forward_ops=2)


class _State(NamedTuple):
    stage: int  # the op that runs next for the first time
    turn: int  # the first op that may still be recomputed before that
    live: frozenset[str]


def least_staged_time(graph: Graph, budget_bytes: int) -> int | None:
    """Return the least time of a staged plan; None where none fits.

    Before each op's first run, and at the end, earlier ops may be recomputed, each at most once and in the input order.
    """
    start = _State(0, 0, frozenset())
    least = {start: 0}
    queue: list[tuple[int, int, _State]] = [(0, 0, start)]
    pushed = 0
    kept = {name for name in graph.outputs if name in graph.producer}
    while queue:
        time, _, state = heapq.heappop(queue)
        if time > least[state]:
            continue
        if state.stage == len(graph.ops) and kept <= state.live:
            return time
        for after, bytes_then, time_taken in _moves(graph, state):
            if bytes_then <= budget_bytes and time + time_taken < least.get(after, time + time_taken + 1):
                least[after] = time + time_taken
                pushed += 1
                heapq.heappush(queue, (least[after], pushed, after))
    return None


def _moves(graph: Graph, state: _State) -> Iterator[tuple[_State, int, int]]:
    """Yield the states that one step leads to, with the memory during the step and its time."""
    for number in range(state.turn, min(state.stage + 1, len(graph.ops))):
        op = graph.ops[number]
        is_first = number == state.stage
        has_inputs = all(name in state.live or name not in graph.producer for name in op.inputs)
        if not has_inputs or not (is_first or op.recomputable):
            continue
        stage, turn = (number + 1, 0) if is_first else (state.stage, number + 1)
        live = state.live | set(op.outputs)
        memory = _bytes(graph, live) + op.workspace_bytes
        yield _State(stage, turn, live), memory, op.time
        if op.inplace in state.live and op.outputs[0] not in state.live:
            saved = min(graph.tensors[op.inplace].bytes, graph.tensors[op.outputs[0]].bytes)
            yield _State(stage, turn, live - {op.inplace}), memory - saved, op.time
    for name in state.live:
        live = state.live - {name}
        yield _State(state.stage, state.turn, live), _bytes(graph, live), 0


def _bytes(graph: Graph, live: frozenset[str]) -> int:
    return graph.fixed_bytes + sum(graph.tensors[name].bytes for name in live)


@each_solver
@given(problem=problems(GRAPHS))
def test_checkmate_finds_the_best_staged_plan_and_bounds_all_others(solver: SolverName, problem: Problem) -> None:
    solution = solve(problem, Checkmate(solver=solver))
    staged = least_staged_time(problem.graph, problem.budget.device_bytes)
    if staged is None:
        assert solution.status is Status.INFEASIBLE
    else:
        assert solution.status is Status.OPTIMAL
        assert solution.trace is not None
        assert solution.trace.time == staged
    if solution.scope is Scope.FIXED_ORDER:
        truth = least_time(problem.graph, problem.budget.device_bytes, Scope.FIXED_ORDER)
        assert staged == (None if truth is None else truth.time)


@each_solver
@pytest.mark.parametrize("rounding", RoundingRule)
@given(problem=problems(SMALLER_GRAPHS), repairs=st.sampled_from([0, 200]))
def test_relaxation_bounds_the_best_plan_and_roundings_do_not_beat_it(
    rounding: RoundingRule, solver: SolverName, problem: Problem, repairs: int
) -> None:
    solution = solve(problem, CheckmateLP(solver=solver, rounding=rounding, samples=3, repairs=repairs))
    staged = least_staged_time(problem.graph, problem.budget.device_bytes)
    truth = least_time(problem.graph, problem.budget.device_bytes, Scope.FIXED_ORDER)
    if solution.status is Status.INFEASIBLE:
        assert truth is None
    if solution.result.time_bound is not None and truth is not None:
        assert solution.result.time_bound <= truth.time
    if solution.trace is not None:
        assert staged is not None
        assert solution.trace.time >= staged


@each_solver
@given(problem=problems(SMALLER_GRAPHS), data=st.data())
def test_sizes_beyond_a_solvers_tolerance(solver: SolverName, problem: Problem, data: st.DataObject) -> None:
    """A byte in 10^14 is nothing to a solver, and still must be right."""
    large = 10**14
    graph = scaled(problem.graph, large)
    tensors = {
        name: replace(tensor, bytes=tensor.bytes + (data.draw(st.integers(0, 3)) if tensor.bytes else 0))
        for name, tensor in graph.tensors.items()
    }
    graph = replace(graph, tensors=tensors)
    budget = problem.budget.device_bytes * large + data.draw(st.integers(0, 8))
    solution = solve(Problem(graph, Budget(budget)), Checkmate(solver=solver))
    staged = least_staged_time(graph, budget)
    assert solution.status is (Status.INFEASIBLE if staged is None else Status.OPTIMAL)
    assert solution.trace is None or solution.trace.time == staged
