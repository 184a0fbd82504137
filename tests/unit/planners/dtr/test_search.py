"""From greedy runs to a plan that fits a budget."""

from __future__ import annotations

import pytest

from remat_cli.core.problem import Budget, Observer, PlanResult, Problem, Status
from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of
from remat_cli.planners.dtr.options import Heuristic
from remat_cli.planners.dtr.planner import DTR
from tests.graphs import chain, training_chain, training_unet
from tests.plans import RecordingObserver

GRAPH = training_unet(4)
PLAIN = baseline_of(GRAPH).peak_bytes


def searched(budget: int, observe: Observer | None = None, **options: object) -> PlanResult:
    planner = DTR(**options)  # type: ignore[arg-type]
    return planner.plan(Problem(GRAPH, Budget(budget)), observe or Observer())


def test_where_the_plain_run_fits_no_run_is_tried() -> None:
    result = searched(PLAIN)
    assert (result.status, result.schedule, result.stats["greedy_runs"]) == (Status.OPTIMAL, plain_run(GRAPH), 0)


def test_a_plan_fits_and_says_how_many_runs_it_took() -> None:
    told = RecordingObserver()
    result = searched(PLAIN - 8, told, heuristic=Heuristic.H_DTR)
    assert result.status is Status.FEASIBLE
    assert result.schedule is not None
    assert simulate(GRAPH, result.schedule).peak_bytes <= PLAIN - 8
    assert told.phases == ["evicting by h_dtr"] * result.stats["greedy_runs"]


@pytest.mark.parametrize("candidates", [1, 3])
def test_no_more_runs_than_allowed_once_one_fits(candidates: int) -> None:
    result = searched(PLAIN - 4, heuristic=Heuristic.H_DTR, candidates=candidates)
    assert result.status is Status.FEASIBLE
    assert 1 <= result.stats["greedy_runs"] <= 2 * candidates


def test_runs_that_evict_and_make_again_without_end_are_given_up() -> None:
    graph = training_chain(8)
    least = Budget(2)  # no op can run in it
    result = DTR().plan(Problem(graph, least), Observer())
    assert result.status is Status.UNKNOWN
    assert 0 < result.stats["given_up"] <= result.stats["greedy_runs"]


def test_without_time_there_is_the_plain_run_only() -> None:
    graph = chain(1, 9, 9, 1)
    result = DTR(time_limit=0.0).plan(Problem(graph, Budget(17)), Observer())
    assert (result.status, result.stats["greedy_runs"]) == (Status.UNKNOWN, 0)
    assert result.closest == plain_run(graph)
