"""The time of a call, stage by stage."""

from __future__ import annotations

import pytest

from remat_cli.cli.stopwatch import Stopwatch, Timed
from remat_cli.core.problem import Budget, Observer, PlanResult, Problem, Status
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.solve import solve
from tests.graphs import chain
from tests.plans import RecordingObserver


class Clock:
    """A second goes by whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_a_stage_within_another_is_not_counted_twice() -> None:
    watch = Stopwatch(Clock())
    with watch.stage("planning"):
        with watch.stage("judging"):
            pass
        with watch.stage("judging"):
            pass
    assert watch.seconds == {"planning": 3, "judging": 2}


def test_time_between_stages_is_of_none() -> None:
    watch = Stopwatch(Clock())
    for name in ("reading", "writing"):
        with watch.stage(name):
            pass
    assert watch.seconds == {"reading": 1, "writing": 1}


def test_a_stage_ends_with_an_error() -> None:
    watch = Stopwatch(Clock())
    with pytest.raises(ValueError, match="bad"), watch.stage("reading"):
        raise ValueError("bad")
    with watch.stage("writing"):
        pass
    assert watch.seconds == {"reading": 1, "writing": 1}


def test_replaying_a_plan_is_judging() -> None:
    graph = chain(3)

    class Copies:
        def plan(self, problem: Problem, observe: Observer) -> PlanResult:
            return PlanResult(Status.FEASIBLE, Schedule((*plain_run(problem.graph).steps,)))

    watch, heard = Stopwatch(Clock()), RecordingObserver()
    solve(Problem(graph, Budget(10**9)), Copies(), Timed(heard, watch))  # type: ignore[arg-type]
    assert watch.seconds == {"judging": 1}
    assert heard.begun == 1
