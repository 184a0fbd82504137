"""The runner of CP-SAT models: endings, callbacks, Ctrl-C, and the same outcome twice."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from ortools.sat.python.cp_model import CpModel, IntVar

from remat_cli.planners.shared.cp_sat import Values, _solver, solve_model
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.scaling import Rounding
from remat_cli.problem import Status

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

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        solve(cover(2000), AMPLE, on_solution=press)
    assert time.monotonic() - begun < 30
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
