"""The plain run as a planner."""

from __future__ import annotations

from remat_cli.core.problem import Budget, Observer, Problem, Scope, Status
from remat_cli.core.schedule import plain_run
from remat_cli.core.solve import baseline_of
from remat_cli.planners.keep_all import KeepAll
from tests.graphs import training_chain

GRAPH = training_chain(4)


def test_a_plain_run_that_fits_is_optimal_whatever_is_done() -> None:
    result = KeepAll().plan(Problem(GRAPH, Budget(baseline_of(GRAPH).peak_bytes)), Observer())
    assert (result.status, result.schedule) == (Status.OPTIMAL, plain_run(GRAPH))
    assert result.bound is not None
    assert (result.bound.time, result.bound.scope) == (GRAPH.total_time, Scope.ANY_PLAN)


def test_one_that_does_not_is_all_there_is() -> None:
    result = KeepAll().plan(Problem(GRAPH, Budget(baseline_of(GRAPH).peak_bytes - 1)), Observer())
    assert (result.status, result.scope, result.closest) == (Status.INFEASIBLE, Scope.PLANNER, plain_run(GRAPH))
