"""Sizes as expressions of symbols, such as "2*N" or "floor(L/2)", as in exports of torch."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

# Beyond these limits a text is a name: Python's parser descends into it by recursion.
_LONGEST = 200
_LARGEST_POWER = 16
_LARGEST = 2**62
# sympy puts spaces around a minus; "batch-size" is a name.
_HYPHEN = re.compile(r"[A-Za-z_]\w*-[A-Za-z_]")

_Function = Callable[..., Fraction]


def _modulo(one: Fraction, other: Fraction) -> Fraction:
    return one - other * math.floor(one / other)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or not 0 <= exponent <= _LARGEST_POWER:
        raise ArithmeticError
    return base ** int(exponent)


_OPERATORS: Mapping[type[ast.AST], _Function] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda one, other: Fraction(one // other),
    ast.Mod: _modulo,
    ast.Pow: _power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
# Functions by lower-case name, with their number of arguments; None: one or more.
_FUNCTIONS: Mapping[str, tuple[int | None, _Function]] = {
    "floor": (1, lambda one: Fraction(math.floor(one))),
    "ceil": (1, lambda one: Fraction(math.ceil(one))),
    "ceiling": (1, lambda one: Fraction(math.ceil(one))),
    "trunc": (1, lambda one: Fraction(math.trunc(one))),
    "trunctoint": (1, lambda one: Fraction(math.trunc(one))),
    "floortoint": (1, lambda one: Fraction(math.floor(one))),
    "ceiltoint": (1, lambda one: Fraction(math.ceil(one))),
    "toint": (1, lambda one: Fraction(math.trunc(one))),
    "abs": (1, abs),
    "min": (None, min),
    "max": (None, max),
    "floordiv": (2, lambda one, other: Fraction(one // other)),
    "cleandiv": (2, lambda one, other: Fraction(one // other)),
    "ceildiv": (2, lambda one, other: Fraction(-(-one // other))),
    "inttruediv": (2, operator.truediv),
    "mod": (2, _modulo),
    "pythonmod": (2, _modulo),
}


@dataclass(frozen=True)
class Expression:
    """A size computed from symbols.

    Attributes:
        text: text in the file.
        symbols: names in the text, in order.
    """

    text: str
    symbols: tuple[str, ...]
    _tree: ast.expr

    def size(self, sizes: Mapping[str, int]) -> int | None:
        """Return the size for these symbols.

        Returns:
            None: a symbol has no size, or the result is not whole, negative or very large.
        """
        if not all(symbol in sizes for symbol in self.symbols):
            return None
        try:
            result = _value(self._tree, sizes)
        except ArithmeticError:
            return None
        return int(result) if result.denominator == 1 and result >= 0 else None


@lru_cache(maxsize=4096)
def expression(text: str) -> Expression | None:
    """Parse an expression; None for a plain name or an unknown form."""
    if text.isidentifier() or len(text) > _LONGEST or not text.isascii() or _HYPHEN.search(text):
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    names: dict[str, None] = {}
    return Expression(text, tuple(names), tree) if _is_known(tree, names) else None


def _is_known(tree: ast.AST, names: dict[str, None]) -> bool:
    """Whether a text has only known operators and functions.

    Its names are added to `names`.
    """
    match tree:
        case ast.Constant(value=number):
            return type(number) is int and number <= _LARGEST
        case ast.Name(id=name):
            names[name] = None
            return True
        case ast.UnaryOp(op=op, operand=operand):
            return type(op) in _OPERATORS and _is_known(operand, names)
        case ast.BinOp(left=left, op=op, right=right):
            return type(op) in _OPERATORS and _is_known(left, names) and _is_known(right, names)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            count, _ = _FUNCTIONS.get(name.lower(), (0, abs))
            fits = bool(arguments) if count is None else len(arguments) == count > 0
            return fits and all(_is_known(each, names) for each in arguments)
        case _:
            return False


def _value(tree: ast.AST, sizes: Mapping[str, int]) -> Fraction:
    """Return the value of a parsed text.

    Raises:
        ArithmeticError: there is a division by zero, or a number that no size can have.
    """
    match tree:
        case ast.Constant(value=int(number)):
            result = Fraction(number)
        case ast.Name(id=name):
            result = Fraction(sizes[name])
        case ast.UnaryOp(op=op, operand=operand):
            result = _OPERATORS[type(op)](_value(operand, sizes))
        case ast.BinOp(left=left, op=op, right=right):
            result = _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            result = _FUNCTIONS[name.lower()][1](*(_value(each, sizes) for each in arguments))
        case _:  # pragma: no cover
            raise ArithmeticError
    if max(abs(result.numerator), result.denominator) > _LARGEST:
        raise ArithmeticError
    return result
