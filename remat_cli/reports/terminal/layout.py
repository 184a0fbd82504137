"""The few shapes of all reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement, measure_renderables
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

INDENT = 2
_GAP = 2
QUIET_STYLE = "dim"
Cell = RenderableType


def section(title: str, *body: RenderableType) -> Group:
    """Return a heading with its content, indented."""
    return Group(Text(title, style="bold"), *(indented(item) for item in body))


def indented(body: RenderableType) -> Padding:
    """Indent content like everything under a heading."""
    return Padding(body, (0, 0, 0, INDENT))


def facts(rows: Sequence[tuple[str, Cell]]) -> Table:
    """Return labels and values in two columns.

    Strings are shown literally, without markup.
    """
    table = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    table.add_column(style=QUIET_STYLE, no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(Text(label), _shown(value))
    return table


def columns(headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Sequence[int] = ()) -> RenderableType:
    """Return a table without lines, which copies well.

    `right` has the numbers of right-aligned columns, which never wrap.
    """
    return _Columns(headers, rows, right)


@dataclass(frozen=True)
class _Columns:
    """A table that cuts no word or figure.

    Where it is too wide, its columns move together, or else the last cell of a row stands under the row, or else all
    cells of a row stand under each other.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    right: Sequence[int]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [list(map(_shown, row)) for row in self.rows]
        sizes = [
            measure_renderables(console, options, [Text(header), *(row[number] for row in rows if number < len(row))])
            for number, header in enumerate(self.headers)
        ]
        sizes = [size.with_minimum(size.maximum) if n in self.right else size for n, size in enumerate(sizes)]
        last = len(sizes) - 1
        for gap in (_GAP, _GAP // 2):
            if widths := _widths(sizes, options.max_width, gap):
                yield self._table(self.headers, rows, widths, gap)
                return
        if last not in self.right and (widths := _widths(sizes[:last], options.max_width, _GAP)):
            yield self._table(self.headers[:last], [], widths, _GAP)
            for row in rows:
                yield self._table([""] * last, [row[:last]], widths, _GAP)
                yield from map(indented, row[last:])
        else:
            for number, row in enumerate(rows):
                yield from [Text()] if number else []
                yield facts([(header, cell) for header, cell in zip(self.headers, row, strict=False) if str(cell)])

    def _table(self, headers: Sequence[str], rows: Sequence[Sequence[Cell]], widths: Sequence[int], gap: int) -> Table:
        table = Table(
            box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style=QUIET_STYLE, show_header=any(headers)
        )
        for number, (header, width) in enumerate(zip(headers, widths, strict=True)):
            style = QUIET_STYLE if number == 0 and not self.headers[0] else ""
            justify: Literal["left", "right"] = "right" if number in self.right else "left"
            table.add_column(Text(header), style=style, justify=justify, overflow="fold", width=width)
        for row in rows:
            table.add_row(*row)
        return table


def _widths(sizes: Sequence[Measurement], room: int, gap: int) -> list[int]:
    """Return widths of columns within `room` cells, the widest narrowed first; none if no widths fit."""
    gaps = gap * (len(sizes) - 1)
    if sum(size.minimum for size in sizes) + gaps > room:
        return []
    widths = [size.maximum for size in sizes]
    while sum(widths) + gaps > room:
        widest = max((n for n, size in enumerate(sizes) if widths[n] > size.minimum), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def bullets(sentences: Sequence[str]) -> Table:
    """Return sentences as a bulleted list."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for sentence in sentences:
        table.add_row(Text("·", style=QUIET_STYLE), Text(sentence, overflow="fold"))
    return table


def _shown(value: Cell) -> Cell:
    return Text(value) if isinstance(value, str) else value
