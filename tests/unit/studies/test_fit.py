"""The search for the largest value of a dimension, on chains whose tensors have as many bytes as the value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.problem import Observer, Planner, PlanResult, Problem, Scope, Status
from remat_cli.core.schedule import with_frees
from remat_cli.errors import GraphError, PlannerRefuses, UsageError
from remat_cli.planners.keep_all import KeepAll
from remat_cli.prepare import Prepared
from remat_cli.studies.fit import Fit, Question, fit, largest
from tests.graphs import training_chain
from tests.plans import RecordingObserver, asking, prepared, told


@dataclass(frozen=True)
class Recomputing:
    """Runs f1 again: peak 4 tensors and not 5, time 14 and not 13. Notes the sizes that it was asked for."""

    asked: list[int] = field(default_factory=list)
    order: ClassVar[Sequence[str]] = ("f1", "f2", "f3", "f4", "loss", "b4", "b3", "f1", "b2", "b1")
    tensors: ClassVar[int] = 4

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        size = problem.graph.tensors["a1"].bytes
        self.asked.append(size)
        if problem.budget.device_bytes < self.tensors * size:
            return PlanResult(Status.UNKNOWN, reason="too little")
        return PlanResult(Status.FEASIBLE, schedule=with_frees(problem.graph, self.order))


def chain(value: int) -> Prepared:
    """Peak 5 values; 4 where f1 runs again; the largest working set 3."""
    return prepared(training_chain(4, size=value))


def searched(
    budget_bytes: int,
    planner: Planner | None = None,
    prepare_at: Callable[[int], Prepared] = chain,
    *,
    max_overhead: Fraction | None = None,
    multiple_of: int = 1,
    at_most: int = 1000,
) -> Fit:
    request = asking(planner or Recomputing(), max_overhead=max_overhead).at(budget_bytes)
    return fit(Question("batch", request, multiple_of, at_most), prepare_at)


def values(found: Fit) -> tuple[int | None, int | None, int | None]:
    """The largest value without a plan, with one, and of the hard limit."""
    plain, plan, limit = (None if at is None else at.value for at in (found.plain, found.found, found.limit))
    return plain, plan, limit


@pytest.mark.parametrize("budget_bytes", [*range(4, 40), 1000, 1234])
def test_all_three_values_are_found(budget_bytes: int) -> None:
    found = searched(budget_bytes)
    assert values(found) == (budget_bytes // 5 or None, budget_bytes // 4, budget_bytes // 3)
    assert found.solution.trace is not None
    assert found.solution.trace.peak_bytes <= budget_bytes


def test_the_plan_is_the_one_at_the_value_that_was_found() -> None:
    found = searched(100)
    assert found.found is not None
    assert found.solution.problem.graph is found.found.prepared.graph
    assert (found.found.value, found.solution.overhead) == (25, 14 / 13 - 1)
    assert found.solution.problem.budget.device_bytes == 100


def test_the_planner_is_asked_only_for_what_neither_fits_as_it_is_nor_never() -> None:
    planner = Recomputing()
    found = searched(100, planner)
    assert all(20 < value <= 33 for value in planner.asked)
    assert len(planner.asked) == len(set(planner.asked)) <= 5
    assert found.refused == tuple((value, Status.UNKNOWN) for value in sorted(planner.asked) if value > 25)


def test_a_plan_of_too_much_overhead_is_not_taken() -> None:
    found = searched(100, max_overhead=Fraction(1, 20))
    assert values(found) == (20, 20, 33)
    assert found.solution.overhead == 0
    assert found.solution.status is Status.OPTIMAL


def test_a_plan_of_exactly_the_overhead_that_is_allowed_is_taken() -> None:
    @dataclass(frozen=True)
    class Short(Recomputing):
        """On a chain of 3: peak 3 tensors and not 4, time 11 and not 10."""

        order = ("f1", "f2", "f3", "loss", "b3", "f1", "b2", "b1")
        tensors = 3

    assert 11 / 10 - 1 > 0.1, "rounding would refuse it"

    def read(value: int) -> Prepared:
        return prepared(training_chain(3, size=value))

    assert values(searched(60, Short(), read, max_overhead=Fraction(1, 10)))[1] == 20
    assert values(searched(60, Short(), read, max_overhead=Fraction(99, 1000)))[1] == 15


def test_only_multiples_are_tried() -> None:
    planner = Recomputing()
    assert values(searched(100, planner, multiple_of=8)) == (16, 24, 32)
    assert all(value % 8 == 0 for value in planner.asked)


def test_the_search_ends_at_the_largest_value_that_is_allowed() -> None:
    found = searched(100, at_most=22)
    assert values(found) == (20, 22, 22)
    assert found.reaches_end
    assert not found.limit_is_proven
    beyond = searched(100, at_most=30)
    assert values(beyond) == (20, 25, 30)
    assert not beyond.reaches_end
    assert not beyond.limit_is_proven
    assert searched(100, at_most=34).limit_is_proven


def test_where_the_plain_run_fits_at_the_largest_value_no_planner_is_asked() -> None:
    planner = Recomputing()
    found = searched(10**6, planner, at_most=64)
    assert values(found) == (64, 64, 64)
    assert (planner.asked, found.solution.overhead) == ([], 0)


def test_where_the_smallest_value_never_fits_that_is_proven() -> None:
    planner = Recomputing()
    found = searched(2, planner)
    assert values(found) == (None, None, None)
    assert (found.solution.status, found.solution.scope) == (Status.INFEASIBLE, Scope.ANY_PLAN)
    assert (planner.asked, found.shown.value) == ([], 1)


def test_where_no_plan_is_found_for_the_smallest_value_the_planner_says_why() -> None:
    found = searched(3)
    assert values(found) == (None, None, 1)
    assert (found.solution.status, found.solution.result.reason) == (Status.UNKNOWN, "too little")


def test_without_any_plan_the_refusal_at_the_smallest_value_is_what_is_told() -> None:
    class Never(Recomputing):
        def plan(self, problem: Problem, observe: Observer) -> PlanResult:
            return PlanResult(Status.UNKNOWN, reason=f"too little for {problem.graph.tensors['a1'].bytes}")

    found = searched(40, Never(), lambda value: chain(value + 8))
    assert values(found) == (None, None, 5)
    assert (found.refused[0][0], found.solution.result.reason) == (1, "too little for 9")


def test_a_dimension_that_no_memory_depends_on_is_refused() -> None:
    with pytest.raises(UsageError, match="no memory depends on 'batch': the plain run needs as much at 1000 as at 1"):
        searched(100, prepare_at=lambda value: chain(2))


def test_no_value_is_allowed_where_the_step_is_larger_than_the_limit() -> None:
    with pytest.raises(UsageError, match="no multiple of 8 is at most 7"):
        searched(100, multiple_of=8, at_most=7)


def test_a_value_that_breaks_the_model_is_named() -> None:
    def only_even(value: int) -> Prepared:
        if value % 2:
            raise GraphError("cannot be halved", hint="look at op split")
        return chain(value)

    with pytest.raises(GraphError, match="at batch=1: cannot be halved") as caught:
        searched(100, prepare_at=only_even)
    assert "look at op split" in caught.value.hint
    assert "--multiple-of" in caught.value.hint
    assert values(searched(100, prepare_at=only_even, multiple_of=2)) == (20, 24, 32)


def test_what_is_wrong_with_the_call_is_said_as_it_is() -> None:
    def fails(value: int) -> Prepared:
        raise UsageError("no symbolic dimension 'batch'", hint="did you mean 'n'?")

    with pytest.raises(UsageError) as caught:
        searched(100, prepare_at=fails)
    assert (caught.value.message, caught.value.hint) == ("no symbolic dimension 'batch'", "did you mean 'n'?")


def test_memory_that_does_not_grow_with_the_value_is_told_of() -> None:
    assert searched(100).is_monotone
    # Of the values that are looked at, only 8 needs less than the one before it.
    assert not searched(100, prepare_at=lambda value: chain(1 if value == 8 else value)).is_monotone


def test_a_planner_that_refuses_ends_the_search() -> None:
    class Refuses(KeepAll):
        def plan(self, problem: Problem, observe: Observer) -> PlanResult:
            raise PlannerRefuses("no chain", hint="use dtr")

    with pytest.raises(PlannerRefuses, match="no chain"):
        searched(100, Refuses())


class Interrupted(Recomputing):
    """The user stops it when it is asked for the third time."""

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        if len(self.asked) == 2:
            raise KeyboardInterrupt
        return super().plan(problem, observe)


def test_an_interruption_keeps_the_best_plan_until_then() -> None:
    planner = Interrupted()
    found = searched(100, planner)
    assert planner.asked == [27, 23]
    assert (values(found), found.interrupted, found.solution.overhead) == ((20, 25, 33), True, 14 / 13 - 1)


def test_an_interruption_before_any_plan_leaves_what_fits_without() -> None:
    found = searched(100, Interrupted(asked=[1, 2]))
    assert (values(found), found.interrupted, found.solution.overhead) == ((20, 20, 33), True, 0)


def test_an_interruption_with_nothing_found_goes_on() -> None:
    with pytest.raises(KeyboardInterrupt):
        searched(4, Interrupted(asked=[1, 2]))


@dataclass(frozen=True)
class Improving(Recomputing):
    """Would find the plan of `Recomputing` if it were let run on after a slower one."""

    went_on: list[int] = field(default_factory=list)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        better = super().plan(problem, observe)
        if better.schedule is None:
            return better
        slower = with_frees(problem.graph, ("f1", "f2", "f3", "f4", "loss", "b4", "b3", "f1", "f1", "b2", "b1"))
        observe.found(told(slower))
        if observe.has_enough:
            return replace(better, schedule=slower)
        self.went_on.append(self.asked[-1])
        return better


def test_the_planner_is_let_run_on_at_the_value_that_was_found_only() -> None:
    planner = Improving()
    found = searched(100, planner)
    assert planner.went_on == [25]
    assert len(set(planner.asked)) > 1
    assert (values(found)[1], found.solution.overhead) == (25, 14 / 13 - 1)


def test_progress_names_the_value() -> None:
    told = RecordingObserver()
    fit(Question("batch", asking(Recomputing()).at(4), at_most=1), chain, told)
    assert told.phases == ["reading the model at batch=1", "batch=1 · planning"]


def test_few_values_are_read_where_memory_grows_in_proportion() -> None:
    read: list[int] = []

    def read_at(value: int) -> Prepared:
        read.append(value)
        return chain(value)

    assert values(searched(100_000, prepare_at=read_at, at_most=10**6))[0] == 20_000
    # Each is at most four times the one before, until two are known to be on both sides; then the line says where.
    assert sorted({value for value in read if value <= 20_001}) == [1, 2, 8, 32, 128, 512, 2048, 8192, 20_000, 20_001]
    assert max(read) < 4 * 20_001


@dataclass(frozen=True)
class Closest(Recomputing):
    """Says what came closest where nothing fits."""

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        result = super().plan(problem, observe)
        return result if result.schedule else replace(result, closest=with_frees(problem.graph, self.order))


def test_where_the_plan_that_came_closest_fits_is_looked_at_next() -> None:
    planner = Closest()
    assert values(searched(100_000, planner, at_most=10**6))[:2] == (20_000, 25_000)
    first, *others = planner.asked
    assert first > 25_001
    assert others == [25_001, 25_000], "where what came closest fits, one more is asked for; there, the planner runs on"


def test_a_plan_is_carried_as_far_as_it_fits_before_the_planner_is_asked_again() -> None:
    planner = Recomputing()
    found = searched(100_000, planner, at_most=10**6)
    assert values(found) == (20_000, 25_000, 33_333)
    # After the first plan, one more than it reaches: that it is refused is all that is left to know.
    assert planner.asked == [26_667, 23_333, 25_001, 25_000]
    assert found.solution.problem.graph.tensors["a1"].bytes == 25_000


def test_a_plan_that_costs_too_much_elsewhere_is_not_carried_there() -> None:
    """From 24 on, a second run of f1 takes more than what is allowed."""

    def read(value: int) -> Prepared:
        graph = training_chain(4, size=value)
        times = {"f1": 2} if value >= 24 else {}
        return prepared(
            replace(graph, ops=tuple(each.edited(time=times.get(each.name, each.time)) for each in graph.ops))
        )

    assert values(searched(100, prepare_at=read, max_overhead=Fraction(1, 13)))[1] == 23
    assert values(searched(100, prepare_at=read, max_overhead=Fraction(2, 14)))[1] == 25


@dataclass
class TellingModel:
    """Reads chains and tells of them; from `changes` on it reads graphs that need twice of what was told."""

    changes: int = 10**9
    read: list[int] = field(default_factory=list)

    def at(self, value: int) -> Prepared:
        self.read.append(value)
        return chain(value if value < self.changes else 2 * value)

    def predict_at(self, value: int) -> Prepared | None:
        return None if value < 10 else chain(value)

    def fit(self) -> Fit:
        question = Question("batch", asking(Improving()).at(100_000), at_most=10**6)
        return fit(question, self.at, predict_at=self.predict_at)


def test_what_the_answer_rests_on_is_read_and_nothing_else_that_is_told() -> None:
    model = TellingModel()
    found = model.fit()
    assert values(found) == (20_000, 25_000, 33_333)
    assert sorted(model.read) == [1, 2, 8, 20_000, 25_000, 33_333, 33_334]
    assert found.found is not None
    assert found.planning.prepared is found.found.prepared
    assert found.solution.problem.graph is found.found.prepared.graph
    assert found.solution.overhead == 14 / 13 - 1, "the planner ran on"


@pytest.mark.parametrize("changes", [25_000, 33_334, 20_000])
def test_where_what_was_told_is_not_what_is_read_all_is_read(changes: int) -> None:
    model, silent = TellingModel(changes), TellingModel(changes)
    read = searched(100_000, Improving(), silent.at, at_most=10**6)
    assert values(model.fit()) == values(read)
    assert set(silent.read) <= set(model.read)


def test_an_interruption_keeps_the_plan_on_the_model_that_was_read() -> None:
    model = TellingModel()
    question = Question("batch", asking(Interrupted()).at(100_000), at_most=10**6)
    found = fit(question, model.at, predict_at=model.predict_at)
    assert (values(found), found.interrupted) == ((20_000, 25_000, 33_333), True)
    assert found.found is not None
    assert found.solution.problem.graph is found.found.prepared.graph


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(-3, 3))
def test_guesses_change_how_often_is_asked_but_not_the_answer(threshold: int, most: int, far: int, off: int) -> None:
    answer = min(threshold, most)
    for guess in (lambda low, high: far, lambda low, high: answer + off, lambda low, high: low):
        asked: list[int] = []

        def holds(number: int, asked: list[int] = asked) -> bool:
            asked.append(number)
            return number <= threshold

        assert largest(holds, 0, most, guess) == answer
        assert len(asked) == len(set(asked)) <= 5 * most.bit_length() + 8


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 300))
def test_largest_agrees_with_trying_all(threshold: int, known: int, most: int) -> None:
    known = min(known, threshold, most)
    asked: list[int] = []

    def holds(number: int) -> bool:
        asked.append(number)
        return number <= threshold

    assert largest(holds, known, most) == min(threshold, most)
    assert all(known < number <= most for number in asked)
    assert len(asked) == len(set(asked)) <= 2 * most.bit_length() + 1
