"""`solve` believes nothing: planners that lie, each in one way, and planners that are interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest

from remat_cli.core.graph import Kind, Phase, Residency
from remat_cli.core.link import Link
from remat_cli.core.problem import Basis, Bound, Budget, Observer, Plan, PlanResult, Problem, Scope, Status
from remat_cli.core.schedule import Compute, Offload, Schedule, Wait, plain_run, with_frees
from remat_cli.core.solve import (
    Activations,
    Solution,
    activations_of,
    baseline_of,
    bytes_of_budget,
    share_over,
    solve,
    with_plan_of,
)
from remat_cli.errors import FalseClaim, PlannerRefuses
from remat_cli.units import parse_budget
from tests.graphs import chain, graph_of, op, training_chain
from tests.plans import told

# The plain run peaks at 5 bytes and takes 13; recomputing f1 brings that to 4 and 14.
GRAPH = training_chain(4)
PLAIN = plain_run(GRAPH)
RECOMPUTING = with_frees(GRAPH, ("f1", "f2", "f3", "f4", "loss", "b4", "b3", "f1", "b2", "b1"))


@dataclass(frozen=True)
class Stub:
    """Does what it is told instead of planning."""

    act: Callable[[Problem, Observer], PlanResult]

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        return self.act(problem, observe)


def claim(
    result: PlanResult, budget: int, *, finds: tuple[Schedule, ...] = (), observe: Observer | None = None
) -> Solution:
    """Solve with a planner that first reports `finds` and then claims `result`."""

    def act(problem: Problem, observer: Observer) -> PlanResult:
        for schedule in finds:
            observer.found(told(schedule))
        return result

    return solve(Problem(GRAPH, Budget(budget)), Stub(act), observe)


def interrupted(budget: int, *finds: Schedule) -> Solution:
    def act(problem: Problem, observer: Observer) -> PlanResult:
        for schedule in finds:
            observer.found(told(schedule))
        raise KeyboardInterrupt

    return solve(Problem(GRAPH, Budget(budget)), Stub(act))


class Listener(Observer):
    def __init__(self) -> None:
        self.heard: list[object] = []

    def phase(self, text: str) -> None:
        self.heard.append(text)

    def found(self, plan: Plan) -> None:
        self.heard.append(plan.schedule)

    def bound(self, bound: Bound) -> None:
        self.heard.append(bound)


# Honest planners


def test_the_figures_that_these_tests_rest_on() -> None:
    plain = claim(PlanResult(Status.FEASIBLE, schedule=PLAIN), 100)
    fewer = claim(PlanResult(Status.FEASIBLE, schedule=RECOMPUTING), 100)
    assert plain.trace is not None
    assert fewer.trace is not None
    assert (plain.trace.peak_bytes, plain.trace.time) == (5, 13)
    assert (fewer.trace.peak_bytes, fewer.trace.time) == (4, 14)


def test_plan_is_measured_by_the_judge() -> None:
    solution = claim(PlanResult(Status.FEASIBLE, schedule=RECOMPUTING), 4)
    assert solution.status is Status.FEASIBLE
    assert solution.overhead == pytest.approx(1 / 13)
    assert not solution.interrupted


def test_plan_without_a_bound_gets_the_plain_runs_time_in_any_order() -> None:
    solution = claim(PlanResult(Status.FEASIBLE, schedule=RECOMPUTING), 4)
    assert solution.result.bounds == (Bound(13, Scope.ANY_PLAN),)
    assert solution.bound_overhead == 0
    assert solution.gap == pytest.approx(1 / 13)


def test_plan_with_a_bound_keeps_its_scope() -> None:
    solution = claim(PlanResult(Status.OPTIMAL, RECOMPUTING, (Bound(14, Scope.FIXED_ORDER, Basis.ONE_SOLVER),)), 4)
    assert (solution.status, solution.scope, solution.basis) == (Status.OPTIMAL, Scope.FIXED_ORDER, Basis.ONE_SOLVER)
    assert solution.gap == 0


def test_plan_that_takes_the_plain_runs_time_is_optimal_in_any_order() -> None:
    solution = claim(PlanResult(Status.FEASIBLE, PLAIN), 5)
    assert (solution.status, solution.scope) == (Status.OPTIMAL, Scope.ANY_PLAN)
    assert solution.result.bounds == (Bound(13, Scope.ANY_PLAN),)
    assert solution.overhead == 0


@pytest.mark.parametrize(
    ("result", "budget", "expected"),
    [
        (PlanResult(Status.FEASIBLE, RECOMPUTING, (Bound(14, Scope.ANY_ORDER),)), 4, True),
        (PlanResult(Status.FEASIBLE, RECOMPUTING, (Bound(14, Scope.PLANNER),)), 4, False),
        (PlanResult(Status.FEASIBLE, schedule=RECOMPUTING), 4, False),  # the plain run's time bounds all plans
        (PlanResult(Status.INFEASIBLE, scope=Scope.FIXED_ORDER), 4, True),
        (PlanResult(Status.INFEASIBLE, scope=Scope.FIXED_ORDER), 1, False),  # one op alone needs more
    ],
)
def test_what_a_proof_leaves_out_where_tensors_could_move(result: PlanResult, budget: int, expected: bool) -> None:
    stub = Stub(lambda problem, observe: result)
    linked = Problem(GRAPH, Budget(budget), link=Link(Fraction(1)))
    assert solve(linked, stub).leaves_out_transfers is expected
    assert not solve(Problem(GRAPH, Budget(budget)), stub).leaves_out_transfers


def test_plan_that_just_fits_the_budget_is_accepted() -> None:
    assert claim(PlanResult(Status.FEASIBLE, schedule=RECOMPUTING), 4).trace is not None


def test_budget_below_a_working_set_with_residents_proves_nothing_of_plans_that_move_them() -> None:
    graph = graph_of(op("a", "w", "x"), op("b", "v", "y"), residents=dict.fromkeys("vw", Residency.PARAMETER))
    result = solve(Problem(graph, Budget(3)), Stub(lambda *_: pytest.fail("asked"))).result
    assert (result.status, result.scope) == (Status.INFEASIBLE, Scope.ANY_ORDER)


def test_budget_below_the_working_set_is_infeasible_without_asking_the_planner() -> None:
    def act(problem: Problem, observe: Observer) -> PlanResult:
        raise AssertionError("the planner was asked")

    solution = solve(Problem(GRAPH, Budget(2)), Stub(act))
    assert (solution.status, solution.scope) == (Status.INFEASIBLE, Scope.ANY_PLAN)
    assert (solution.trace, solution.overhead, solution.bound_overhead, solution.gap) == (None, None, None, None)
    assert "op 'b4' alone cannot fit" in solution.result.reason


def test_outputs_that_cannot_fit_are_named_as_the_reason() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "", "y"))

    def act(problem: Problem, observe: Observer) -> PlanResult:
        raise AssertionError("the planner was asked")

    assert "the outputs alone cannot fit" in solve(Problem(graph, Budget(1)), Stub(act)).result.reason


def test_infeasible_keeps_the_closest_schedule_measured() -> None:
    solution = claim(PlanResult(Status.INFEASIBLE, closest=RECOMPUTING), 3)
    assert solution.status is Status.INFEASIBLE
    assert solution.trace is None
    assert solution.closest is not None
    assert solution.closest.peak_bytes == 4


def test_unknown_stays_unknown() -> None:
    solution = claim(PlanResult(Status.UNKNOWN), 4)
    assert (solution.status, solution.trace, solution.result.bounds) == (Status.UNKNOWN, None, ())


def test_refusal_of_a_planner_is_passed_on() -> None:
    def act(problem: Problem, observe: Observer) -> PlanResult:
        raise PlannerRefuses("no forward part", hint="use keep_all")

    with pytest.raises(PlannerRefuses, match="no forward part"):
        solve(Problem(GRAPH, Budget(4)), Stub(act))


def test_observer_hears_phases_and_each_better_bound_and_plan() -> None:
    listener = Listener()

    def act(problem: Problem, observe: Observer) -> PlanResult:
        observe.phase("searching")
        for time in (12, 11, 13, 13):
            observe.bound(Bound(time, Scope.ANY_ORDER))
        for schedule in (RECOMPUTING, RECOMPUTING, PLAIN, RECOMPUTING):
            observe.found(told(schedule))
        return PlanResult(Status.FEASIBLE, schedule=PLAIN)

    solve(Problem(GRAPH, Budget(5)), Stub(act), listener)
    bounds = [Bound(time, Scope.ANY_ORDER) for time in (12, 13)]
    assert listener.heard == ["searching", *bounds, RECOMPUTING, PLAIN]


def test_plan_above_the_budget_is_not_passed_on() -> None:
    listener = Listener()
    claim(PlanResult(Status.FEASIBLE, schedule=RECOMPUTING), 4, finds=(PLAIN,), observe=listener)
    assert listener.heard == []


# Schedules that do not run: nothing is left of such a planner's word


def test_liar_whose_schedule_does_not_run() -> None:
    with pytest.raises(FalseClaim, match=r"does not run: step 0 \(compute 'f2'\)"):
        claim(PlanResult(Status.FEASIBLE, schedule=Schedule((Compute("f2"),))), 100)


def test_liar_whose_schedule_leaves_ops_out() -> None:
    with pytest.raises(FalseClaim, match="does not run: at the end: op 'loss' was never run"):
        claim(PlanResult(Status.FEASIBLE, schedule=Schedule(PLAIN.steps[:4])), 100)


def test_liar_who_reports_a_schedule_that_does_not_run() -> None:
    with pytest.raises(FalseClaim, match=r"does not run: step 0 \(compute 'f3'\)"):
        claim(PlanResult(Status.FEASIBLE, schedule=PLAIN), 100, finds=(Schedule((Compute("f3"),)),))


@pytest.mark.parametrize("status", [Status.INFEASIBLE, Status.UNKNOWN])
def test_liar_whose_closest_schedule_does_not_run(status: Status) -> None:
    with pytest.raises(FalseClaim, match="does not run"):
        claim(PlanResult(status, closest=Schedule(())), 3)


# Claims that a plan refutes: they are dropped, and the plan stays


@pytest.mark.parametrize("finds", [(), (RECOMPUTING,)])
def test_liar_whose_schedule_peaks_above_the_budget(finds: tuple[Schedule, ...]) -> None:
    solution = claim(PlanResult(Status.OPTIMAL, PLAIN, (Bound(13, Scope.ANY_ORDER),)), 4, finds=finds)
    assert solution.warnings == ("the planner returned a plan that peaks at 5 bytes, above the budget of 4",)
    if finds:
        assert (solution.status, solution.result.schedule) == (Status.FEASIBLE, RECOMPUTING)
    else:
        assert solution.status is Status.UNKNOWN
        assert solution.closest is not None
        assert solution.closest.peak_bytes == 5


def test_liar_whose_bound_is_above_its_own_time() -> None:
    bounds = (Bound(15, Scope.FIXED_ORDER), Bound(14, Scope.ANY_ORDER))
    solution = claim(PlanResult(Status.OPTIMAL, RECOMPUTING, bounds), 4)
    assert solution.warnings == ("a bound (fixed-order) is wrong: a plan takes 14, less than 15",)
    assert solution.result.bounds == (Bound(14, Scope.ANY_ORDER),)
    assert (solution.status, solution.result.schedule) == (Status.OPTIMAL, RECOMPUTING)


def test_liar_whose_only_bound_is_wrong() -> None:
    solution = claim(PlanResult(Status.FEASIBLE, RECOMPUTING, (Bound(15, Scope.PLANNER),)), 4)
    assert len(solution.warnings) == 1
    assert (solution.status, solution.result.bounds) == (Status.FEASIBLE, (Bound(13, Scope.ANY_PLAN),))


def test_a_bound_on_other_plans_is_not_refuted_by_one_in_another_order() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "", "y"), op("c", "x y", "z"))
    other = with_frees(graph, ("b", "a", "a", "c"))
    result = PlanResult(Status.FEASIBLE, other, (Bound(5, Scope.FIXED_ORDER),))
    solution = solve(Problem(graph, Budget(10)), Stub(lambda problem, observe: result))
    assert solution.warnings == ()
    # It says nothing of this plan, so what holds for every plan comes first.
    assert solution.result.bounds == (Bound(3, Scope.ANY_PLAN), Bound(5, Scope.FIXED_ORDER))


def test_a_bound_on_plans_without_transfers_is_not_refuted_by_one_with_them() -> None:
    graph = chain(4, 1)
    moved = Schedule((Compute("f1"), Offload("t1"), Wait("t1"), Compute("f2")))
    result = PlanResult(Status.FEASIBLE, moved, (Bound(10, Scope.ANY_ORDER),))
    problem = Problem(graph, Budget(5), link=Link(Fraction(2)))
    assert solve(problem, Stub(lambda problem, observe: result)).warnings == ()


def test_a_plan_that_moves_tensors_is_held_against_bounds_on_such_plans_only() -> None:
    graph = chain(4, 1)
    moved = Schedule((Compute("f1"), Offload("t1"), Wait("t1"), Compute("f2")))  # takes 4, the plain run 2
    problem = Problem(graph, Budget(5), link=Link(Fraction(2)))
    bounds = (Bound(4, Scope.ANY_ORDER), Bound(3, Scope.ANY_PLAN))
    solution = solve(problem, Stub(lambda problem, observe: PlanResult(Status.FEASIBLE, moved, bounds)))
    assert (solution.status, solution.result.bounds) == (Status.FEASIBLE, bounds[::-1])
    wrong = (Bound(5, Scope.ANY_PLAN),)
    solution = solve(problem, Stub(lambda problem, observe: PlanResult(Status.FEASIBLE, moved, wrong)))
    assert solution.warnings == ("a bound (any-plan) is wrong: a plan takes 4, less than 5",)
    met = (Bound(4, Scope.ANY_PLAN),)
    solution = solve(problem, Stub(lambda problem, observe: PlanResult(Status.FEASIBLE, moved, met)))
    assert solution.status is Status.OPTIMAL


def test_liar_who_calls_optimal_what_is_above_the_bound() -> None:
    solution = claim(PlanResult(Status.OPTIMAL, RECOMPUTING, (Bound(13, Scope.ANY_ORDER),)), 4)
    assert solution.warnings == ("the planner calls its plan optimal, but its time is above the bound",)
    assert (solution.status, solution.result.schedule) == (Status.FEASIBLE, RECOMPUTING)


@pytest.mark.parametrize("scope", [Scope.ANY_ORDER, Scope.FIXED_ORDER])
def test_liar_who_calls_infeasible_what_the_plain_run_fits(scope: Scope) -> None:
    solution = claim(PlanResult(Status.INFEASIBLE, scope=scope), 5)
    assert solution.warnings == (f"the proof that no plan fits ({scope}) is wrong: there is one, and it is kept",)
    assert (solution.status, solution.result.schedule) == (Status.OPTIMAL, PLAIN)


def test_planner_that_does_not_search_the_plain_run_may_find_nothing_where_it_fits() -> None:
    assert claim(PlanResult(Status.INFEASIBLE), 5).status is Status.INFEASIBLE


def test_liar_who_calls_infeasible_what_its_closest_schedule_fits() -> None:
    solution = claim(PlanResult(Status.INFEASIBLE, closest=RECOMPUTING), 4)
    assert len(solution.warnings) == 1
    assert (solution.status, solution.result.schedule) == (Status.FEASIBLE, RECOMPUTING)


def test_liar_who_calls_infeasible_what_it_found_a_plan_for() -> None:
    solution = claim(PlanResult(Status.INFEASIBLE), 4, finds=(RECOMPUTING,))
    assert len(solution.warnings) == 1
    assert (solution.status, solution.result.schedule) == (Status.FEASIBLE, RECOMPUTING)
    assert solution.closest is None


def test_false_claims_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    claim(PlanResult(Status.INFEASIBLE), 4, finds=(RECOMPUTING,))
    assert [(record.name, record.levelname) for record in caplog.records] == [("remat", "WARNING")]


@pytest.mark.parametrize("status", [Status.OPTIMAL, Status.FEASIBLE])
def test_result_with_a_plan_needs_one(status: Status) -> None:
    with pytest.raises(ValueError, match="needs a schedule"):
        PlanResult(status, bounds=(Bound(1, Scope.ANY_ORDER),))


@pytest.mark.parametrize("status", [Status.INFEASIBLE, Status.UNKNOWN])
def test_result_without_a_plan_cannot_have_one(status: Status) -> None:
    with pytest.raises(ValueError, match="cannot have a schedule"):
        PlanResult(status, schedule=PLAIN)


def test_optimal_result_needs_its_bound() -> None:
    with pytest.raises(ValueError, match="needs the bound"):
        PlanResult(Status.OPTIMAL, schedule=PLAIN)


# Interruption


def test_interrupted_run_keeps_its_best_plan() -> None:
    solution = interrupted(5, RECOMPUTING, PLAIN, RECOMPUTING)
    assert solution.interrupted
    assert solution.result.schedule == PLAIN


def test_interrupted_run_keeps_no_plan_above_the_budget() -> None:
    solution = interrupted(4, PLAIN, RECOMPUTING)
    assert (solution.status, solution.result.schedule) == (Status.FEASIBLE, RECOMPUTING)


def test_interruption_before_any_plan_goes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(4)


def test_interruption_with_nothing_but_plans_above_the_budget_goes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(4, PLAIN)


# Shares


def test_a_graph_whose_ops_take_no_time_has_no_overhead() -> None:
    assert share_over(0, 0) == 0


def test_transfers_are_judged_on_the_problems_link() -> None:
    moved = Schedule((Compute("f1"), Offload("t1"), Wait("t1"), Compute("f2")))
    solution = solve(
        Problem(chain(4, 1), Budget(5), link=Link(Fraction(2))),
        Stub(lambda problem, observe: PlanResult(Status.FEASIBLE, schedule=moved)),
    )
    assert solution.trace is not None
    assert solution.trace.time == 1 + 2 + 1


def test_a_better_plan_that_was_found_is_not_lost_to_a_worse_result() -> None:
    slower = with_frees(GRAPH, ("f1", "f2", "f3", "f4", "loss", "b4", "b3", "f1", "b2", "f1", "b1"))
    solution = claim(PlanResult(Status.FEASIBLE, schedule=slower), 4, finds=(RECOMPUTING,))
    assert solution.result.schedule == RECOMPUTING


def test_a_plan_that_was_found_is_not_lost_to_an_unknown_result() -> None:
    solution = claim(PlanResult(Status.UNKNOWN), 4, finds=(RECOMPUTING,))
    assert (solution.status, solution.result.schedule) == (Status.FEASIBLE, RECOMPUTING)


def test_a_plan_is_not_optimal_for_meeting_a_bound_on_others() -> None:
    # The foremost bound says least; the one on plans in the input order is met, but this one is of a wider search.
    bounds = (Bound(13, Scope.ANY_PLAN), Bound(14, Scope.FIXED_ORDER))
    solution = claim(PlanResult(Status.FEASIBLE, RECOMPUTING, bounds), 4)
    assert (solution.status, solution.scope) == (Status.FEASIBLE, Scope.ANY_PLAN)
    assert solution.result.bounds == bounds


def test_a_bound_below_the_plain_time_is_raised_to_it() -> None:
    solution = claim(PlanResult(Status.FEASIBLE, RECOMPUTING, (Bound(1, Scope.FIXED_ORDER),)), 4)
    assert solution.result.bounds == (Bound(13, Scope.ANY_PLAN),)


def test_gradients_that_a_step_makes_are_no_activations() -> None:
    """Three activations of 2 bytes are there when the backward pass begins, and five gradients of 10 at its end."""
    forward = [op("f1", "x w1", "a1"), op("f2", "a1 w2", "a2"), op("f3", "a2 w3", "a3")]
    backward = [
        op("b3", "a2 a3 w3", "d2 gw3", phase=Phase.BACKWARD),
        op("b2", "a1 d2 w2", "d1 gw2", phase=Phase.BACKWARD),
        op("b1", "x d1 w1", "gw1", phase=Phase.BACKWARD),
    ]
    weights, gradients = ("w1", "w2", "w3"), ("gw1", "gw2", "gw3")
    sizes = dict.fromkeys(weights + gradients, 10) | dict.fromkeys(("a1", "a2", "a3", "d1", "d2"), 2)
    step = graph_of(*forward, *backward, sizes=sizes, outputs=("a3", *gradients), kind=Kind.TRAINING, resident_bytes=4)
    # Beside the parameters, the input of 1 byte, resident bytes and gradients: a1, a2, a3 and d2.
    assert activations_of(step) == Activations(other_bytes=4 + 1 + 30 + 30, bytes=8)
    assert bytes_of_budget(parse_budget("50% of activations"), step) == 69
    assert activations_of(step).share(69) == Fraction(1, 2)
    # Where they are resident, as in steps that are derived from a forward graph, the budget is the same.
    derived = replace(step, resident_bytes=34, outputs=("a3",))
    free = {name: replace(step.tensors[name], bytes=0) for name in gradients}
    derived = replace(derived, tensors={**step.tensors, **free})
    assert bytes_of_budget(parse_budget("50% of activations"), derived) == 69


def test_without_bytes_of_gradients_activations_are_read_from_the_plain_run(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain(3)
    peak = baseline_of(graph).peak_bytes
    replayed: list[Schedule] = []
    monkeypatch.setattr("remat_cli.core.solve.simulate", lambda _, schedule: replayed.append(schedule))
    assert activations_of(graph) == Activations(other_bytes=graph.fixed_bytes, bytes=peak - graph.fixed_bytes)
    assert not replayed


def test_a_bound_of_the_planners_own_plans_is_of_no_use_beside_the_plan_of_another() -> None:
    slower = with_frees(GRAPH, ("f1", "f2", "f3", "f4", "loss", "b4", "f1", "b3", "f1", "b2", "b1"))
    own = claim(PlanResult(Status.OPTIMAL, slower, (Bound(15, Scope.PLANNER),)), 4)
    assert [bound.scope for bound in own.result.bounds] == [Scope.PLANNER]
    others = claim(PlanResult(Status.FEASIBLE, RECOMPUTING), 4)
    taken = with_plan_of(own, others)
    assert taken.trace is not None
    assert taken.trace.time == 14
    assert taken.result.bounds == (Bound(13, Scope.ANY_PLAN),)
    assert taken.warnings == ()


def test_a_share_of_activations_is_that_of_what_fits_beside_everything_else() -> None:
    assert Activations(other_bytes=60, bytes=80).share(100) == Fraction(1, 2)
    assert Activations(other_bytes=60, bytes=0).share(60) == 0


def test_where_no_addresses_are_asked_for_resident_bytes_are_part_of_the_budget() -> None:
    graph = replace(GRAPH, resident_bytes=7)
    solution = solve(Problem(graph, Budget(12)), Stub(lambda *_: PlanResult(Status.FEASIBLE, plain_run(graph))))
    assert (solution.uncounted_bytes, solution.needed_bytes) == (0, 12)
    assert replace(solution, has_addresses=True).uncounted_bytes == 7
