"""The few shapes of all reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

INDENT = 2
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
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style=QUIET_STYLE, no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(Text(label), _shown(value))
    return table


def columns(headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Sequence[int] = ()) -> Table:
    """Return a table without lines, which copies well.

    `right` has the numbers of right-aligned columns, which never wrap.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET_STYLE, show_header=any(headers))
    for number, header in enumerate(headers):
        is_right = number in right
        style = QUIET_STYLE if number == 0 and not header else ""
        aligned: Literal["left", "right"] = "right" if is_right else "left"
        table.add_column(Text(header), style=style, justify=aligned, no_wrap=is_right, overflow="fold")
    for row in rows:
        table.add_row(*map(_shown, row))
    return table


def bullets(sentences: Sequence[str]) -> Table:
    """Return sentences as a bulleted list."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for sentence in sentences:
        table.add_row(Text("·", style=QUIET_STYLE), Text(sentence, overflow="fold"))
    return table


def _shown(value: Cell) -> Cell:
    return Text(value) if isinstance(value, str) else value
