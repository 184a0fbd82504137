"""Sweeps over budgets, against planners whose answers are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.config import PlannerChoice, Request
from remat_cli.core.problem import Bound, Budget, Observer, Planner, PlanResult, Problem, Scope, Status
from remat_cli.core.schedule import Schedule, plain_run, with_frees
from remat_cli.core.solve import Solution, baseline_of, solve
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.keep_all import KeepAll
from remat_cli.studies.sweep import Curve, Point, Sweep, sweep
from remat_cli.units import parse_budgets
from tests.graphs import training_chain, training_unet
from tests.plans import RecordingObserver, asking, prepared, told

# The plain run peaks at 5 bytes and takes 13; recomputing f1 brings that to 4 and 14; recomputing it twice, to 15.
GRAPH = training_chain(4)
PLAIN = plain_run(GRAPH)
RECOMPUTING = with_frees(GRAPH, ("f1", "f2", "f3", "f4", "loss", "b4", "b3", "f1", "b2", "b1"))
WASTEFUL = with_frees(GRAPH, ("f1", "f2", "f3", "f4", "loss", "b4", "b3", "f1", "b2", "f1", "b1"))
UNKNOWN = PlanResult(Status.UNKNOWN)
INFEASIBLE = PlanResult(Status.INFEASIBLE)


def plan(schedule: Schedule, time_bound: int | None = None, scope: Scope = Scope.PLANNER) -> PlanResult:
    bounds = () if time_bound is None else (Bound(time_bound, scope),)
    return PlanResult(Status.FEASIBLE, schedule, bounds)


@dataclass(frozen=True)
class Answers:
    """Answers as it is told for each budget, and notes what it was asked; an error among the answers is raised."""

    answers: Mapping[int, PlanResult | BaseException]
    asked: list[int] = field(default_factory=list)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        self.asked.append(problem.budget.device_bytes)
        answer = self.answers[problem.budget.device_bytes]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def swept(*planners: Planner, budgets: str = "4,5,6", share_plans: bool = True) -> Sweep:
    named = {f"planner{number}": asking(planner) for number, planner in enumerate(planners)}
    return sweep(prepared(GRAPH), named, parse_budgets(budgets), share_plans=share_plans)


def figures(curve: Curve) -> list[tuple[int, int | None, int | None]]:
    """Budget, time and where the plan was found, of each point."""
    return [
        (point.budget_bytes, None if point.trace is None else point.trace.time, point.found_at)
        for point in curve.points
    ]


def test_each_planner_is_asked_at_each_budget() -> None:
    planner = Answers({4: plan(RECOMPUTING), 5: plan(PLAIN)})
    result = swept(KeepAll(), planner, budgets="100%,4")
    assert result.budgets == (4, 5)
    assert [curve.label for curve in result.curves] == ["planner0", "planner1"]
    assert figures(result.curves[0]) == [(4, None, None), (5, 13, None)]
    assert figures(result.curves[1]) == [(4, 14, None), (5, 13, None)]
    assert not result.interrupted
    assert result.status is Status.FEASIBLE


def test_a_plan_found_at_a_smaller_budget_is_taken_over_at_a_larger_one() -> None:
    (curve,) = swept(Answers({4: plan(RECOMPUTING), 5: plan(WASTEFUL), 6: UNKNOWN})).curves
    assert figures(curve) == [(4, 14, None), (5, 14, 4), (6, 14, 4)]
    assert [point.solution.status for point in curve.points] == [Status.FEASIBLE] * 3
    assert [point.solution.problem.budget.device_bytes for point in curve.points] == [4, 5, 6]


def test_a_plan_found_at_a_larger_budget_is_taken_over_where_it_fits() -> None:
    (curve,) = swept(Answers({4: UNKNOWN, 5: UNKNOWN, 6: plan(RECOMPUTING)})).curves
    assert figures(curve) == [(4, 14, 6), (5, 14, 6), (6, 14, None)]


def test_a_plan_that_does_not_fit_is_not_taken_over() -> None:
    (curve,) = swept(Answers({4: UNKNOWN, 5: plan(PLAIN), 6: plan(WASTEFUL)})).curves
    assert figures(curve) == [(4, 15, 6), (5, 13, None), (6, 13, 5)]


def test_each_answer_stands_where_plans_are_not_shared() -> None:
    planner = Answers({4: plan(RECOMPUTING), 5: plan(WASTEFUL), 6: UNKNOWN})
    (curve,) = swept(planner, share_plans=False).curves
    assert figures(curve) == [(4, 14, None), (5, 15, None), (6, None, None)]


def test_what_was_proven_at_a_budget_holds_for_the_plan_that_is_taken_over() -> None:
    (curve,) = swept(Answers({4: plan(RECOMPUTING), 5: plan(WASTEFUL, 14), 6: plan(WASTEFUL, 15)})).curves
    met, beyond = curve.points[1].solution, curve.points[2].solution
    assert (met.status, met.result.bounds) == (Status.OPTIMAL, (Bound(14, Scope.PLANNER),))
    # The bound of 15 holds for plans among which that of 14 is not.
    assert (beyond.status, beyond.result.bounds) == (Status.FEASIBLE, (Bound(13, Scope.ANY_PLAN),))


def test_a_budget_below_one_that_is_proven_not_to_fit_is_not_asked_for() -> None:
    planner = Answers({6: plan(PLAIN), 5: INFEASIBLE})
    (curve,) = swept(planner).curves
    assert planner.asked == [6, 5]
    assert (curve.points[0].budget_bytes, curve.points[0].solution.status) == (4, Status.INFEASIBLE)
    assert curve.points[0].seconds == 0


def test_a_proof_that_a_known_plan_contradicts_is_dropped() -> None:
    answers = {4: PlanResult(Status.INFEASIBLE, scope=Scope.ANY_ORDER), 5: plan(RECOMPUTING), 6: UNKNOWN}
    (curve,) = swept(Answers(answers)).curves
    refuted = curve.points[0].solution
    assert (refuted.status, refuted.result.schedule) == (Status.FEASIBLE, RECOMPUTING)
    assert len(refuted.warnings) == 1


def test_a_planner_that_refuses_does_not_stop_the_others() -> None:
    refusal = PlannerRefuses("no chain", hint="use dtr")
    result = swept(Answers({6: refusal}), KeepAll())
    assert result.curves[0] == Curve("planner0", (), refusal)
    assert len(result.curves[1].points) == 3


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ({6: UNKNOWN, 5: UNKNOWN, 4: UNKNOWN}, Status.UNKNOWN),
        ({6: UNKNOWN, 5: INFEASIBLE}, Status.UNKNOWN),
        ({6: INFEASIBLE}, Status.INFEASIBLE),
        ({6: UNKNOWN, 5: UNKNOWN, 4: plan(RECOMPUTING)}, Status.FEASIBLE),
    ],
)
def test_the_status_is_the_best_of_all_points(answers: dict[int, PlanResult], status: Status) -> None:
    result = swept(Answers(answers), share_plans=False)
    assert result.status is status


def test_an_interruption_keeps_what_was_finished() -> None:
    result = swept(Answers({6: plan(PLAIN), 5: KeyboardInterrupt()}), KeepAll())
    assert result.interrupted
    assert [figures(curve) for curve in result.curves] == [[(6, 13, None)]]


def test_an_interruption_before_anything_was_finished_goes_on() -> None:
    with pytest.raises(KeyboardInterrupt):
        swept(Answers({6: KeyboardInterrupt()}))


@dataclass(frozen=True)
class StoppedWithAPlan:
    """Is interrupted after it has told of a plan."""

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        observe.found(told(RECOMPUTING))
        raise KeyboardInterrupt


def test_a_planner_interrupted_with_a_plan_in_hand_is_the_last_to_be_asked() -> None:
    result = swept(StoppedWithAPlan(), KeepAll())
    assert result.interrupted
    assert [point.trace.time for point in result.points if point.trace is not None] == [14]


def test_min_is_the_smallest_budget_of_each_planner() -> None:
    result = swept(KeepAll(), budgets="min,6")
    assert result.budgets == (6,)
    (curve,) = result.curves
    assert [(point.budget_bytes, point.asked_for_smallest) for point in curve.points] == [(5, True), (6, False)]
    assert curve.at(5) is None
    assert curve.smallest is curve.points[0]


# The plans of a curve that falls steeply, then slowly: peak and time.
CONVEX = [(10, 100), (20, 40), (30, 25), (60, 20), (100, 10)]


def curve_of(places: list[tuple[int, int]]) -> Curve:
    """A curve whose points have these peaks and times, each at the budget of its peak."""
    solution = solve(Problem(GRAPH, Budget(5)), KeepAll())

    def point(peak: int, time: int) -> Point:
        trace = replace(baseline_of(GRAPH), memory_bytes=(peak,), times=(time,))
        return Point(replace(solution, problem=Problem(GRAPH, Budget(peak)), trace=trace))

    return Curve("planner", tuple(point(peak, time) for peak, time in places))


def knee_of(places: list[tuple[int, int]]) -> int | None:
    knee = curve_of(places).knee
    return None if knee is None else knee.budget_bytes


def test_the_knee_is_the_point_farthest_below_the_line_between_the_ends() -> None:
    # Below the line by 0, 50, 55, 30 and 0 units of time.
    assert knee_of(CONVEX) == 30


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 1000))
def test_the_knee_does_not_depend_on_units(width: int, height: int, offset: int) -> None:
    assert knee_of([(offset + width * peak, offset + height * time) for peak, time in CONVEX]) == offset + width * 30


@pytest.mark.parametrize(
    "places",
    [
        [],
        CONVEX[:1],
        CONVEX[:2],
        [(10, 30), (20, 20), (30, 10)],  # a straight line
        [(10, 30), (20, 29), (30, 10)],  # above it
        [(10, 30), (20, 10), (30, 10), (40, 10)],  # what costs more memory and saves no time is no point of the curve
    ],
)
def test_a_curve_that_does_not_bend_has_no_knee(places: list[tuple[int, int]]) -> None:
    assert knee_of(places) is None


def solutions_of(result: Sweep) -> list[Solution]:
    return [point.solution for curve in result.curves for point in curve.points]


@pytest.mark.parametrize("name", ["approx_dp", "dtr", "rotor", "acg"])
def test_no_curve_gets_worse_with_more_memory(name: str) -> None:
    graph = training_unet(4)
    (curve,) = sweep(
        prepared(graph), {name: Request(planner=PlannerChoice(name))}, parse_budgets("30%..100%:15")
    ).curves
    planned = [point.trace for point in curve.points if point.trace is not None]
    assert len(planned) >= 3
    times = [trace.time for trace in planned]
    assert times == sorted(times, reverse=True)
    assert times[-1] == baseline_of(graph).time
    assert all(point.trace.peak_bytes <= point.budget_bytes for point in curve.points if point.trace is not None)


def test_rotor_makes_its_table_once_for_all_budgets() -> None:
    from remat_cli.planners.rotor.search import rotor_plans

    before = rotor_plans.cache_info().misses
    result = sweep(
        prepared(training_chain(12)), {"rotor": Request(planner=PlannerChoice("rotor"))}, parse_budgets("40%..90%:6")
    )
    assert sum(1 for solution in solutions_of(result) if solution.trace is not None) >= 3
    assert rotor_plans.cache_info().misses == before + 1


def test_progress_names_the_planner_and_how_far_it_is() -> None:
    told = RecordingObserver()
    named = {"first": asking(Answers({6: PlannerRefuses("no")})), "second": asking(KeepAll())}
    sweep(prepared(GRAPH), named, parse_budgets("4,6"), told)
    assert told.phases == [
        "1/4 · first at 6 B: starting",
        "3/4 · second at 6 B: starting",
        "4/4 · second at 4 B: starting",
    ]


def test_progress_tells_who_is_asked_and_how_good_the_plans_are_at_each_budget() -> None:
    told = RecordingObserver()
    sweep(prepared(GRAPH), {"auto": Request(planner=PlannerChoice("auto"))}, parse_budgets("4,5"), told)
    assert told.begun == 2
    assert len(told.asked) >= 1
    assert {round(overhead, 3) for overhead, _, _ in told.standings} >= {0, round(1 / 13, 3)}
