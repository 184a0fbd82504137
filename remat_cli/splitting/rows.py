"""Rows: how an op treats the entries of a dimension that do not see each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A dimension along which a value is cut.

    Attributes:
        dim: the dimension.
        unit: entries of the dimension that make one row.
    """

    dim: int
    unit: int = 1


# Stands for a result that each part of the rows adds to.
SUM = None


@dataclass(frozen=True)
class Axis:
    """Independent rows of an op.

    Attributes:
        rows: how many there are.
        reads: the operands that have these rows, by name; the others are read whole.
        makes: for each result, the dimension that has the rows, or `SUM`.
    """

    rows: int
    reads: Mapping[str, Part]
    makes: Mapping[str, Part | None]

    def scaled(self, rows: int) -> Axis | None:
        """Return the axis in fewer, larger rows; None where they do not divide."""
        if rows < 1 or self.rows % rows:
            return None
        if rows == self.rows:
            return self
        factor = self.rows // rows

        def larger(part: Part | None) -> Part | None:
            return None if part is None else Part(part.dim, part.unit * factor)

        reads = {name: Part(part.dim, part.unit * factor) for name, part in self.reads.items()}
        return Axis(rows, reads, {name: larger(part) for name, part in self.makes.items()})


def bounds(rows: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield first row and end of each part; sizes differ by one at most."""
    for part in range(parts):
        yield rows * part // parts, rows * (part + 1) // parts
