"""The document of an HTML report: one self-contained file, the same every time.

The file needs no network. Tables are plain HTML and need no script; the script in `assets` draws the charts.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template

from rich.text import Text

from remat_cli import __version__
from remat_cli.core.problem import Status
from remat_cli.reports.safe_text import clean, shorten
from remat_cli.reports.terminal.layout import Cell
from remat_cli.units import format_share

LONGEST_NAME = 60
TONES = {Status.OPTIMAL: "good", Status.FEASIBLE: "good", Status.INFEASIBLE: "bad", Status.UNKNOWN: "open"}


@dataclass(frozen=True)
class HtmlDocument:
    """The parts of a page.

    Attributes:
        title: title of the page.
        facts: labels and values on graph, planner and budget.
        verdict: the result in one sentence.
        tone: tone of the verdict: "good", "bad" or "open".
        advice: titles and sentences: reasons and remedies without a plan.
        comparison: table of the result's figures.
        charts: asset with the charts.
        still: a picture that needs no script.
        sections: further sections.
        notes: remarks for the user.
        data: JSON for the script.
        scripts: assets of the script, in their order.
    """

    title: str
    facts: Sequence[tuple[str, Cell]]
    verdict: str
    tone: str
    advice: Mapping[str, Sequence[str]]
    comparison: str
    charts: str
    still: str
    sections: Sequence[str]
    notes: Sequence[str]
    data: str
    scripts: Sequence[str]

    def file_bytes(self) -> bytes:
        """Return the bytes of the file."""
        style, script = _asset("style.css"), "".join(map(_asset, self.scripts))
        facts = "".join(f"<div><dt>{text_in(label)}</dt><dd>{text_in(value)}</dd></div>" for label, value in self.facts)
        parts = {
            "policy": _policy(style, script),
            "title": text_in(shorten(self.title, LONGEST_NAME)),
            "style": style,
            "script": script,
            "data": self.data,
            "facts": facts,
            "tone": self.tone,
            "verdict": text_in(self.verdict),
            "advice": "".join(_bullets(title, sentences) for title, sentences in self.advice.items()),
            "comparison": self.comparison,
            "charts": Template(_asset(self.charts)).substitute(zoom=_asset("zoom.html"), still=self.still)
            if self.charts
            else "",
            "sections": "\n".join(self.sections),
            "notes": _bullets("Notes", [clean(note) for note in self.notes]),
            "version": __version__,
        }
        return Template(_asset("page.html")).substitute(parts).encode()


@cache
def _asset(name: str) -> str:
    return (files("remat_cli.reports.html") / "assets" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return a content policy that allows only this style and script."""

    def hashed(content: str) -> str:
        return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {hashed(script)}; style-src {hashed(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def text_in(cell: Cell) -> str:
    """Return a cell's text as HTML."""
    return escape(cell.plain if isinstance(cell, Text) else str(cell))


def _bullets(title: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{text_in(sentence)}</li>" for sentence in sentences)
    return f'<section class="card"><h2>{text_in(title)}</h2><ul>{items}</ul></section>'


@dataclass(frozen=True)
class Markup:
    """A cell with literal HTML."""

    html: str


def table_of(headers: Sequence[str], rows: Iterable[Sequence[Cell | Markup]], *, right: Sequence[int] = ()) -> str:
    """Return a table.

    The first cell of a row is its header, and `right` has the numbers of right-aligned columns.
    """

    def cell(number: int, value: Cell | Markup, tag: str, scope: str = "") -> str:
        content = value.html if isinstance(value, Markup) else text_in(value)
        return f"<{tag}{scope}{' class=n' if number in right else ''}>{content}</{tag}>"

    head = "".join(
        cell(number, header, "th", " scope=col") if header else "<td></td>" for number, header in enumerate(headers)
    )
    lines = [
        "".join(
            cell(number, value, *(("th", " scope=row") if number == 0 else ("td",))) for number, value in enumerate(row)
        )
        for row in rows
    ]
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"


def share_bar(share: float) -> str:
    """Return a bar that fills a share of its width."""
    return (
        f'<svg class=bar viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * share:.1f}" height="8"/></svg> {format_share(share)}'
    )
