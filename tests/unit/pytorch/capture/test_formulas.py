"""Formulas of sizes have the values of sympy's substitution, of the same kinds."""

from __future__ import annotations

from typing import Any

import pytest
import sympy  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, PythonMod, ToFloat

from remat_cli.errors import GraphError
from remat_cli.pytorch.capture import formulas
from remat_cli.pytorch.capture.formulas import formula, number, substitution

LENGTH, BATCH = sympy.symbols("s0 s1", integer=True, positive=True)
RATE = sympy.Symbol("zf0", real=True)
SYMBOLS = (LENGTH, BATCH, RATE)
LEAVES = st.sampled_from([LENGTH, BATCH, sympy.Integer(1), sympy.Integer(3), sympy.Integer(64)])


def combined(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs, divisors = st.tuples(parts, parts), st.sampled_from([BATCH, LENGTH, sympy.Integer(2), sympy.Integer(7)])
    return (
        pairs.map(lambda pair: pair[0] + pair[1])
        | pairs.map(lambda pair: pair[0] * pair[1])
        | pairs.map(lambda pair: Max(*pair))  # type: ignore[no-untyped-call]
        | pairs.map(lambda pair: sympy.Max(*pair))
        | pairs.map(lambda pair: Min(*pair))  # type: ignore[no-untyped-call]
        | parts.map(lambda part: part**2)
        | st.tuples(parts, divisors).map(lambda pair: FloorDiv(*pair))
        | st.tuples(parts, divisors).map(lambda pair: Mod(*pair))
        | st.tuples(parts, divisors).map(lambda pair: PythonMod(*pair))
    )


EXPRESSIONS = st.recursive(LEAVES, combined, max_leaves=6)


@given(st.lists(EXPRESSIONS, max_size=4), st.integers(1, 5000), st.integers(1, 70))
def test_values_are_those_of_substitution(expressions: list[Any], length: int, batch: int) -> None:
    values = (length, batch, 0.5)
    at = substitution(SYMBOLS, values)
    assert formula(expressions, SYMBOLS)(values) == tuple(number(expression, at) for expression in expressions)


@given(EXPRESSIONS)
def test_operations_on_whole_numbers_need_no_substitution(expression: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(formulas, "substitution")
        formula([expression, LENGTH**3], SYMBOLS)((4, 2, 0.5))


@pytest.mark.parametrize(
    "expression",
    [
        7,
        1.5,
        True,
        1.0,
        RATE,
        RATE * LENGTH,
        LENGTH / 2,
        1 / LENGTH,
        LENGTH**BATCH,
        ToFloat(LENGTH),
        sympy.Eq(LENGTH, 4),
        sympy.Lt(BATCH, LENGTH),
        CleanDiv(LENGTH * BATCH, 2),
        LENGTH - BATCH,
    ],
    ids=str,
)
def test_numbers_are_of_the_kind_that_substitution_gives(expression: Any) -> None:
    for values in ((4, 2, 0.5), (4, 6, 2.0), (1, 1, 0.25)):
        expected = number(expression, substitution(SYMBOLS, values))
        (found,) = formula([expression], SYMBOLS)(values)
        assert (found, type(found)) == (expected, type(expected))


def test_equal_numbers_of_different_kinds_stay_apart() -> None:
    found = formula([1, 1.0, True, sympy.Integer(1)], SYMBOLS)((1, 1, 0.5))
    assert [type(value) for value in found] == [int, float, bool, int]


def test_size_that_depends_on_data_is_refused() -> None:
    with pytest.raises(GraphError, match="depends on data: 2"):
        formula([2 * sympy.Symbol("u0", integer=True)], SYMBOLS)((1, 1, 0.5))
