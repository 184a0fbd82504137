"""The report of `remat check` for people: one line a model, and below it why it fails and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from remat_cli.checks.check import Outcome, Verdict
from remat_cli.checks.project import Project
from remat_cli.reports.check.phrasing import conclusion, figures, headers, sentence
from remat_cli.reports.safe_text import Report, clean, shorten
from remat_cli.reports.terminal.layout import QUIET_STYLE, bullets

_NARROWEST_NAME = 8
_WIDTH_OF_FILES = 100
_GAP = "  "
_STYLES = {Verdict.HOLDS: "green", Verdict.FAILS: "bold red", Verdict.ERROR: "bold yellow"}
_VERDICT_WIDTH = max(len(verdict) for verdict in Verdict)
_INDENT = _VERDICT_WIDTH + len(_GAP)


def check_report(outcomes: Sequence[Outcome]) -> Report:
    """Return the report of `remat check`."""
    worst = next((v for v in (Verdict.ERROR, Verdict.FAILS) if any(o.verdict is v for o in outcomes)), Verdict.HOLDS)
    return Report(_Lines(outcomes), Text(conclusion(outcomes), f"bold {_STYLES[worst]}"))


def check_text(project: Project, outcomes: Sequence[Outcome]) -> bytes:
    """Return the report as plain text, for a file."""
    file = StringIO()
    Console(file=file, width=_WIDTH_OF_FILES, color_system=None, highlight=False).print(check_report(outcomes))
    return file.getvalue().encode()


class _Lines:
    """One line a model, in columns as wide as they need to be; names take what is left."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes = outcomes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        headings = headers(self._outcomes)
        rows = [figures(outcome, headings) for outcome in self._outcomes]
        widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
        left = options.max_width - _INDENT - sum(len(_GAP) + width for width in widths)
        names = [shorten(outcome.model.name, max(_NARROWEST_NAME, left)) for outcome in self._outcomes]
        width = max(map(cell_len, ("model", *names)))
        heading = "check".ljust(_INDENT) + _in_columns("model", width, headings, widths)
        yield Text(heading, QUIET_STYLE, no_wrap=True)
        for outcome, name, row in zip(self._outcomes, names, rows, strict=True):
            yield from _lines(outcome, _in_columns(name, width, row, widths))


def _in_columns(name: str, width: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return a line of a name on the left, and figures on the right of their columns."""
    padded = [" " * (space - cell_len(cell)) + cell for cell, space in zip(cells, widths, strict=True)]
    return _GAP.join([name + " " * (width - cell_len(name)), *padded])


def _lines(outcome: Outcome, columns: str) -> Iterator[RenderableType]:
    verdict = outcome.verdict
    mark = verdict.ljust(_VERDICT_WIDTH)
    yield Text.assemble((mark, _STYLES[verdict]), _GAP, columns, no_wrap=True)
    for failure in outcome.failures:
        body: list[RenderableType] = [Text(sentence(clean(failure.reason)))]
        if failure.remedies:
            body.append(bullets([sentence(clean(remedy)) for remedy in failure.remedies]))
        yield Padding(Group(*body), (0, 0, 0, _INDENT))
