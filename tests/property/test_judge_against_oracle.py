"""The judge and the oracle state the same rules twice, apart from each other; here they are held against each other."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Problem, Scope
from remat_cli.core.schedule import Compute, Free, Inplace, Schedule, Step, plain_run, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.errors import InvalidSchedule
from tests.graphs import (
    chain,
    compute_sequences,
    graph_of,
    in_place,
    op,
    problems,
    renamed,
    scaled,
    small_graphs,
    training_chain,
    training_graphs,
)
from tests.oracle import Optimum, least_peak, least_time

SCOPES = [Scope.ANY_ORDER, Scope.FIXED_ORDER]
GRAPHS = small_graphs(max_ops=7) | training_graphs(max_forward_ops=3)


def plain_peak(graph: Graph) -> int:
    return simulate(graph, plain_run(graph)).peak_bytes


def time_of(optimum: Optimum | None) -> int | None:
    return None if optimum is None else optimum.time


def assert_measured_as_claimed(graph: Graph, optimum: Optimum) -> None:
    trace = simulate(graph, optimum.schedule)
    assert (trace.time, trace.peak_bytes) == (optimum.time, optimum.peak_bytes)


# The oracle itself, against closed forms and a second way to try everything


@pytest.mark.parametrize(("budget", "time"), [(5, 13), (4, 14), (3, 16), (2, None)])
def test_oracle_on_a_training_chain_worked_by_hand(budget: int, time: int | None) -> None:
    # Budget 3 holds what one backward op needs: f1 is run twice more and f2 once (b3 needs a2, b2 needs a1).
    assert time_of(least_time(training_chain(4), budget)) == time


def test_oracle_runs_a_chain_once_in_its_working_set() -> None:
    optimum = least_peak(chain(3, 4, 5, 1))
    assert (optimum.time, optimum.peak_bytes) == (4, 9)


def test_oracle_works_in_place() -> None:
    assert least_peak(in_place()).peak_bytes == 5


@pytest.mark.parametrize(
    ("scope", "budget", "time"),
    [
        (Scope.FIXED_ORDER, 13, 3),
        (Scope.FIXED_ORDER, 12, 4),
        (Scope.FIXED_ORDER, 9, 4),
        (Scope.FIXED_ORDER, 8, None),
        (Scope.ANY_ORDER, 9, 3),
    ],
)
def test_oracle_recomputes_an_op_for_its_second_output(scope: Scope, budget: int, time: int | None) -> None:
    # Holding `right` while `left` is used takes 3 + 5 + 1 + 4 bytes; running `split` twice, or `use_right` first, 9.
    graph = graph_of(
        op("split", "", "left right"),
        op("use_left", "left", "l", workspace_bytes=4),
        op("use_right", "right", "r"),
        sizes={"left": 3, "right": 5},
    )
    assert time_of(least_time(graph, budget, scope)) == time


def exhaustive_least_time(graph: Graph, budget_bytes: int, longest: int) -> int | None:
    """Return the least time over every sequence of at most `longest` computes, as the judge sees them."""
    names = [op.name for op in graph.ops]
    times = []
    for length in range(len(names), longest + 1):
        for computes in product(names, repeat=length):
            try:
                trace = simulate(graph, with_frees(graph, computes))
            except InvalidSchedule:
                continue
            if trace.peak_bytes <= budget_bytes:
                times.append(trace.time)
    return min(times, default=None)


@settings(max_examples=max(30, settings().max_examples // 3))
@given(problems(small_graphs(max_ops=3)))
def test_oracle_agrees_with_trying_every_sequence_of_computes(problem: Problem) -> None:
    graph, budget_bytes = problem.graph, problem.budget.device_bytes
    by_sequences = exhaustive_least_time(graph, budget_bytes, longest=len(graph.ops) + 3)
    assert time_of(least_time(graph, budget_bytes)) == by_sequences


# The judge and the bounds against the oracle


@pytest.mark.parametrize("scope", SCOPES)
@given(problem=problems(GRAPHS))
def test_fastest_schedule_replays_as_the_oracle_says_and_fits(scope: Scope, problem: Problem) -> None:
    optimum = least_time(problem.graph, problem.budget.device_bytes, scope)
    if optimum is not None:
        assert_measured_as_claimed(problem.graph, optimum)
        assert optimum.peak_bytes <= problem.budget.device_bytes


@pytest.mark.parametrize("scope", SCOPES)
@given(graph=GRAPHS)
def test_smallest_schedule_replays_as_the_oracle_says(scope: Scope, graph: Graph) -> None:
    assert_measured_as_claimed(graph, least_peak(graph, scope))


@pytest.mark.parametrize("scope", SCOPES)
@given(graph=GRAPHS)
def test_least_peak_is_the_smallest_budget_with_a_schedule(scope: Scope, graph: Graph) -> None:
    least = least_peak(graph, scope).peak_bytes
    assert least_time(graph, least, scope) is not None
    assert least_time(graph, least - 1, scope) is None


@pytest.mark.parametrize("scope", SCOPES)
@given(problem=problems(GRAPHS))
def test_plain_run_is_never_better_than_the_oracle(scope: Scope, problem: Problem) -> None:
    graph = problem.graph
    plain = simulate(graph, plain_run(problem.graph))
    assert plain.peak_bytes >= least_peak(graph, scope).peak_bytes
    optimum = least_time(graph, problem.budget.device_bytes, scope)
    if optimum is not None:
        assert optimum.time >= plain.time
    if plain.peak_bytes <= problem.budget.device_bytes:
        assert optimum is not None
        assert optimum.time == plain.time


@given(problem=problems(GRAPHS))
def test_free_order_is_never_worse_than_the_input_order(problem: Problem) -> None:
    graph, budget_bytes = problem.graph, problem.budget.device_bytes
    assert least_peak(graph).peak_bytes <= least_peak(graph, Scope.FIXED_ORDER).peak_bytes
    fixed = least_time(graph, budget_bytes, Scope.FIXED_ORDER)
    if fixed is not None:
        free = least_time(graph, budget_bytes)
        assert free is not None
        assert free.time <= fixed.time


@given(problem=problems(GRAPHS), more=st.integers(1, 10))
def test_more_budget_never_costs_more_time(problem: Problem, more: int) -> None:
    tight = least_time(problem.graph, problem.budget.device_bytes)
    if tight is not None:
        loose = least_time(problem.graph, problem.budget.device_bytes + more)
        assert loose is not None
        assert loose.time <= tight.time


@given(GRAPHS)
def test_no_schedule_fits_below_the_largest_working_set(graph: Graph) -> None:
    assert largest_working_set(graph).bytes <= least_peak(graph).peak_bytes


@given(problems(GRAPHS))
def test_names_change_nothing(problem: Problem) -> None:
    graph, other = problem.graph, renamed(problem.graph)
    assert plain_peak(other) == plain_peak(graph)
    assert largest_working_set(other).bytes == largest_working_set(graph).bytes
    budget_bytes = problem.budget.device_bytes
    assert time_of(least_time(other, budget_bytes)) == time_of(least_time(graph, budget_bytes))


@given(problem=problems(GRAPHS), factor=st.integers(2, 1000))
def test_scaling_sizes_and_budget_together_changes_nothing(problem: Problem, factor: int) -> None:
    graph, other = problem.graph, scaled(problem.graph, factor)
    assert plain_peak(other) == factor * plain_peak(graph)
    assert largest_working_set(other).bytes == factor * largest_working_set(graph).bytes
    budget_bytes = problem.budget.device_bytes
    assert time_of(least_time(other, factor * budget_bytes)) == time_of(least_time(graph, budget_bytes))


# The schedule of a sequence of computes


@given(data=st.data(), graph=GRAPHS)
def test_schedule_of_any_executable_sequence_is_valid(data: st.DataObject, graph: Graph) -> None:
    computes = data.draw(compute_sequences(graph))
    schedule = with_frees(graph, computes)
    assert schedule.computes == computes
    trace = simulate(graph, schedule)
    assert trace.time == sum(graph.op[name].time for name in computes)


@given(data=st.data(), graph=GRAPHS)
def test_freeing_later_never_lowers_the_peak(data: st.DataObject, graph: Graph) -> None:
    schedule = with_frees(graph, data.draw(compute_sequences(graph)))
    later: list[Step] = []
    for step in schedule.steps:
        if isinstance(step, Inplace):
            taken = graph.op[step.op].inplace
            assert taken is not None
            later += (Compute(step.op), Free(taken))
        elif not isinstance(step, Free) or data.draw(st.booleans()):
            later.append(step)
    assert simulate(graph, Schedule(tuple(later))).peak_bytes >= simulate(graph, schedule).peak_bytes


@given(GRAPHS)
def test_best_schedule_is_the_one_of_its_sequence(graph: Graph) -> None:
    best = least_peak(graph)
    assert simulate(graph, with_frees(graph, best.schedule.computes)).peak_bytes == best.peak_bytes
