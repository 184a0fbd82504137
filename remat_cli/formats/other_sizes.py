"""What would be read of a model at a size at which nobody has read it, told from readings at other sizes.

Shapes, bytes and counts of a model are most often polynomials of low degree in one dimension of it: of a batch, lines;
of a sequence, at times parabolas.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from math import lcm
from typing import Any

from remat_cli.formats.reader import Reading

# Of a dimension of 1, frameworks make other graphs.
_LEAST_SIZE = 2
# A parabola goes through three readings, and has to meet the fourth.
_MOST_READINGS = 4
# The hash of an op's sizes, among others: it lies on no curve.
_HASHED = "signature"


@dataclass(frozen=True, eq=False)
class SizeCurves:
    """Polynomials of a size on which all numbers of some readings lie.

    Attributes:
        example: one of the readings, for all that is no number.
        numbers: of the readings that the polynomials go through, by size.
    """

    example: Reading
    numbers: Mapping[int, Sequence[int]]

    @classmethod
    def through(cls, readings: Mapping[int, Reading]) -> SizeCurves | None:
        """Return the curves through readings; None where these do not tell.

        They tell where a line through two of them, or a parabola through three, meets one more in every number, and
        where all that is no number is the same in them.

        Args:
            readings: by the sizes at which they were read; the four largest count.
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
        """Return what would be read at a size, without signatures; None where a number would not be whole.

        Raises:
            GraphError: the curves do not lead to a graph.
        """
        numbers = _on_curve(self.numbers, size)
        return None if numbers is None else _filled(self.example, iter(numbers))


def is_as_told(told: Any, read: Any) -> bool:
    """Tell whether what was read, or came of it, is what was told of it; signatures, which are not told, left out."""
    return _form_and_numbers(told) == _form_and_numbers(read)


def _on_curve(values: Mapping[int, Sequence[int]], size: int) -> list[int] | None:
    """Return the numbers at a size on the polynomials through those at others (Lagrange); None if one is not whole."""
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
    """Return all of a value but its whole numbers, and those, in the order in which they stand there."""
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
    """Return a value with other whole numbers, which come in the same order."""
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
