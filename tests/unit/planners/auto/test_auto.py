"""The default planner: what it keeps of its members' results, when it ends, and what it tells."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from time import monotonic
from typing import Any

import pytest

from remat_cli.core.link import Link
from remat_cli.core.problem import Basis, Bound, Budget, Observer, Problem, Scope, Status
from remat_cli.core.schedule import Offload, Schedule, plain_run
from remat_cli.core.solve import Solution, baseline_of, solve
from remat_cli.errors import UsageError
from remat_cli.generate.unet import UNet
from remat_cli.planners.auto import portfolio
from remat_cli.planners.auto.members import AutoPlanners, Listener
from remat_cli.planners.auto.planner import Auto
from remat_cli.planners.auto.portfolio import Stage, Turn
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.min_cut.planner import MinCut
from remat_cli.planners.published.lower_sets.dp_planners import ApproxDP
from remat_cli.planners.retention import any_order_bound
from remat_cli.planners.retention.cut_bound import CutProof, CutSearch
from remat_cli.planners.retention.planner import Retention
from remat_cli.planners.rotor.planner import Rotor
from remat_cli.planners.shared import limits, second_solver
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planning import FirstPlan
from remat_cli.synthesis import synthesize
from tests.graphs import diamond, graph_of, op, residual_step, training_chain, training_unet
from tests.oracle import least_peak
from tests.plans import Impatient, RecordingObserver, at_share

NO_CLOCK = 600.0


@cache
def unet(share: float) -> Problem:
    return at_share(synthesize(UNet(), ops=70).graph, share)


@cache
def unet_planned(share: float) -> tuple[Solution, RecordingObserver]:
    """Plan a U-Net as far as it goes; return also what was told on the way."""
    told = RecordingObserver()
    return solve(unet(share), Auto(time_limit=NO_CLOCK), told), told


@pytest.mark.parametrize("share", [0.9, 0.6])
def test_is_no_worse_than_its_members(share: float) -> None:
    problem = unet(share)
    auto, _ = unet_planned(share)
    assert auto.trace is not None
    for member in (DTR(), Rotor(), ApproxDP(), MinCut(), Retention(time_limit=NO_CLOCK)):
        trace = solve(problem, member).trace
        # Up to the gap at which it is content.
        assert trace is None or auto.trace.time <= trace.time + Auto().gap * problem.graph.total_time


def test_tells_bound_overhead_and_who_found_it_first_to_last() -> None:
    solution, told = unet_planned(0.6)
    assert told.asked[:3] == ["keep_all", "dtr", "min_cut"]
    assert {bound.scope for bound in told.bounds} == {Scope.ANY_ORDER, Scope.FIXED_ORDER}
    overheads = [overhead for overhead, _, _ in told.standings]
    assert overheads == sorted(overheads, reverse=True)
    assert told.standings[0][2] == "dtr"
    assert told.standings[-1] == (solution.overhead, solution.bound_overhead, solution.result.found_by)


def test_an_ample_budget_is_settled_by_the_plain_run() -> None:
    told = RecordingObserver()
    solution = solve(at_share(training_unet(4), 1.0), Auto(), told)
    assert (solution.status, solution.scope, solution.result.found_by) == (
        Status.OPTIMAL,
        Scope.ANY_PLAN,
        "keep_all",
    )
    assert told.asked == ["keep_all"]


def test_ends_as_soon_as_the_bound_is_met() -> None:
    graph = training_chain(12, size=10)
    problem = at_share(graph, 0.9)
    told = RecordingObserver()
    solution = solve(problem, Auto(), told)
    assert (solution.status, solution.scope) == (Status.OPTIMAL, Scope.ANY_ORDER)
    assert "retention" not in told.asked


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


@pytest.fixture
def _no_proof_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the proof that what a large op reads cannot have come into memory, which settles these problems."""
    monkeypatch.setattr(any_order_bound, "nothing_fits", lambda *_: False)


@pytest.mark.usefixtures("_no_proof_at_once")
def test_that_nothing_fits_a_small_graph_is_proven_by_trying_everything() -> None:
    graph = diamond()
    told = RecordingObserver()
    solution = solve(Problem(graph, Budget(least_peak(graph).peak_bytes - 1)), Auto(), told)
    assert (solution.status, solution.scope) == (Status.INFEASIBLE, Scope.ANY_ORDER)
    assert told.asked[-1] == "shortest_path"


@pytest.mark.usefixtures("_no_proof_at_once")
def test_what_only_the_search_did_not_find_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio.Standing, "is_tiny", False)
    monkeypatch.setattr(portfolio.Standing, "is_small", False)
    graph = diamond()
    solution = solve(Problem(graph, Budget(least_peak(graph).peak_bytes - 1)), Auto())
    assert solution.status is Status.UNKNOWN


@pytest.mark.usefixtures("_no_proof_at_once")
def test_what_a_small_graph_needs_more_than_a_moment_for_is_settled_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    few, *others = portfolio.RECOMPUTING
    quick = (Turn("shortest_path", AutoPlanners.settle, work=3),)
    monkeypatch.setattr(portfolio, "RECOMPUTING", (Stage(few.when, quick, few.why), *others))
    graph = diamond()
    told = RecordingObserver()
    solution = solve(Problem(graph, Budget(least_peak(graph).peak_bytes - 1)), Auto(), told)
    assert (solution.status, solution.scope) == (Status.INFEASIBLE, Scope.ANY_ORDER)
    assert told.asked.count("shortest_path") == 2


def test_a_residual_step_that_others_leave_open_is_settled_by_trying_everything() -> None:
    """Four blocks of one size, in 50 % of the plain peak: the bound of cuts ends 3.8 points below the best plan."""
    graph = residual_step(4)
    told = RecordingObserver()
    solution = solve(Problem(graph, Budget(baseline_of(graph).peak_bytes // 2)), Auto(), told)
    assert (solution.status, len(graph.ops)) == (Status.OPTIMAL, 31)
    assert told.asked[-1] == "shortest_path"


def test_a_small_training_graph_is_planned_as_a_chain_before_searches_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class UntilRotor(RecordingObserver):
        @property
        def has_enough(self) -> bool:
            return "rotor" in self.asked

    monkeypatch.setattr(CutSearch, "turn", lambda *_, **__: CutProof())
    told = UntilRotor()
    solve(Problem(training_chain(12), Budget(4)), Auto(time_limit=NO_CLOCK), told)
    assert told.asked == ["keep_all", "dtr", "min_cut", "retention", "rotor"]


def test_the_smallest_budget_of_a_chain_is_met_by_planning_it_as_a_chain() -> None:
    graph = training_chain(23)
    first = FirstPlan(graph.total_time, Observer(), None)
    solution = solve(Problem(graph, Budget(3)), Auto(time_limit=NO_CLOCK), first)
    assert solution.trace is not None
    assert solution.result.found_by == "rotor"


def test_where_any_plan_will_do_a_small_graph_is_not_settled() -> None:
    """It would take each refusal of a search for the smallest budget seconds."""
    graph = residual_step(4)
    told = RecordingObserver()
    first = FirstPlan(baseline_of(graph).time, told, max_overhead=None)
    solution = solve(Problem(graph, Budget(baseline_of(graph).peak_bytes * 45 // 100)), Auto(), first)
    assert solution.trace is None
    assert "shortest_path" not in told.asked


def test_bounds_of_a_planners_own_plans_are_not_passed_on() -> None:
    told = RecordingObserver()
    problem = at_share(training_unet(4), 0.8)
    listener = Listener(Incumbent(problem, told, Scope.ANY_ORDER))
    time = problem.graph.total_time
    listener.bound(Bound(2 * time, Scope.PLANNER))
    assert told.bounds == []
    for bound in (Bound(time + 2, Scope.FIXED_ORDER), Bound(time + 1, Scope.ANY_ORDER)):
        listener.bound(bound)
        assert told.bounds[-1] == bound


def test_without_time_the_plain_run_is_the_closest() -> None:
    problem = at_share(training_unet(4), 0.9)
    solution = solve(problem, Auto(time_limit=0.0))
    assert solution.status is Status.UNKNOWN
    assert solution.closest is not None
    assert solution.closest.peak_bytes == baseline_of(problem.graph).peak_bytes


def test_ctrl_c_keeps_the_best_plan_and_who_found_it() -> None:
    solution = solve(unet(0.6), Auto(), Impatient())
    assert solution.interrupted
    assert solution.status is Status.FEASIBLE
    assert solution.result.found_by == "dtr"


class InterruptTheProof(RecordingObserver):
    """Presses Ctrl-C when the bound is being proven."""

    def phase(self, text: str) -> None:
        if "proving" in text:
            raise KeyboardInterrupt


def test_ctrl_c_in_the_proof_keeps_a_plan() -> None:
    solution = solve(unet(0.6), Auto(), InterruptTheProof())
    assert solution.interrupted
    assert solution.status is Status.FEASIBLE


class Late(RecordingObserver):
    """Lets time pass, far beyond any limit, where one of the phases begins."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.now = monotonic()
        self._at = at

    def clock(self) -> float:
        return self.now

    def phase(self, text: str) -> None:
        super().phase(text)
        if len(self.phases) == self._at:
            self.now += 1e9


class BeforeAnyProof(RecordingObserver):
    """Counts the plans that there are when the first proof begins."""

    plans_before: int | None = None

    def phase(self, text: str) -> None:
        super().phase(text)
        if "proving" in text and self.plans_before is None:
            self.plans_before = len(self.plans)


def test_a_plan_comes_before_any_proof() -> None:
    told = BeforeAnyProof()
    solve(at_share(training_unet(4), 0.8), Auto(time_limit=NO_CLOCK), told)
    assert told.plans_before


# None of these waits: the clock is the test's.
@pytest.mark.parametrize("late_at", range(1, 20))
def test_whatever_phase_the_time_is_up_in_it_ends_with_the_plan_so_far(
    late_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Late(late_at)
    monkeypatch.setattr(limits, "monotonic", told.clock)
    # Settled neither by trying everything nor by a better bound.
    monkeypatch.setattr(portfolio.Standing, "is_small", False)
    monkeypatch.setattr(CutSearch, "turn", lambda *_, **__: CutProof())
    solution = solve(at_share(training_unet(6), 0.8), Auto(time_limit=10.0), told)
    assert len(told.phases) >= late_at
    has_plan = bool(told.plans)
    assert (solution.status in (Status.FEASIBLE, Status.OPTIMAL)) == has_plan
    assert has_plan or late_at == 1
    # A planner may announce what comes next before it looks at the clock.
    assert len(told.phases) <= late_at + 2


@pytest.mark.parametrize("agrees", [True, False])
def test_what_one_solver_says_of_several_moments_is_checked_by_another(
    agrees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_solver, "agrees", lambda *_: agrees)
    solution = solve(at_share(training_unet(6), 0.8), Auto(time_limit=NO_CLOCK))
    assert solution.status is Status.OPTIMAL
    foremost = solution.result.bounds[0]
    assert (foremost.scope, foremost.basis) == (Scope.ANY_ORDER, Basis.TWO_SOLVERS if agrees else Basis.ONE_SOLVER)


def test_planners_hand_plans_over_without_naming_their_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RematSequence, "of_names", lambda *_: pytest.fail("a plan was made of names again"))
    told = RecordingObserver()
    Auto(time_limit=NO_CLOCK).plan(unet(0.6), told)
    assert len(set(told.asked)) > 3


def test_a_limit_of_work_gives_the_same_plan_again() -> None:
    problem = at_share(training_unet(5), 0.8)
    planner = Auto(work_limit=0.2, seed=3)
    first, second = (planner.plan(problem, Observer()) for _ in range(2))
    assert first == second
    assert first.schedule != plain_run(problem.graph)


def sent(schedule: Schedule | None) -> int:
    """How many tensors a plan moves to the host."""
    assert schedule is not None
    return sum(isinstance(step, Offload) for step in schedule.steps)


def test_offloads_only_where_it_may_and_then_proves_nothing_of_recomputation() -> None:
    problem = replace(at_share(training_unet(5), 0.8), link=Link(Fraction(4)))
    planner = Auto(time_limit=NO_CLOCK)
    stays, moves = (solve(replace(problem, offload=offload), planner) for offload in (False, True))
    assert sent(stays.result.schedule) == 0
    assert sent(moves.result.schedule) > 0
    assert moves.result.found_by == "offload"
    assert stays.result.time_bound is not None
    assert moves.trace is not None
    assert problem.graph.total_time <= moves.trace.time < stays.result.time_bound
    assert moves.scope is Scope.ANY_PLAN
    assert moves.bound_overhead is not None
    assert 0 <= moves.bound_overhead <= (moves.overhead or 0)
    # What no plan can beat that only recomputes is told, too: so much the link is worth at least.
    assert any(bound.scope is Scope.ANY_ORDER for bound in moves.result.bounds)


@pytest.mark.parametrize("option", ["time_limit", "gap", "patience", "cores", "seed"])
def test_refuses_options_that_make_no_sense(option: str) -> None:
    wrong: dict[str, Any] = {option: -1}
    with pytest.raises(UsageError, match=option):
        Auto(**wrong)


def test_where_memory_runs_out_the_best_plan_until_then_is_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def hoard(*_: Any) -> None:
        raise MemoryError

    hoarder = Stage(lambda _: True, (Turn("retention", hoard),), "always")
    monkeypatch.setattr(portfolio, "RECOMPUTING", (hoarder,))
    solution = solve(at_share(training_unet(6), 0.8), Auto(time_limit=NO_CLOCK))
    assert solution.status is Status.FEASIBLE
    assert caplog.messages == ["retention: out of memory; the best plan until then is kept"]


def test_each_limit_may_be_zero() -> None:
    assert Auto(time_limit=0, work_limit=0, gap=0, patience=0, cores=0, seed=0).patience == 0
