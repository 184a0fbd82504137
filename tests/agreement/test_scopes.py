"""All planners on one problem: what one of them proves holds for the plans of all others, as far as its scope goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings

from remat_cli.config import GraphOptions
from remat_cli.errors import PlannerRefuses
from remat_cli.graph import Graph
from remat_cli.planners import PLANNERS
from remat_cli.prepare import prepare
from remat_cli.problem import Budget, Problem, Scope, Status
from remat_cli.schedule import Schedule, input_order
from remat_cli.solve import Solution, baseline_of, solve
from tests.graphs import problems, small_graphs, training_graphs
from tests.places import GRAPHS


def solutions(problem: Problem, **limits: Any) -> Mapping[str, Solution]:
    """Return what each planner makes of it, within limits where it knows them; those that refuse are left out."""
    found = {}
    for name, planner in PLANNERS.items():
        known = {option.name for option in fields(planner)}
        try:
            found[name] = solve(problem, planner(**{key: limits[key] for key in limits if key in known}))
        except PlannerRefuses:
            continue
    return found


def keeps_input_order(graph: Graph, schedule: Schedule) -> bool:
    return tuple(dict.fromkeys(schedule.computes)) == input_order(graph)


def is_within(scope: Scope, solution: Solution) -> bool:
    """Whether the plan is one that proofs in `scope` speak of."""
    schedule = solution.result.schedule
    if schedule is None or scope is Scope.PLANNER:
        return False
    return scope is Scope.ANY_ORDER or keeps_input_order(solution.problem.graph, schedule)


def check(problem: Problem, **limits: Any) -> None:
    found = solutions(problem, **limits)
    for prover, proof in found.items():
        scope, bound = proof.scope, proof.result.time_bound
        for name, other in found.items():
            if not is_within(scope, other):
                continue
            assert other.trace is not None
            assert proof.status is not Status.INFEASIBLE, f"{prover} proves that nothing fits, {name} has a plan"
            if bound is not None:
                assert other.trace.time >= bound, f"{name} is faster than {prover} proves to be possible"
    optimum = {scope: optima(scope, found) for scope in (Scope.ANY_ORDER, Scope.FIXED_ORDER)}
    assert all(len(times) <= 1 for times in optimum.values()), optimum
    if all(optimum.values()):
        assert min(optimum[Scope.ANY_ORDER]) <= min(optimum[Scope.FIXED_ORDER])


def optima(scope: Scope, found: Mapping[str, Solution]) -> set[int]:
    """Return the times of the plans that are proven to be the best in a scope: at most one, if all are right."""
    return {
        solution.trace.time
        for solution in found.values()
        if solution.status is Status.OPTIMAL and solution.scope is scope and solution.trace is not None
    }


@settings(max_examples=25)
@given(problem=problems(training_graphs(max_forward_ops=4)))
def test_on_training_graphs(problem: Problem) -> None:
    check(problem)


@settings(max_examples=25)
@given(problem=problems(small_graphs(max_ops=7)))
def test_on_any_graph(problem: Problem) -> None:
    check(problem)


@pytest.mark.parametrize(
    ("name", "dims", "share"),
    [
        ("unet.onnx", {"batch": 8}, 0.6),
        ("resnet50.onnx", {"batch": 32}, 0.8),
        ("gpt.onnx", {"batch": 8, "seq": 512}, 0.7),
        ("skip_chain.json", {}, 0.7),
    ],
)
def test_on_networks(name: str, dims: dict[str, int], share: float) -> None:
    graph = prepare(GRAPHS / name, GraphOptions(dims=dims)).graph
    # How far each comes in a second depends on the machine; what it then claims must hold all the same.
    check(Problem(graph, Budget(int(share * baseline_of(graph).peak_bytes))), time_limit=1.0)
