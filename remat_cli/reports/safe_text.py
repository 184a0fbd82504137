"""Text from files, made safe for terminals.

No name reaches the terminal as a command or breaks the layout.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

_UNSHOWABLE = "\N{REPLACEMENT CHARACTER}"
_ELLIPSIS = "…"
# Longer than any line: of a longer text only the two ends are shown.
_LONGEST_SHOWN = 1000
_NARROWEST_NAME = 8

# An ASCII character of the same width for each character in reports, to keep the layout.
_IN_ASCII = str.maketrans(
    {
        **dict.fromkeys("█▇▆▅▄", "#"),
        **dict.fromkeys("▃▂▁", "_"),
        "░": ":",
        **dict.fromkeys("╌─", "-"),
        "━": "=",
        **dict.fromkeys("└┴┤", "+"),
        "│": "|",
        "·": ".",
        "×": "x",
        # the marks of a chart of several curves
        **dict(zip("●▲■◆○△□◇", "o^#*0A%+", strict=True)),
        "╎": ":",
        "µ": "u",
        _ELLIPSIS: "~",
    }
)


def clean(text: str) -> str:
    """Return `text` on one line, without characters that terminals act on.

    The middle of a very long text is left out. Control and formatting characters (which include those that reverse the
    direction of writing) and lone surrogates are replaced.
    """
    if len(text) > _LONGEST_SHOWN:
        half = _LONGEST_SHOWN // 2
        text = text[:half] + _ELLIPSIS + text[-half:]
    if text.isascii() and text.isprintable():
        return text
    return "".join(_UNSHOWABLE if _is_unshowable(character) else character for character in text)


def _is_unshowable(character: str) -> bool:
    category = unicodedata.category(character)
    return category.startswith("C") or category in ("Zl", "Zp")


def shorten(text: str, width: int) -> str:
    """Return `text`, cleaned, in at most `width` terminal cells.

    The middle is left out, where two names are often alike.
    """
    text = clean(text)
    if cell_len(text) <= width:
        return text
    if width <= len(_ELLIPSIS):
        return _ELLIPSIS[:width]
    tail = (width - 1) // 2
    return _fitting(text, width - 1 - tail) + _ELLIPSIS + _fitting(text[::-1], tail)[::-1]


def shorten_path(text: str, width: int) -> str:
    """Return a path, cleaned, in at most `width` terminal cells.

    The start is left out, which paths of one model share.
    """
    text = clean(text)
    if cell_len(text) <= width:
        return text
    return _ELLIPSIS + _fitting(text[::-1], width - 1)[::-1] if width > 0 else ""


def _fitting(text: str, width: int) -> str:
    """Return the longest start of `text` that fits `width` cells."""
    used = 0
    for index, character in enumerate(text):
        used += cell_len(character)
        if used > width:
            return text[:index]
    return text


@dataclass(frozen=True)
class Name:
    """A name from a file, on one line, as long as its place allows."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = min(cell_len(clean(self.text)), options.max_width)
        return Measurement(min(width, _NARROWEST_NAME), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shorten(self.text, options.max_width), no_wrap=True)


@dataclass(frozen=True)
class Verbatim:
    """Text to copy, under a title: neither indented nor cut."""

    title: str
    text: str


class Report:
    """Parts below each other with blank lines in between.

    The text is ASCII if the output's encoding may not hold more.
    """

    def __init__(self, *parts: RenderableType | Verbatim) -> None:
        self._parts = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for place, part in enumerate(self._parts):
            if place:
                yield Segment.line()
            if isinstance(part, Verbatim):
                yield from self._lines(Text(part.title, style="bold"), console, options)
                for line in part.text.splitlines():
                    yield Segment(line)
                    yield Segment.line()
            else:
                yield from self._lines(part, console, options)

    def _lines(self, part: RenderableType, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in console.render_lines(part, options, pad=False):
            for segment in _without_trailing_space(line):
                text = _in_ascii(segment.text) if options.ascii_only else segment.text
                yield Segment(text, segment.style, segment.control)
            yield Segment.line()


def _without_trailing_space(line: list[Segment]) -> list[Segment]:
    """Return a line without trailing spaces.

    Tables pad their lines to the last column.
    """
    line = list(line)
    while line and not line[-1].text.strip(" "):
        line.pop()
    if line:
        line[-1] = Segment(line[-1].text.rstrip(" "), line[-1].style, line[-1].control)
    return line


def _in_ascii(text: str) -> str:
    text = text.translate(_IN_ASCII)
    if text.isascii():
        return text
    return "".join(character if character.isascii() else "?" * cell_len(character) for character in text)
