"""The second opinion: it confirms what is true, and nothing else."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ortools.sat.python.cp_model import CpModel

from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.second_solver import agrees

# A literal is an item, or with a minus sign, counted from -1, that it is not chosen.
Clauses = list[list[int]]


def covering(costs: list[int], sizes: list[int], limit: int, clauses: Clauses) -> CpModel:
    """The cheapest choice of items whose sizes keep to a limit, and that holds every clause."""
    model = CpModel()
    items = [model.new_bool_var("") for _ in costs]
    model.add(sum(size * item for size, item in zip(sizes, items, strict=True)) <= limit)
    for clause in clauses:
        model.add_bool_or([items[literal] if literal >= 0 else items[-literal - 1].negated() for literal in clause])
    model.minimize(sum(cost * item for cost, item in zip(costs, items, strict=True)))
    return model


def least_cost(costs: list[int], sizes: list[int], limit: int, clauses: Clauses) -> int | None:
    found = []
    for chosen in product((0, 1), repeat=len(costs)):
        holds = all(any(chosen[lit] if lit >= 0 else not chosen[-lit - 1] for lit in clause) for clause in clauses)
        if holds and sum(a * b for a, b in zip(sizes, chosen, strict=True)) <= limit:
            found.append(sum(a * b for a, b in zip(costs, chosen, strict=True)))
    return min(found, default=None)


@st.composite
def coverings(draw: st.DrawFn) -> tuple[list[int], list[int], int, Clauses]:
    count = draw(st.integers(1, 6))
    costs = draw(st.lists(st.integers(1, 2**30), min_size=count, max_size=count))
    sizes = draw(st.lists(st.integers(0, 2**28), min_size=count, max_size=count))
    literals = st.integers(-count, count - 1)
    clauses = draw(st.lists(st.lists(literals, min_size=1, max_size=3), min_size=1, max_size=6))
    return costs, sizes, draw(st.integers(0, sum(sizes))), clauses


@given(drawn=coverings())
def test_it_agrees_to_the_least_cost_and_to_no_more(drawn: tuple[list[int], list[int], int, Clauses]) -> None:
    least = least_cost(*drawn)
    model = covering(*drawn)
    assert agrees(model, None, Limits.of(60.0)) == (least is None)
    if least is not None:
        assert agrees(model, least, Limits.of(60.0))
        assert not agrees(model, least + 1, Limits.of(60.0))


@pytest.mark.parametrize("limits", [Limits.of(0.0), Limits.of(60.0, 0)], ids=["clock", "work"])
def test_without_room_to_look_it_agrees_to_nothing(limits: Limits) -> None:
    assert not agrees(covering([1], [1], 1, [[0]]), 1, limits)


def test_a_clause_under_a_condition_is_one_more_way_out() -> None:
    model = CpModel()
    a, b = model.new_bool_var("a"), model.new_bool_var("b")
    model.add_bool_or([b]).only_enforce_if(a)
    model.add_bool_or([a, b])
    model.minimize(2 * a + 3 * b)
    # With a, b too: b alone is cheapest.
    assert agrees(model, 3, Limits.of(60.0))
    assert not agrees(model, 4, Limits.of(60.0))


def test_what_an_integer_program_cannot_say_is_refused() -> None:
    model = CpModel()
    a, b = model.new_bool_var("a"), model.new_bool_var("b")
    model.add(a + b <= 1).only_enforce_if(a)
    with pytest.raises(ValueError, match="under a condition"):
        agrees(model, None, Limits.of(60.0))
    model = CpModel()
    model.add_all_different(model.new_int_var(0, 3, "x"), model.new_int_var(0, 3, "y"))
    with pytest.raises(ValueError, match="rows and clauses"):
        agrees(model, None, Limits.of(60.0))


def test_a_clause_that_always_holds_asks_for_nothing() -> None:
    model = CpModel()
    a, b = model.new_bool_var("a"), model.new_bool_var("b")
    model.add_bool_or([a, a.negated()])
    model.add_bool_or([b, b])
    model.minimize(a + b)
    assert agrees(model, 1, Limits.of(60.0))
    assert not agrees(model, 2, Limits.of(60.0))
