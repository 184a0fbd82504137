"""The runner of CP-SAT models: endings, callbacks, Ctrl-C, and the same outcome twice."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterable
from functools import partial
from itertools import product
from operator import mul
from typing import Any

import numpy as np
import pytest
from ortools.sat.python.cp_model import CpModel, IntVar

from remat_cli.core.problem import Basis, Status
from remat_cli.planners.shared import cp_sat, second_solver
from remat_cli.planners.shared.cp_sat import Values, _solver, prove, solve_model
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.scaling import Rounding

AMPLE = Limits.of(1e5)


def cover(size: int, *, seed: int = 0) -> CpModel:
    """Choose the cheapest of `size` items that hit each of many small sets: beyond proof from about 50 items."""
    rng = random.Random(seed)
    model = CpModel()
    items = [model.new_bool_var("") for _ in range(size)]
    for _ in range(4 * size):
        model.add_at_least_one(rng.sample(items, 3))
    model.minimize(sum(rng.randint(5, 9) * item for item in items))
    return model


solve = partial(solve_model, rounding=Rounding.RELAX)


def least_sum(*bounds: tuple[int, int], at_least: int) -> tuple[CpModel, list[IntVar]]:
    model = CpModel()
    variables = [model.new_int_var(low, high, "") for low, high in bounds]
    model.add(sum(variables) >= at_least)
    model.minimize(sum(variables))
    return model, variables


def test_optimal_values_are_read_by_index() -> None:
    model, (x, y) = least_sum((0, 3), (0, 4), at_least=7)
    outcome = solve(model, AMPLE)
    assert (outcome.status, outcome.bound) == (Status.OPTIMAL, 7)
    assert outcome.values is not None
    assert outcome.values[[x.index, y.index]].tolist() == [3, 4]
    assert outcome.values.dtype == np.int64


def test_infeasible() -> None:
    model, _ = least_sum((0, 3), at_least=4)
    outcome = solve(model, AMPLE)
    assert (outcome.status, outcome.values, outcome.bound) == (Status.INFEASIBLE, None, None)


def test_without_an_objective_solutions_cost_nothing() -> None:
    model = CpModel()
    x = model.new_bool_var("")
    model.add_bool_or([x])
    outcome = solve(model, AMPLE)
    assert outcome.bound == 0
    assert outcome.values is not None
    assert outcome.values[x.index] == 1


@pytest.mark.parametrize("limits", [Limits.of(0.0), Limits.of(60.0, 0.0)], ids=["clock", "work"])
def test_no_room_is_unknown_even_where_the_answer_is_plain(limits: Limits) -> None:
    for at_least in (1, 4):
        model, _ = least_sum((0, 3), at_least=at_least)
        outcome = solve(model, limits)
        assert (outcome.status, outcome.values, outcome.bound, outcome.work) == (Status.UNKNOWN, None, None, 0)


@pytest.mark.parametrize("cost", [2**44 - 1, 2**58 + 1])
def test_large_objectives_are_bounded_from_below_and_nearly_exact(cost: int) -> None:
    model = CpModel()
    x, y = model.new_bool_var(""), model.new_bool_var("")
    model.add_bool_and([x, y])
    model.minimize(cost * x + cost * y)
    bound = solve(model, AMPLE).bound
    assert bound is not None
    assert 0 <= 2 * cost - bound <= 2 * cost * 2**-40


def test_bound_is_never_above_what_was_proven() -> None:
    for seed in range(3):
        bounds: list[int] = []
        model = cover(16, seed=seed)
        outcome = solve(model, AMPLE, on_bound=bounds.append)
        assert outcome.status is Status.OPTIMAL
        assert outcome.bound is not None
        assert bounds
        assert bounds == sorted(bounds)
        assert bounds[-1] <= outcome.bound
        stopped = solve(model, Limits.of(60.0, 1e-3))
        assert stopped.bound is None or stopped.bound <= outcome.bound


def test_faulty_model_is_reported() -> None:
    model = CpModel()
    x = model.new_int_var(0, 2**62, "")
    model.add(2**10 * x >= 1)
    with pytest.raises(ValueError, match="does not accept the model"):
        solve(model, AMPLE)


@pytest.mark.parametrize("cores", [1, 2])
def test_same_limits_give_the_same_outcome(cores: int) -> None:
    limits = Limits.of(60.0, 0.2, cores=cores, seed=7)
    first, second = (solve(cover(200), limits) for _ in range(2))
    assert first.status is second.status is Status.FEASIBLE
    assert (first.bound, first.work) == (second.bound, second.work)
    assert first.values is not None
    assert second.values is not None
    assert first.values.tolist() == second.values.tolist()
    assert first.work >= 0.2


def test_one_worker_finds_the_same_solutions_on_the_way() -> None:
    def solutions() -> list[list[int]]:
        found: list[list[int]] = []
        limits = Limits.of(60.0, 0.2)
        outcome = solve(cover(200), limits, on_solution=lambda values: found.append(values.tolist()))
        assert outcome.values is not None
        assert outcome.values.tolist() == found[-1]
        return found

    first = solutions()
    assert len(first) > 1
    assert first == solutions()


def test_callbacks_come_in_the_calling_thread() -> None:
    threads: set[int] = set()
    solve(
        cover(16),
        AMPLE,
        on_solution=lambda _: threads.add(threading.get_ident()),
        on_bound=lambda _: threads.add(threading.get_ident()),
    )
    assert threads == {threading.get_ident()}


def test_exception_in_a_callback_ends_the_search_and_comes_up() -> None:
    def refuse(_: Values) -> None:
        raise LookupError("not this one")

    with pytest.raises(LookupError, match="not this one"):
        solve(cover(300), AMPLE, on_solution=refuse)
    assert not [thread for thread in threading.enumerate() if thread.name == "cp-sat"]


def test_ctrl_c_ends_the_search_and_loses_no_solution() -> None:
    found: list[int] = []

    def press(values: Values) -> None:
        found.append(int(values.sum()))
        if len(found) == 1:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        solve(cover(2000), AMPLE, on_solution=press)
    assert found
    assert not [thread for thread in threading.enumerate() if thread.name == "cp-sat"]


def test_a_model_with_a_hint_has_one_thread() -> None:
    # With more, that take turns, OR-tools 9.15 ends the process on some models.
    model, (x, y) = least_sum((0, 3), (0, 4), at_least=5)
    limits = Limits.of(60.0, cores=2)
    assert _solver(limits, {}, has_hint=False).parameters.num_workers == 2
    assert _solver(limits, {}, has_hint=True).parameters.num_workers == 1
    model.add_hint(x, 3)
    model.add_hint(y, 4)
    assert solve(model, limits).bound == 5


class Knapsack:
    """Items that cover every row, at the least cost."""

    def __init__(self, sizes: list[int], rows: list[tuple[str, int]], costs: list[int]) -> None:
        self.costs = costs
        self.rows = [
            ([size if letter in which else 0 for size, letter in zip(sizes, "abcdefgh", strict=False)], least)
            for which, least in rows
        ]

    def model(self) -> CpModel:
        model = CpModel()
        items = [model.new_bool_var("") for _ in self.costs]
        for coefficients, least in self.rows:
            # What is left out, as planners write it: at most what there is beyond the least.
            terms = (size * (1 - item) for size, item in zip(coefficients, items, strict=True))
            model.add(sum(terms) <= sum(coefficients) - least)
        model.minimize(sum(cost * item for cost, item in zip(self.costs, items, strict=True)))
        return model

    def covers(self, chosen: Iterable[int]) -> bool:
        chosen = list(chosen)
        return all(sum(map(mul, sizes, chosen)) >= least for sizes, least in self.rows)

    def cost(self, chosen: Iterable[int]) -> int:
        return sum(map(mul, self.costs, chosen))

    @property
    def least_cost(self) -> int:
        return min(self.cost(chosen) for chosen in product((0, 1), repeat=len(self.costs)) if self.covers(chosen))


# Sizes, and for each row which of them count and how much of them it takes at the least; then what items cost. OR-tools
# 9.15, left to itself, calls solutions optimal that cost more than the best (google/or-tools issue 5293).
KNAPSACKS = [
    Knapsack(
        [5351711367, 3116859719, 7655478711, 993410279, 8278129981, 4, 15310957422, 7655478715],
        [("abc efgh", 15642271743), ("abcd f h", 11414057117)],
        [19, 40, 39, 91, 75, 5, 86, 72],
    ),
    Knapsack(
        [7902668641, 7902668641, 7902668645, 4024722147, 4, 1024, 75437046, 1024],
        [("abcd fgh", 19830060457), ("abcd  g ", 15880774328), (" bc ef h", 968974440)],
        [17, 63, 98, 17, 93, 79, 42, 13],
    ),
    Knapsack(
        [928242946357, 928242946357, 928242946361, 928242946361, 1856485892714, 928242946357, 4],
        [("abcdefg", 928242946365), ("abc efg", 1340502217642), ("abcdefg", 2784728839071)],
        [100, 63, 43, 84, 54, 98, 11],
    ),
    Knapsack(
        [1788507114, 364972155, 894253557, 894253561, 894253557, 4, 894253557, 1024],
        [("abcd fgh", 121220102), ("abcdefgh", 1788507113), ("abcdefgh", 894254585)],
        [7, 26, 24, 79, 19, 28, 71, 10],
    ),
]


# What keeps the solver from going wrong: settings, and scaling. Either is enough by itself.
@pytest.mark.parametrize("undone", ["", "_SAFE_SETTINGS", "scale_model"])
@pytest.mark.parametrize("knapsack", KNAPSACKS)
def test_what_is_proven_of_knapsacks_of_gigabytes_is_never_too_much(
    knapsack: Knapsack, undone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without: dict[str, Any] = {"_SAFE_SETTINGS": {}, "scale_model": lambda model, rounding: 1}
    if undone:
        monkeypatch.setattr(cp_sat, undone, without[undone])
    outcome = solve(knapsack.model(), AMPLE)
    assert outcome.status is Status.OPTIMAL
    assert outcome.bound is not None
    assert 0 < outcome.bound <= knapsack.least_cost


@pytest.mark.parametrize("knapsack", KNAPSACKS)
def test_what_is_found_within_restricted_rows_covers_them(knapsack: Knapsack) -> None:
    outcome = solve_model(knapsack.model(), AMPLE, rounding=Rounding.RESTRICT)
    assert outcome.values is not None
    assert knapsack.covers(outcome.values.tolist())
    assert outcome.bound == knapsack.cost(outcome.values.tolist()) >= knapsack.least_cost


@pytest.mark.parametrize("knapsack", KNAPSACKS)
def test_what_is_proven_two_solvers_come_to(knapsack: Knapsack) -> None:
    outcome = prove(knapsack.model(), AMPLE)
    assert outcome.bound is not None
    assert 0 < outcome.bound <= knapsack.least_cost
    assert outcome.basis is Basis.TWO_SOLVERS


def test_a_second_solver_that_does_not_agree_leaves_one_solvers_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_solver, "agrees", lambda *_: False)
    knapsack = KNAPSACKS[0]
    outcome = prove(knapsack.model(), AMPLE)
    assert (outcome.bound, outcome.basis) == (knapsack.least_cost, Basis.ONE_SOLVER)


def test_a_bound_that_is_known_already_is_not_asked_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def agrees(_: CpModel, bound: int | None, __: Limits) -> bool:
        asked.append(bound)
        return True

    monkeypatch.setattr(second_solver, "agrees", agrees)
    knapsack = KNAPSACKS[0]
    prove(knapsack.model(), AMPLE, known=knapsack.least_cost)
    assert not asked
    prove(knapsack.model(), AMPLE, known=knapsack.least_cost - 1)
    assert asked == [knapsack.least_cost]


@pytest.mark.parametrize("time", [2**59, 2**60])
def test_bounds_on_times_that_64_bits_just_hold_are_never_too_high(time: int) -> None:
    model = CpModel()
    items = [model.new_bool_var("") for _ in range(3)]
    model.add_at_least_one(items)
    model.minimize(sum((time - number) * item for number, item in enumerate(items)))
    outcome = prove(model, AMPLE)
    assert outcome.bound is not None
    assert (time - 2) * (1 - 1e-9) <= outcome.bound <= time - 2


def test_rows_of_large_numbers_must_have_an_upper_limit_only() -> None:
    model = CpModel()
    x, y = model.new_bool_var(""), model.new_bool_var("")
    model.add(2**40 * x + 2**40 * y >= 2**40)
    with pytest.raises(ValueError, match="upper limit only"):
        solve(model, AMPLE)
