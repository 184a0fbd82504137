"""The shortest path through all states against the oracle, which tries everything step by step."""

from __future__ import annotations

from hypothesis import given

from remat_cli.core.problem import Problem, Scope, Status
from remat_cli.core.solve import solve
from remat_cli.planners.shortest_path.planner import ShortestPath
from tests.hunt.problems import SMALL, problems
from tests.oracle import least_time


@given(problem=problems(SMALL))
def test_it_settles_every_small_graph(problem: Problem) -> None:
    solution = solve(problem, ShortestPath())
    truth = least_time(problem.graph, problem.budget.device_bytes)
    assert solution.warnings == ()
    if truth is None:
        assert (solution.status, solution.scope) == (Status.INFEASIBLE, Scope.ANY_ORDER)
    else:
        assert solution.trace is not None
        assert (solution.status, solution.trace.time) == (Status.OPTIMAL, truth.time)
