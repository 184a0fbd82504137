"""Predictions of a model's reading at a new size, from other readings.

Shapes, bytes and counts of a model are mostly polynomials of low degree in one of its dimensions: in a batch, lines; in
a sequence, sometimes parabolas.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from math import lcm
from typing import Any

from remat_cli.formats.reader import Reading

# For a dimension of 1, frameworks make different graphs.
_LEAST_SIZE = 2
# A parabola goes through three readings, and must meet the fourth.
_MOST_READINGS = 4
# The hash of an op's sizes, among others: it follows no curve.
_HASHED = "signature"


@dataclass(frozen=True, eq=False)
class SizeCurves:
    """Polynomials in a size through all numbers of some readings.

    Attributes:
        example: one of the readings, for everything except numbers.
        numbers: numbers of the readings on the polynomials, by size.
    """

    example: Reading
    numbers: Mapping[int, Sequence[int]]

    @classmethod
    def through(cls, readings: Mapping[int, Reading]) -> SizeCurves | None:
        """Return the curves through readings; None if they do not agree.

        They agree if a line through two readings, or a parabola through three, meets one more in every number, and if
        everything except numbers is the same.

        Args:
            readings: readings by size; the four largest sizes count.
        """
        sizes = sorted(each for each in readings if each >= _LEAST_SIZE)[-_MOST_READINGS:]
        taken = {each: _form_and_numbers(readings[each]) for each in sizes}
        for degree in range(1, len(sizes) - 1):
            through, met = sizes[-degree - 2 : -1], sizes[-1]
            if len({taken[each][0] for each in (*through, met)}) != 1:
                return None
            if _on_curve({each: taken[each][1] for each in through}, met) == taken[met][1]:
                return cls(readings[met], {each: taken[each][1] for each in (*through[1:], met)})
        return None

    def at(self, size: int) -> Reading | None:
        """Return the reading at a size, without signatures.

        None if a number would not be whole.

        Raises:
            GraphError: the curves do not lead to a graph.
        """
        numbers = _on_curve(self.numbers, size)
        return None if numbers is None else _filled(self.example, iter(numbers))


def agrees_with_prediction(predicted: Any, read: Any) -> bool:
    """Tell whether a reading equals its prediction, signatures aside.

    The same works for results of a reading.
    """
    return _form_and_numbers(predicted) == _form_and_numbers(read)


def _on_curve(values: Mapping[int, Sequence[int]], size: int) -> list[int] | None:
    """Return the numbers at a size on the polynomials (Lagrange).

    None if a number is not whole.
    """
    weights = []
    for one in values:
        weight = Fraction(1)
        for other in values:
            weight *= Fraction(size - other, one - other) if other != one else 1
        weights.append(weight)
    unit = lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * unit) for weight in weights]
    sums = [
        sum(weight * number for weight, number in zip(whole, numbers, strict=True))
        for numbers in zip(*values.values(), strict=True)
    ]
    return None if any(total % unit for total in sums) else [total // unit for total in sums]


def _form_and_numbers(value: Any) -> tuple[Hashable, list[int]]:
    """Split a value into its form and its whole numbers, in order."""
    numbers: list[int] = []
    return _form(value, numbers), numbers


def _form(value: Any, numbers: list[int]) -> Hashable:
    if type(value) is int:
        numbers.append(value)
        return int
    if is_dataclass(value):
        names = (item.name for item in fields(value) if item.name != _HASHED)
        return type(value), *(_form(getattr(value, name), numbers) for name in names)
    if isinstance(value, tuple):
        return tuple, *(_form(item, numbers) for item in value)
    if isinstance(value, Mapping):
        return tuple(value), *(_form(item, numbers) for item in value.values())
    return type(value), value


def _filled(value: Any, numbers: Iterator[int]) -> Any:
    """Return a value with other whole numbers, in the same order."""
    if type(value) is int:
        return next(numbers)
    if is_dataclass(value):
        names = (item.name for item in fields(value))
        return value.__class__(*(None if name == _HASHED else _filled(getattr(value, name), numbers) for name in names))
    if isinstance(value, tuple):
        return tuple(_filled(item, numbers) for item in value)
    if isinstance(value, Mapping):
        return {name: _filled(item, numbers) for name, item in value.items()}
    return value
