"""`retention` and its bound against the oracle."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Problem, Scope, Status
from remat_cli.core.solve import baseline_of, solve
from remat_cli.planners.retention.any_order_bound import Ancestry, any_order_bound
from remat_cli.planners.retention.cover_bound import cover_bound
from remat_cli.planners.retention.cut_bound import CutSearch
from remat_cli.planners.retention.cut_model import CutModel
from remat_cli.planners.retention.options import OrderChoice
from remat_cli.planners.retention.planner import Retention
from remat_cli.planners.shared.cp_sat import first_opinion
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.stages import Stages
from tests.graphs import graph_of, in_place, op, problems, small_graphs, training_chain, training_graphs, training_unet
from tests.oracle import least_peak, least_time

GRAPHS = training_graphs(max_forward_ops=3) | small_graphs(max_ops=7)
FIXED = Retention(order=OrderChoice.INPUT, cores=1)


def budgets(graph: Graph) -> Iterator[int]:
    """Yield a few budgets from the least possible in the input order to just below the plain run's peak."""
    low, high = least_peak(graph, Scope.FIXED_ORDER).peak_bytes, baseline_of(graph).peak_bytes
    yield from sorted({low + (high - low) * part // 4 for part in range(4)} - {high})


def bound_of(graph: Graph, budget_bytes: int) -> int | None:
    return cover_bound(Stages.of(graph), budget_bytes - graph.fixed_bytes, Limits.of(60.0)).extra


@given(problem=problems(GRAPHS))
def test_cover_bound_is_never_above_the_least_overhead_in_the_fixed_order(problem: Problem) -> None:
    budget = problem.budget.device_bytes
    bound = bound_of(problem.graph, budget)
    truth = least_time(problem.graph, budget, Scope.FIXED_ORDER)
    if truth is not None:
        assert bound is not None
        assert problem.graph.total_time + bound <= truth.time


@given(problem=problems(GRAPHS))
def test_any_order_bound_is_never_above_the_least_overhead_in_any_order(problem: Problem) -> None:
    room = problem.budget.device_bytes - problem.graph.fixed_bytes
    bound = any_order_bound(problem.graph, room, Limits.of(60.0)).extra
    truth = least_time(problem.graph, problem.budget.device_bytes, Scope.ANY_ORDER)
    if truth is not None:
        assert bound is not None
        assert problem.graph.total_time + bound <= truth.time


@pytest.mark.parametrize("length", [4, 6])
def test_on_a_chain_no_order_can_do_with_less_than_the_cover_bound(length: int) -> None:
    graph = training_chain(length)
    for budget in budgets(graph):
        cover = bound_of(graph, budget)
        bound = any_order_bound(graph, budget - graph.fixed_bytes, Limits.of(60.0)).extra
        assert cover is not None
        assert bound is not None
        assert bound >= cover > 0


@pytest.mark.parametrize("may_run_again", [True, False])
def test_what_may_run_later_for_the_first_time_costs_nothing(may_run_again: bool) -> None:
    # While `large` runs, `t` has no room and `p` must run again; `a` and `u` may come before it, but need not.
    graph = graph_of(
        op("a", "", "x"),
        op("u", "x", "y", time=7, recomputable=may_run_again),
        op("p", "", "t s"),
        op("large", "s", "z", workspace_bytes=20),
        op("end", "t y z", "out"),
        sizes={"x": 1, "y": 9, "t": 5, "s": 1, "z": 1},
    )
    budget = 22
    truth = least_time(graph, budget)
    assert truth is not None
    assert truth.time == graph.total_time + 1
    assert any_order_bound(graph, budget, Limits.of(60.0)).extra == 1


@given(problem=problems(GRAPHS))
def test_where_no_order_fits_by_the_bound_the_oracle_finds_none(problem: Problem) -> None:
    room = least_peak(problem.graph).peak_bytes - problem.graph.fixed_bytes
    assert any_order_bound(problem.graph, room, Limits.of(60.0)).extra is not None


@given(problem=problems(GRAPHS))
def test_cut_bounds_are_never_above_the_least_overhead(problem: Problem) -> None:
    stages = Stages.of(problem.graph)
    room = problem.budget.device_bytes - problem.graph.fixed_bytes
    for search, scope in ((CutSearch.in_fixed_order, Scope.FIXED_ORDER), (CutSearch.in_any_order, Scope.ANY_ORDER)):
        truth = least_time(problem.graph, problem.budget.device_bytes, scope)
        if truth is not None:
            best = truth.time - problem.graph.total_time
            for of_a_plan in (None, best):
                found = search(stages, room).turn(Limits.of(60.0), best=of_a_plan).bound.extra
                assert found is not None
                assert found <= best


def extra_time(model: CutModel) -> int | None:
    """What a model of cuts proves."""
    bound = first_opinion(model.build(), Limits.of(60.0)).bound
    return None if bound is None else bound - model.counted


@given(problem=problems(GRAPHS))
def test_with_a_cut_at_every_op_of_a_path_the_bound_still_holds(problem: Problem) -> None:
    stages = Stages.of(problem.graph)
    room = problem.budget.device_bytes - problem.graph.fixed_bytes
    models = {
        Scope.FIXED_ORDER: CutModel.in_fixed_order(stages, room, np.arange(len(stages))),
        Scope.ANY_ORDER: CutModel.in_any_order(stages, room, Ancestry(stages, room).path),
    }
    for scope, model in models.items():
        truth = least_time(problem.graph, problem.budget.device_bytes, scope)
        if truth is not None:
            found = extra_time(model)
            assert found is not None
            assert problem.graph.total_time + found <= truth.time


@given(problem=problems(GRAPHS))
def test_cut_bound_with_every_cut_is_no_worse_than_the_cover_bound(problem: Problem) -> None:
    stages = Stages.of(problem.graph)
    room = problem.budget.device_bytes - problem.graph.fixed_bytes
    cover = cover_bound(stages, room, Limits.of(60.0)).extra
    cut = extra_time(CutModel.in_fixed_order(stages, room, np.arange(len(stages))))
    if cut is not None:
        assert cover is not None
        assert cut >= cover


@pytest.mark.parametrize("graph", [training_chain(5), training_unet(2), in_place()], ids=["chain", "unet", "in-place"])
def test_cover_bound_is_above_zero_where_the_plain_run_does_not_fit(graph: Graph) -> None:
    for budget in budgets(graph):
        bound = bound_of(graph, budget)
        assert bound is not None
        assert bound > 0


@given(problem=problems(GRAPHS))
def test_in_the_input_order_first_runs_keep_their_places_and_no_plan_beats_the_oracle(problem: Problem) -> None:
    solution = solve(problem, FIXED)
    truth = least_time(problem.graph, problem.budget.device_bytes, Scope.FIXED_ORDER)
    if solution.status is Status.INFEASIBLE:
        assert truth is None
    if solution.trace is not None and solution.result.schedule is not None:
        first_runs = tuple(dict.fromkeys(solution.result.schedule.computes))
        assert first_runs == tuple(op.name for op in problem.graph.ops)
        assert truth is not None
        assert solution.trace.time >= truth.time
        if solution.status is Status.OPTIMAL:
            assert solution.trace.time == truth.time


@pytest.mark.parametrize("length", [4, 6])
def test_a_training_chain_is_planned_as_well_as_can_be(length: int) -> None:
    graph = training_chain(length)
    for budget in budgets(graph):
        solution = solve(Problem(graph, Budget(budget)), FIXED)
        truth = least_time(graph, budget, Scope.FIXED_ORDER)
        assert truth is not None
        assert solution.trace is not None, budget
        assert solution.trace.time == truth.time


@given(problem=problems(GRAPHS))
def test_plain_bytes_of_stages_are_what_the_judge_measures(problem: Problem) -> None:
    graph = problem.graph
    assert int(np.max(Stages.of(graph).plain_bytes)) + graph.fixed_bytes == baseline_of(graph).peak_bytes
