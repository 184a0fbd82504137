"""Overhead against budget as a character chart.

Each planner has its own mark, distinct without colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from remat_cli.core.simulate import Trace
from remat_cli.core.solve import share_over
from remat_cli.reports.safe_text import clean
from remat_cli.reports.terminal.layout import QUIET_STYLE
from remat_cli.studies.sweep import Curve, Point
from remat_cli.units import format_bytes, format_share

MARKS = "●▲■◆○△□◇"
STYLES = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")
_SEVERAL, _BETWEEN, _LIMIT = "×", "·", "╎"
_NARROWEST_PLOT = 20
_ROWS, _ROWS_PER_TICK = 13, 4
_KNEE = " knee"


@dataclass(frozen=True)
class CurveChart:
    """A chart over the full width: budgets to the right, overhead upwards.

    Attributes:
        baseline: the plain run.
        curves: curves with a mark each.
        least_bytes: bytes below which no plan fits; a line if within the chart.
    """

    baseline: Trace
    curves: Sequence[Curve]
    least_bytes: int

    def legend(self) -> Text:
        """Return the meaning of the chart's marks."""
        legend = Text()
        for number, curve in enumerate(self.curves):
            mark, style = _mark(number)
            legend.append("   " if legend else "").append(mark, style).append(f" {clean(curve.label)}", QUIET_STYLE)
        if len(self.curves) > 1:
            legend.append(f"   {_SEVERAL}").append(" several", QUIET_STYLE)
        if self._left < self.least_bytes <= self._right:
            legend.append(f"   {_LIMIT}", QUIET_STYLE).append(" less never fits", QUIET_STYLE)
        return legend

    @cached_property
    def _budgets(self) -> list[int]:
        return [point.budget_bytes for curve in self.curves for point in curve.points]

    @property
    def _left(self) -> int:
        return min(self._budgets)

    @property
    def _right(self) -> int:
        return max(self._budgets)

    @cached_property
    def _highest(self) -> int:
        """The longest time of a plan."""
        times = [point.trace.time for curve in self.curves for point in curve.points if point.trace is not None]
        return max(times)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ticks = {row: self._overhead_at(row) for row in range(0, _ROWS, _ROWS_PER_TICK)}
        gutter = max(map(len, ticks.values()))
        width = max(_NARROWEST_PLOT, options.max_width - gutter - 2)
        canvas = self._drawn(width)
        for row in range(_ROWS - 1, -1, -1):
            label = ticks.get(row, "")
            yield Text(f"{label:>{gutter}} {'┤' if label else '│'}", QUIET_STYLE).append_text(canvas.line(row))
        yield Text(f"{'':>{gutter}} └{'─' * width}", QUIET_STYLE)
        yield Text(f"{'':>{gutter + 2}}{self._labels(width)}", QUIET_STYLE)

    def _overhead_at(self, row: int) -> str:
        extra = (self._highest - self.baseline.time) * row // (_ROWS - 1)
        return format_share(share_over(self.baseline.time + extra, self.baseline.time))

    def _labels(self, width: int) -> str:
        """Return the ends of the budget axis, and its middle if it fits."""
        middle = (self._left + self._right) // 2
        left, centre, right = (self._budget_label(size) for size in (self._left, middle, self._right))
        if len(left) + len(right) + 2 > width:
            left, right = format_bytes(self._left), format_bytes(self._right)
        if len(left) + len(centre) + len(right) + 4 > width:
            return left + right.rjust(width - len(left))
        start = (width - len(centre)) // 2
        return (left.ljust(start) + centre).ljust(width - len(right)) + right

    def _budget_label(self, size: int) -> str:
        return f"{format_bytes(size)} ({format_share(size / max(1, self.baseline.peak_bytes))})"

    def _drawn(self, width: int) -> _Canvas:
        canvas = _Canvas(width)
        if self._left < self.least_bytes <= self._right:
            column = self._column(self.least_bytes, width)
            for row in range(_ROWS):
                canvas.put(column, row, _LIMIT, QUIET_STYLE)
        # Lines first, and the first curve last, so that other curves' lines never hide its marks.
        placed = [list(self._places(curve, width)) for curve in self.curves]
        for number, places in reversed(list(enumerate(placed))):
            for start, end in pairwise(places):
                canvas.line_between(start, end, _mark(number)[1])
        for number, places in enumerate(placed):
            for column, row in places:
                canvas.mark(column, row, *_mark(number))
        if len(self.curves) == 1 and self.curves[0].knee is not None:
            canvas.label(*self._place(self.curves[0].knee, width), _KNEE)
        return canvas

    def _places(self, curve: Curve, width: int) -> Iterator[tuple[int, int]]:
        for point in curve.points:
            if point.trace is not None:
                yield self._place(point, width)

    def _place(self, point: Point, width: int) -> tuple[int, int]:
        assert point.trace is not None
        height = max(1, self._highest - self.baseline.time)
        row = ((point.trace.time - self.baseline.time) * (_ROWS - 1) * 2 + height) // (2 * height)
        return self._column(point.budget_bytes, width), max(0, row)

    def _column(self, size: int, width: int) -> int:
        return (size - self._left) * (width - 1) // max(1, self._right - self._left)


def _mark(number: int) -> tuple[str, str]:
    return MARKS[number % len(MARKS)], STYLES[number % len(STYLES)]


@dataclass
class _Canvas:
    """Cells of one character and its style, by column and row; row 0 is the lowest."""

    width: int
    _cells: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)

    def put(self, column: int, row: int, character: str, style: str) -> None:
        """Draw over the cell's content."""
        self._cells[column, row] = character, style

    def mark(self, column: int, row: int, character: str, style: str) -> None:
        """Draw a mark; over another mark, draw the mark for several."""
        there = self._cells.get((column, row), (" ", ""))[0]
        if there in MARKS or there == _SEVERAL:
            character, style = (character, style) if there == character else (_SEVERAL, "bold")
        self.put(column, row, character, style)

    def line_between(self, start: tuple[int, int], end: tuple[int, int], style: str) -> None:
        """Draw dots between two places, one in each column."""
        (left, bottom), (right, top) = start, end
        for column in range(left + 1, right):
            row = bottom + round((top - bottom) * (column - left) / (right - left))
            self.put(column, row, _BETWEEN, style)

    def label(self, column: int, row: int, text: str) -> None:
        """Write a text above and to the right of a mark.

        It is left out without room, or if it would hide more than dots.
        """
        places = [(column + offset, row + 1) for offset in range(len(text))]
        is_free = all(
            x < self.width and y < _ROWS and self._cells.get((x, y), (" ", ""))[0] in (" ", _BETWEEN) for x, y in places
        )
        if is_free:
            for (x, y), character in zip(places, text, strict=True):
                if character != " ":
                    self.put(x, y, character, "bold")

    def line(self, row: int) -> Text:
        """Return one row as text."""
        text = Text(no_wrap=True, overflow="crop")
        for column in range(self.width):
            text.append(*self._cells.get((column, row), (" ", "")))
        return text
