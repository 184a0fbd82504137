"""The search for the smallest budget, against planners whose answers are known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest

from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.core.problem import Bound, Observer, Planner, PlanResult, Problem, Scope, Status
from remat_cli.core.schedule import Schedule, plain_run, with_frees
from remat_cli.planners.keep_all import KeepAll
from remat_cli.planning import SmallestBudget, plan
from remat_cli.units import BudgetSpec
from tests.graphs import training_chain
from tests.plans import RecordingObserver, asking, prepared, told

# The plain run peaks at 5 bytes and takes 13; recomputing f1 brings that to 4 and 14.
GRAPH = training_chain(4)
PLAIN = plain_run(GRAPH)
RECOMPUTING = with_frees(GRAPH, ("f1", "f2", "f3", "f4", "loss", "b4", "b3", "f1", "b2", "b1"))
SLOWER = with_frees(GRAPH, ("f1", "f2", "f3", "f4", "loss", "b4", "b3", "f1", "f1", "b2", "b1"))


def smallest_budget(
    graph: Graph, planner: Planner, *, link: Link | None = None, max_overhead: Fraction | None = None
) -> SmallestBudget:
    request = asking(planner, budget=BudgetSpec(smallest=True), max_overhead=max_overhead)
    planning = plan(prepared(graph, link=link), request)
    assert planning.search is not None
    assert planning.solution is planning.search.solution
    return planning.search


@dataclass(frozen=True)
class Threshold:
    """Has a plan from `least` bytes on, which peaks at 4; below, it refuses as it is told. Notes what it was asked."""

    least: int
    refusal: Status
    scope: Scope = Scope.PLANNER
    asked: list[int] = field(default_factory=list)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        self.asked.append(problem.budget.device_bytes)
        if problem.budget.device_bytes >= self.least:
            return PlanResult(Status.FEASIBLE, schedule=RECOMPUTING)
        return PlanResult(self.refusal, scope=self.scope)


def test_a_planner_that_proves_what_it_refuses_is_searched_to_the_byte() -> None:
    search = smallest_budget(GRAPH, KeepAll())
    assert (search.proven_bytes, search.found_bytes, search.scope) == (5, 5, Scope.PLANNER)


def test_a_budget_below_which_the_planner_proves_there_is_none_stands_though_its_plan_needs_less() -> None:
    search = smallest_budget(GRAPH, Threshold(5, Status.INFEASIBLE))
    assert (search.proven_bytes, search.found_bytes) == (5, 5)
    assert search.solution.trace is not None
    assert search.solution.trace.peak_bytes == 4


def test_a_plan_that_the_planner_does_not_find_again_still_counts() -> None:
    search = smallest_budget(GRAPH, Threshold(5, Status.UNKNOWN))
    assert search.found_bytes == 4


def test_a_refusal_without_proof_moves_the_search_but_proves_nothing() -> None:
    planner = Threshold(4, Status.UNKNOWN)
    search = smallest_budget(GRAPH, planner)
    assert search.found_bytes == 4
    assert search.scope is Scope.ANY_PLAN
    assert search.proven_bytes == min(planner.asked)


@dataclass(frozen=True)
class ComesNoCloser(Threshold):
    """Says with each refusal that its plan of 4 bytes came closest."""

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        result = super().plan(problem, observe)
        return result if result.schedule else replace(result, closest=self.schedule)

    schedule: Schedule = RECOMPUTING


def test_a_refusal_right_below_what_was_found_ends_the_search() -> None:
    # As above, with tensors a thousand times as large: there are many budgets between what is proven and what is found.
    graph = training_chain(4, size=1000)
    planner = ComesNoCloser(4000, Status.UNKNOWN)
    assert smallest_budget(graph, planner).found_bytes == 4000
    below = [budget for budget in planner.asked if budget < 4000]
    assert below == [3000, 3995], "what no plan can fit, and one nearer to what was found than matters"


def test_what_is_proven_to_the_byte_is_asked_for_few_budgets() -> None:
    """By halves it takes as many as there are bits in the bytes between."""
    planner = Threshold(4_000_000, Status.INFEASIBLE)
    search = smallest_budget(training_chain(4, size=1_000_000), planner)
    assert (search.proven_bytes, search.found_bytes) == (4_000_000, 4_000_000)
    assert len(planner.asked) < 6


@dataclass(frozen=True)
class ProvesSoon(ComesNoCloser):
    """Proves at once that nothing fits below 3.5 bytes; above, it proves a time, and then searches in vain."""

    went_on: list[int] = field(default_factory=list)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        budget = problem.budget.device_bytes
        if budget < 3500:
            return PlanResult(Status.INFEASIBLE, scope=Scope.ANY_ORDER)
        observe.bound(Bound(problem.graph.total_time + 1, Scope.ANY_ORDER))
        if not observe.has_enough:
            self.went_on.append(budget)
        return super().plan(problem, observe)


def test_what_is_ruled_out_at_once_is_proven_after_a_search_in_vain() -> None:
    planner = ProvesSoon(4000, Status.UNKNOWN)
    search = smallest_budget(training_chain(4, size=1000), planner)
    assert (search.found_bytes, search.scope) == (4000, Scope.ANY_ORDER)
    assert 3490 < search.proven_bytes <= 3500
    assert [budget for budget in planner.went_on if budget < 4000] == [3999], "one search in vain"


def test_no_budget_is_asked_for_twice() -> None:
    planner = Threshold(4, Status.INFEASIBLE)
    smallest_budget(GRAPH, planner)
    assert len(planner.asked) == len(set(planner.asked))


def test_plans_of_too_much_overhead_are_refusals() -> None:
    search = smallest_budget(GRAPH, Threshold(4, Status.INFEASIBLE), max_overhead=Fraction(1, 100))
    assert search.found_bytes is None
    assert search.solution.status is Status.UNKNOWN
    assert "above the 1.00 % allowed" in search.solution.result.reason


def test_plans_of_little_enough_overhead_are_taken() -> None:
    assert smallest_budget(GRAPH, Threshold(4, Status.INFEASIBLE), max_overhead=Fraction(1, 10)).found_bytes == 4


@dataclass(frozen=True)
class ExactlyTenPercent:
    """On a chain of 3: a plan of 11 units of time where the plain run takes 10, found before the search has ended."""

    went_on: list[int] = field(default_factory=list)
    bound: int | None = None

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        if problem.budget.device_bytes < 3:
            return PlanResult(Status.UNKNOWN)
        schedule = with_frees(problem.graph, ("f1", "f2", "f3", "loss", "b3", "f1", "b2", "b1"))
        observe.found(told(schedule))
        if not observe.has_enough:
            self.went_on.append(problem.budget.device_bytes)
        bounds = () if self.bound is None else (Bound(self.bound, Scope.ANY_ORDER),)
        return PlanResult(Status.FEASIBLE, schedule, bounds)


def test_a_plan_of_exactly_the_overhead_that_is_allowed_is_taken() -> None:
    assert 11 / 10 - 1 > 0.1, "rounding would refuse it"
    planner = ExactlyTenPercent()
    ten = training_chain(3)
    assert smallest_budget(ten, planner, max_overhead=Fraction(1, 10)).found_bytes == 3
    assert planner.went_on == [3], "it is let run on at the smallest budget only"
    refused = smallest_budget(ten, planner, max_overhead=Fraction(1, 10) - Fraction(1, 10**30))
    assert refused.found_bytes is None


@dataclass(frozen=True)
class Interrupted:
    """Finds one plan; asked again, the user has had enough."""

    asked: list[int] = field(default_factory=list)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        if self.asked:
            raise KeyboardInterrupt
        if problem.budget.device_bytes < 5:
            return PlanResult(Status.UNKNOWN)
        self.asked.append(problem.budget.device_bytes)
        return PlanResult(Status.FEASIBLE, schedule=PLAIN)


def test_an_interrupted_search_keeps_what_it_found() -> None:
    search = smallest_budget(GRAPH, Interrupted())
    assert search.solution.interrupted
    assert search.found_bytes == 5


def test_an_interruption_before_anything_was_found_goes_on() -> None:
    with pytest.raises(KeyboardInterrupt):
        smallest_budget(GRAPH, Interrupted(asked=[1]))


@dataclass(frozen=True)
class Improving:
    """Has a slow plan from 4 bytes on, and would find a faster one if it were let run on."""

    went_on: list[int] = field(default_factory=list)
    is_interrupted: bool = False

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        if problem.budget.device_bytes < 4:
            return PlanResult(Status.UNKNOWN)
        observe.found(told(SLOWER))
        if observe.has_enough:
            return PlanResult(Status.FEASIBLE, schedule=SLOWER)
        self.went_on.append(problem.budget.device_bytes)
        if self.is_interrupted:
            raise KeyboardInterrupt
        return PlanResult(Status.FEASIBLE, schedule=RECOMPUTING)


def test_a_planner_is_let_run_on_at_the_smallest_budget_only() -> None:
    planner = Improving()
    search = smallest_budget(GRAPH, planner)
    assert planner.went_on == [search.found_bytes] == [4]
    assert search.solution.result.schedule == RECOMPUTING
    assert not search.solution.interrupted


def test_a_planner_is_let_run_on_until_its_overhead_is_allowed() -> None:
    planner = Improving()
    search = smallest_budget(GRAPH, planner, max_overhead=Fraction(1, 10))
    assert search.found_bytes == 4
    assert len(planner.went_on) > 1


def test_progress_tells_how_good_the_plans_of_the_search_are() -> None:
    heard = RecordingObserver()
    planner = Improving()
    request = asking(planner, budget=BudgetSpec(smallest=True))
    plan(prepared(GRAPH), request, heard)
    assert heard.begun > len(planner.went_on)
    assert heard.standings[-1][0] == pytest.approx(2 / 13)
    assert any(text.startswith("trying ") for text in heard.phases)


def test_an_interruption_while_the_last_plan_is_improved_keeps_it() -> None:
    search = smallest_budget(GRAPH, Improving(is_interrupted=True))
    assert (search.found_bytes, search.solution.interrupted) == (4, True)
    assert search.solution.result.schedule == SLOWER


def test_what_is_proven_beyond_the_working_set_leaves_out_plans_that_move_tensors() -> None:
    def search(planner: Planner, link: Link | None) -> SmallestBudget:
        return smallest_budget(GRAPH, planner, link=link)

    proving = Threshold(4, Status.INFEASIBLE, scope=Scope.ANY_ORDER)
    assert search(proving, Link(Fraction(1))).leaves_out_transfers
    assert not search(proving, None).leaves_out_transfers
    assert not search(Threshold(4, Status.UNKNOWN), Link(Fraction(1))).leaves_out_transfers


@dataclass(frozen=True)
class OnlyClosest:
    """Plans from 5 bytes on; below, all it says is that its schedule of 4 bytes came closest."""

    refusal: Status = Status.UNKNOWN
    bounds: tuple[Bound, ...] = ()

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        if problem.budget.device_bytes >= 5:
            return PlanResult(Status.FEASIBLE, schedule=PLAIN)
        if problem.budget.device_bytes == 4:
            return PlanResult(self.refusal, bounds=self.bounds)
        return PlanResult(Status.UNKNOWN, closest=RECOMPUTING)


def test_the_closest_schedule_of_a_refusal_is_a_plan_for_its_own_peak() -> None:
    search = smallest_budget(GRAPH, OnlyClosest())
    assert (search.found_bytes, search.proven_bytes) == (4, 3)
    assert search.solution.result.schedule == RECOMPUTING
    assert search.solution.problem.budget.device_bytes == 4


def test_the_closest_schedule_is_taken_only_where_its_overhead_is_allowed() -> None:
    assert smallest_budget(GRAPH, OnlyClosest(), max_overhead=Fraction(1, 100)).found_bytes == 5


def test_a_planner_that_proves_there_is_none_at_the_peak_of_its_closest_schedule_proves_nothing_beyond_it() -> None:
    search = smallest_budget(GRAPH, OnlyClosest(Status.INFEASIBLE))
    assert search.found_bytes == 4
    assert search.proven_bytes <= 4


def test_what_the_planner_proves_at_the_smallest_budget_is_told_beside_a_plan_of_another_one() -> None:
    search = smallest_budget(GRAPH, OnlyClosest(bounds=(Bound(14, Scope.ANY_ORDER),)))
    assert search.solution.status is Status.OPTIMAL


def test_a_planner_is_told_whether_any_plan_will_do() -> None:
    heard: list[bool] = []

    @dataclass(frozen=True)
    class Asks(KeepAll):
        def plan(self, problem: Problem, observe: Observer) -> PlanResult:
            heard.append(observe.takes_any_plan)
            return PlanResult(Status.UNKNOWN)

    smallest_budget(GRAPH, Asks())
    assert set(heard) == {True}
    heard.clear()
    smallest_budget(GRAPH, Asks(), max_overhead=Fraction(1, 10))
    assert set(heard) == {False}, "a bound on the time may prove that none is fast enough"


@dataclass(frozen=True)
class RunsOutOfTime(Threshold):
    """Refuses at the end of its time limit, which is over at once."""

    time_limit: float = 0.0


@dataclass(frozen=True)
class RunsOutOfWork(Threshold):
    """Refuses at the end of its work."""

    work_limit: float = 1.0


@pytest.mark.parametrize(
    ("planner", "cut_short"),
    [
        (RunsOutOfTime(4, Status.UNKNOWN), "time"),
        (RunsOutOfWork(4, Status.UNKNOWN), "work"),
        (RunsOutOfTime(4, Status.INFEASIBLE), ""),
        (RunsOutOfWork(4, Status.INFEASIBLE), ""),
    ],
)
def test_a_search_that_a_limit_cut_short_says_so(planner: Planner, cut_short: str) -> None:
    request = asking(planner, budget=BudgetSpec(smallest=True))
    planning = plan(prepared(GRAPH), request)
    assert planning.search is not None
    assert planning.search.cut_short == cut_short
    said = f"the limit of {cut_short} cut the search for the smallest budget short at 4 B"
    assert any(said in note for note in planning.summary()["notes"]) is bool(cut_short)
    assert not smallest_budget(GRAPH, Threshold(4, Status.UNKNOWN)).cut_short


@dataclass(frozen=True)
class RunsOutOfTimeAbove(RunsOutOfTime):
    """Has plans from 4,000 to 4,200 bytes, and from `least` on; the clock cuts requests between."""

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        budget = problem.budget.device_bytes
        self.asked.append(budget)
        if budget >= self.least:
            return PlanResult(Status.FEASIBLE, schedule=plain_run(problem.graph))
        if 4000 <= budget <= 4200:
            return PlanResult(Status.FEASIBLE, schedule=RECOMPUTING)
        return PlanResult(Status.UNKNOWN)


def test_min_is_never_above_a_tenth_at_which_a_plain_request_has_a_plan() -> None:
    graph = training_chain(4, size=1000)
    planner = RunsOutOfTimeAbove(5000, Status.UNKNOWN)
    request = asking(planner, budget=BudgetSpec(share=Fraction(8, 10)))
    assert plan(prepared(graph), request).budget_bytes == 4000
    planner.asked.clear()
    search = smallest_budget(graph, planner)
    assert search.found_bytes == 4000
    assert len(planner.asked) == len(set(planner.asked))
    assert smallest_budget(graph, replace(planner, time_limit=60.0)).found_bytes == 5000, "without it, it is not found"
