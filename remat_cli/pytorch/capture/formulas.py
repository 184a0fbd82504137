"""Formulas of sizes: sympy's expressions of symbols as Python functions.

Substitution by sympy takes about a thousand times longer. An expression that no function stands for is substituted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import itemgetter
from typing import Any

import sympy  # type: ignore[import-untyped]

from remat_cli.errors import GraphError

# Computes numbers from the symbols' values.
Formula = Callable[[Sequence[int | float]], tuple[int | float, ...]]
_Function = Callable[[Sequence[int | float]], Any]

# Operations on whole numbers by the names of sympy's classes, some of which are private to torch.
_OPERATIONS: Mapping[str, Callable[[list[Any]], Any]] = {
    "Add": sum,
    "Mul": prod,
    "Max": max,
    "Min": min,
    "Pow": lambda given: given[0] ** given[1],
    "FloorDiv": lambda given: given[0] // given[1],
    "CleanDiv": lambda given: given[0] // given[1],
    "Mod": lambda given: given[0] % given[1],
    "PythonMod": lambda given: given[0] % given[1],
}


def formula(expressions: Sequence[Any], symbols: Sequence[sympy.Symbol]) -> Formula:
    """Return a function that computes expressions from the symbols' values.

    Args:
        expressions: expressions of the symbols, or numbers.
        symbols: the symbols, in the order of their values.
    """
    symbol_places = {symbol: place for place, symbol in enumerate(symbols)}
    different = list(dict.fromkeys((type(expression), expression) for expression in expressions))
    places = [different.index((type(expression), expression)) for expression in expressions]
    functions = [
        _function(expression, symbol_places) or _substituted(expression, symbols) for _, expression in different
    ]

    def numbers(values: Sequence[int | float]) -> tuple[int | float, ...]:
        results = [function(values) for function in functions]
        return tuple(map(results.__getitem__, places))

    return numbers


def substitution(symbols: Sequence[sympy.Symbol], values: Sequence[int | float]) -> dict[sympy.Symbol, Any]:
    """Return sympy's value of each symbol."""
    return {symbol: sympy.sympify(value) for symbol, value in zip(symbols, values, strict=True)}


def number(expression: Any, at: Mapping[sympy.Symbol, Any]) -> int | float:
    """Return the value of an expression by sympy's substitution.

    Raises:
        GraphError: the value depends on more than the sizes of inputs.
    """
    if isinstance(expression, int | float):
        return expression
    value = expression.xreplace(at)
    if getattr(value, "free_symbols", None):
        raise GraphError(
            f"a size in the step depends on data: {expression}",
            hint="a plan needs sizes that are known before: use a mask or torch.where, or do this outside the step",
        )
    if value in (sympy.true, sympy.false):
        return bool(value)
    return int(value) if value.is_integer else float(value)


def _substituted(expression: Any, symbols: Sequence[sympy.Symbol]) -> _Function:
    return lambda values: number(expression, substitution(symbols, values))


def _function(expression: Any, places: Mapping[sympy.Symbol, int]) -> _Function | None:
    """Return a function for an expression in whole numbers.

    None for symbols without a place, fractions, and operations other than those above.
    """
    if isinstance(expression, int | float):
        return lambda values: expression
    if isinstance(expression, sympy.Integer):
        whole = int(expression)
        return lambda values: whole
    if isinstance(expression, sympy.Symbol):
        return itemgetter(places[expression]) if expression in places and expression.is_integer else None
    operation = _OPERATIONS.get(type(expression).__name__)
    if operation is None or (isinstance(expression, sympy.Pow) and not _is_natural(expression.exp)):
        return None
    operands = [function for part in expression.args if (function := _function(part, places)) is not None]
    if len(operands) < len(expression.args):
        return None
    return lambda values: operation([operand(values) for operand in operands])


def _is_natural(exponent: Any) -> bool:
    return isinstance(exponent, sympy.Integer) and exponent >= 0
