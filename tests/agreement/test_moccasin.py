"""`moccasin` against the oracle, against all staged schedules of tiny graphs, and against itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product

import pytest
from hypothesis import given

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Problem, Status
from remat_cli.core.schedule import with_frees
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import Solution, solve
from remat_cli.errors import InvalidSchedule
from remat_cli.planners.published.moccasin.options import FirstRuns
from remat_cli.planners.published.moccasin.planner import Moccasin
from tests.graphs import problems, scaled, small_graphs, training_chain, training_graphs, training_unet
from tests.oracle import least_time

TINY = small_graphs(max_ops=4)
SMALL = small_graphs(max_ops=6) | training_graphs(max_forward_ops=3)


def time_of(solution: Solution) -> float:
    """The time of the plan; infinity where it is proven that there is none."""
    assert solution.status in (Status.OPTIMAL, Status.INFEASIBLE)
    return float("inf") if solution.trace is None else solution.trace.time


@given(problem=problems(small_graphs(max_ops=5)))
def test_any_order_without_stages_is_the_optimum_where_runs_suffice(problem: Problem) -> None:
    solution = solve(problem, Moccasin(order=FirstRuns.FREE, staged=False, max_retentions=3))
    truth = least_time(problem.graph, problem.budget.device_bytes)
    if truth is None:
        assert solution.status is Status.INFEASIBLE
    elif max(Counter(truth.schedule.computes).values()) <= 3:
        assert time_of(solution) == truth.time
    else:
        assert time_of(solution) >= truth.time


def staged_schedules(graph: Graph, max_retentions: int) -> Iterator[list[str]]:
    """Every sequence of computes in stages: before each first run, and at the end, some earlier ops again."""
    names = [op.name for op in graph.ops]
    stages = [
        [some for size in range(stage + 1) for some in combinations(names[:stage], size)]
        for stage in range(len(names) + 1)
    ]
    for choice in product(*stages):
        runs = Counter(name for some in choice for name in some)
        if all(count < max_retentions and graph.op[name].recomputable for name, count in runs.items()):
            yield [name for stage, some in enumerate(choice) for name in (*some, *names[stage : stage + 1])]


def least_staged_time(problem: Problem, max_retentions: int) -> float:
    best = float("inf")
    for computes in staged_schedules(problem.graph, max_retentions):
        try:
            trace = simulate(problem.graph, with_frees(problem.graph, computes))
        except InvalidSchedule:
            continue
        if trace.peak_bytes <= problem.budget.device_bytes:
            best = min(best, trace.time)
    return best


@pytest.mark.parametrize("max_retentions", [2, 3])
@given(problem=problems(TINY))
def test_stages_in_input_order_are_the_best_of_all_staged_schedules(max_retentions: int, problem: Problem) -> None:
    solution = solve(problem, Moccasin(max_retentions=max_retentions))
    assert time_of(solution) == least_staged_time(problem, max_retentions)


@given(problem=problems(SMALL))
def test_more_freedom_is_never_worse(problem: Problem) -> None:
    default = time_of(solve(problem, Moccasin()))
    assert time_of(solve(problem, Moccasin(order=FirstRuns.FREE))) <= default
    assert time_of(solve(problem, Moccasin(max_retentions=3))) <= default
    assert time_of(solve(problem, Moccasin(max_retentions=1))) >= default


@given(problem=problems(small_graphs(max_ops=5)))
def test_without_stages_is_never_worse(problem: Problem) -> None:
    for order in FirstRuns:
        staged = time_of(solve(problem, Moccasin(order=order)))
        assert time_of(solve(problem, Moccasin(order=order, staged=False))) <= staged


@given(problem=problems(SMALL))
def test_the_first_phase_changes_nothing_but_the_way(problem: Problem) -> None:
    assert time_of(solve(problem, Moccasin(phases=1))) == time_of(solve(problem, Moccasin(phases=2)))


@given(problem=problems(SMALL))
def test_sizes_up_to_the_largest_change_nothing(problem: Problem) -> None:
    factor = 2**50
    large = Problem(scaled(problem.graph, factor), Budget(problem.budget.device_bytes * factor + factor - 1))
    assert time_of(solve(large, Moccasin())) == time_of(solve(problem, Moccasin()))


@pytest.mark.parametrize("order", FirstRuns)
@pytest.mark.parametrize("graph", [training_chain(8), training_unet(3)], ids=["chain", "unet"])
def test_training_graphs_are_planned_far_below_their_plain_peak(graph: Graph, order: FirstRuns) -> None:
    peak = solve(Problem(graph, Budget(2**40)), Moccasin()).baseline.peak_bytes
    solution = solve(Problem(graph, Budget(peak * 8 // 10)), Moccasin(order=order))
    assert solution.status is Status.OPTIMAL
    assert solution.trace is not None
    assert solution.trace.recomputations > 0
