"""The default planner: what it keeps of its members' results, when it ends, and what it tells."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from remat_cli.config import GraphOptions
from remat_cli.errors import UsageError
from remat_cli.graph import Graph
from remat_cli.planners.auto.planner import Auto
from remat_cli.planners.auto.portfolio import Portfolio
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.lower_sets.approx_dp import ApproxDP
from remat_cli.planners.min_cut.planner import MinCut
from remat_cli.planners.retention.planner import Retention
from remat_cli.planners.rotor.planner import Rotor
from remat_cli.prepare import prepare
from remat_cli.problem import Bound, Budget, Observer, Plan, Problem, Scope, Status
from remat_cli.schedule import Offload, Schedule, plain_run
from remat_cli.solve import baseline_of, solve
from tests.graphs import diamond, graph_of, op, training_chain, training_unet
from tests.oracle import least_peak
from tests.places import GRAPHS

NO_CLOCK = 600.0


def problem_of(graph: Graph, share: float) -> Problem:
    return Problem(graph, Budget(int(baseline_of(graph).peak_bytes * share)))


def unet(share: float) -> Problem:
    return problem_of(prepare(GRAPHS / "unet.onnx", GraphOptions(dims={"batch": 8})).graph, share)


class Notes(Observer):
    """Writes down what is told."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.bounds: list[Bound] = []
        self.standings: list[tuple[float, float, str | None]] = []

    def asks(self, planner: str) -> None:
        self.asked.append(planner)

    def bound(self, bound: Bound) -> None:
        self.bounds.append(bound)

    def standing(self, overhead: float, bound: float, found_by: str | None) -> None:
        self.standings.append((overhead, bound, found_by))


@pytest.mark.parametrize("share", [0.9, 0.7, 0.6])
def test_is_no_worse_than_its_members(share: float) -> None:
    problem = unet(share)
    auto = solve(problem, Auto(time_limit=NO_CLOCK))
    assert auto.trace is not None
    for member in (DTR(), Rotor(), ApproxDP(), MinCut(), Retention(time_limit=NO_CLOCK)):
        trace = solve(problem, member).trace
        # Up to the gap at which it is content.
        assert trace is None or auto.trace.time <= trace.time + Auto().gap * problem.graph.total_time


def test_tells_bound_overhead_and_who_found_it_first_to_last() -> None:
    notes = Notes()
    solution = solve(unet(0.6), Auto(time_limit=NO_CLOCK), notes)
    assert notes.asked[:3] == ["keep_all", "dtr", "min_cut"]
    assert {bound.scope for bound in notes.bounds} == {Scope.ANY_ORDER, Scope.FIXED_ORDER}
    overheads = [overhead for overhead, _, _ in notes.standings]
    assert overheads == sorted(overheads, reverse=True)
    assert notes.standings[0][2] == "dtr"
    assert notes.standings[-1] == (solution.overhead, solution.bound_overhead, solution.result.found_by)


def test_an_ample_budget_is_settled_by_the_plain_run() -> None:
    notes = Notes()
    solution = solve(problem_of(training_unet(4), 1.0), Auto(), notes)
    assert (solution.status, solution.scope, solution.result.found_by) == (
        Status.OPTIMAL,
        Scope.ANY_ORDER,
        "keep_all",
    )
    assert notes.asked == ["keep_all"]


def test_ends_as_soon_as_the_bound_is_met() -> None:
    graph = training_chain(12, size=10)
    problem = problem_of(graph, 0.9)
    notes = Notes()
    solution = solve(problem, Auto(), notes)
    assert (solution.status, solution.scope) == (Status.OPTIMAL, Scope.ANY_ORDER)
    assert "retention" not in notes.asked


def test_an_order_that_needs_no_recomputation_is_found() -> None:
    # `big` before `x` is made: nothing has to be made again. In the input order `x` is held while `big` runs.
    graph = graph_of(
        op("make_x", "", "x"),
        op("big", "", "b"),
        op("shrink", "b", "c"),
        op("end", "x c", "e"),
        sizes={"x": 5, "b": 9},
    )
    problem = Problem(graph, Budget(baseline_of(graph).peak_bytes - 1))
    solution = solve(problem, Auto())
    assert (solution.status, solution.overhead) == (Status.OPTIMAL, 0.0)


def test_proves_that_nothing_fits_where_what_must_be_there_may_not_run_again() -> None:
    once = {"recomputable": False}
    graph = graph_of(
        op("a", "", "x", **once),
        op("b", "x", "y", **once),
        op("c", "y", "z", **once),
        op("d", "x z", "w"),
        sizes={"x": 5, "y": 5, "z": 5},
    )
    least = least_peak(graph).peak_bytes
    solution = solve(Problem(graph, Budget(least - 1)), Auto())
    assert (solution.status, solution.scope) == (Status.INFEASIBLE, Scope.ANY_ORDER)
    assert least - 1 >= solution.working_set.bytes
    assert solve(Problem(graph, Budget(least)), Auto()).status is Status.OPTIMAL


def test_what_only_the_search_did_not_find_is_unknown() -> None:
    graph = diamond()
    solution = solve(Problem(graph, Budget(least_peak(graph).peak_bytes - 1)), Auto())
    assert solution.status is Status.UNKNOWN


def test_bounds_of_a_planners_own_plans_are_not_passed_on() -> None:
    notes = Notes()
    problem = problem_of(training_unet(4), 0.8)
    portfolio = Portfolio(problem, Auto(), notes)
    time = problem.graph.total_time
    portfolio.bound(Bound(2 * time, Scope.PLANNER))
    assert notes.bounds == []
    for bound in (Bound(time + 2, Scope.FIXED_ORDER), Bound(time + 1, Scope.ANY_ORDER)):
        portfolio.bound(bound)
        assert notes.bounds[-1] == bound


def test_without_time_the_plain_run_is_the_closest() -> None:
    problem = problem_of(training_unet(4), 0.9)
    solution = solve(problem, Auto(time_limit=0.0))
    assert solution.status is Status.UNKNOWN
    assert solution.closest is not None
    assert solution.closest.peak_bytes == baseline_of(problem.graph).peak_bytes


class Interrupt(Notes):
    """Presses Ctrl-C when the first plan has come."""

    def found(self, plan: Plan) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_keeps_the_best_plan_and_who_found_it() -> None:
    solution = solve(unet(0.6), Auto(), Interrupt())
    assert solution.interrupted
    assert solution.status is Status.FEASIBLE
    assert solution.result.found_by == "dtr"


class InterruptTheProof(Notes):
    """Presses Ctrl-C when the bound is being proven."""

    def phase(self, text: str) -> None:
        if "proving" in text:
            raise KeyboardInterrupt


def test_ctrl_c_in_the_proof_keeps_a_plan() -> None:
    solution = solve(unet(0.6), Auto(), InterruptTheProof())
    assert solution.interrupted
    assert solution.status is Status.FEASIBLE


def test_a_limit_of_work_gives_the_same_plan_again() -> None:
    problem = unet(0.7)
    planner = Auto(work_limit=0.2, seed=3)
    first, second = (planner.plan(problem, Observer()) for _ in range(2))
    assert first == second
    assert first.schedule != plain_run(problem.graph)


def sent(schedule: Schedule | None) -> int:
    """How many tensors a plan moves to the host."""
    assert schedule is not None
    return sum(isinstance(step, Offload) for step in schedule.steps)


def test_offloads_only_where_it_may_and_then_proves_nothing_of_recomputation() -> None:
    problem = replace(unet(0.6), bytes_per_time=Fraction(12))
    stays, moves = (solve(problem, Auto(offload=offload)) for offload in (False, True))
    assert sent(stays.result.schedule) == 0
    assert sent(moves.result.schedule) > 0
    assert moves.result.found_by == "pofo"
    assert stays.result.time_bound is not None
    assert moves.trace is not None
    assert problem.graph.total_time <= moves.trace.time < stays.result.time_bound
    assert moves.bound_overhead == 0


def test_without_a_link_it_offloads_nothing() -> None:
    may, may_not = (solve(unet(0.8), Auto(offload=offload)) for offload in (True, False))
    assert may.result == may_not.result


@pytest.mark.parametrize("option", ["time_limit", "gap", "patience", "cores", "seed"])
def test_refuses_options_that_make_no_sense(option: str) -> None:
    wrong: dict[str, Any] = {option: -1}
    with pytest.raises(UsageError, match=option):
        Auto(**wrong)
