"""The forms of the report of `remat check`.

They are for programs, CI servers, pull requests and people.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from remat_cli.checks.check import CheckOutcome, Verdict
from remat_cli.checks.project import Project
from remat_cli.reports.check.phrasing import ENDINGS, conclusion, explanation, figures, headers, sentence, sessions
from remat_cli.reports.safe_text import Report, clean, shorten
from remat_cli.reports.terminal.layout import QUIET_STYLE, bullets

# JSON: the figures in bytes and shares


def check_json(project: Project, outcomes: Sequence[CheckOutcome]) -> bytes:
    """Return the report as JSON; a missing figure is null."""
    summary = {
        "project": str(project.path),
        "baseline": str(project.baseline),
        "holds": all(outcome.verdict is Verdict.HOLDS for outcome in outcomes),
        "models": [_outcome(outcome) for outcome in outcomes],
    }
    text = json.dumps(summary, ensure_ascii=False, indent=2, sort_keys=True)
    # Half a surrogate pair, which names may hold but UTF-8 may not, is escaped as in JSON.
    return f"{text}\n".encode(errors="backslashreplace")


def _outcome(outcome: CheckOutcome) -> dict[str, Any]:
    model, request = outcome.model, outcome.model.request
    return {
        "name": model.name,
        "path": str(model.path),
        "line": model.line,
        "verdict": outcome.verdict.value,
        "exit_code": outcome.exit_code,
        "planner": request.chosen.name,
        "limits": {
            **{name: value for name, value in request.in_json.items() if name != "planner"},
            "max_peak_bytes": model.max_peak,
            "max_regression": None if model.max_regression is None else float(model.max_regression),
        },
        "estimated": outcome.is_estimated,
        "figures": None if outcome.figures is None else asdict(outcome.figures),
        "baseline": None if outcome.before is None else asdict(outcome.before),
        "failures": [asdict(failure) for failure in outcome.failures],
        "session": outcome.session or None,
        "notes": list(outcome.notes),
    }


# JUnit XML, which CI servers show beside the tests: one test case per model

_SUITE = "remat check"
# JUnit has no warnings, and an unreliable result must not pass.
_TAGS = {Verdict.FAILS: "failure", Verdict.WARNS: "failure", Verdict.ERROR: "error"}


def check_junit(project: Project, outcomes: Sequence[CheckOutcome]) -> bytes:
    """Return the report as JUnit XML.

    Names may contain characters that XML 1.0 cannot express; `clean` removes them.
    """
    tags = [_TAGS.get(outcome.verdict) for outcome in outcomes]
    counts = {
        "tests": str(len(outcomes)),
        "failures": str(tags.count("failure")),
        "errors": str(tags.count("error")),
        "skipped": "0",
        "time": f"{sum(outcome.seconds for outcome in outcomes):.3f}",
    }
    root = Element("testsuites", {"name": _SUITE, **counts})
    suite = SubElement(root, "testsuite", {"name": clean(str(project.path)), **counts})
    headings = headers(outcomes)
    for outcome in outcomes:
        _add_case(suite, project, outcome, headings)
    SubElement(suite, "system-out").text = "\n".join([conclusion(outcomes), *sessions(outcomes)])
    indent(root)
    xml: bytes = tostring(root, encoding="UTF-8", xml_declaration=True)
    return xml + b"\n"


def _add_case(suite: Element, project: Project, outcome: CheckOutcome, headings: Sequence[str]) -> None:
    model = outcome.model
    case = SubElement(
        suite,
        "testcase",
        {
            "classname": _SUITE,
            "name": clean(model.name),
            "file": clean(project.path.as_posix()),
            "line": str(model.line),
            "time": f"{outcome.seconds:.3f}",
        },
    )
    if outcome.failures:
        # Readers accept one element per case.
        reasons = [clean(failure.reason) for failure in outcome.failures]
        kinds = ", ".join(failure.limit for failure in outcome.failures)
        described = {"message": "; ".join(reasons), "type": kinds}
        SubElement(case, _TAGS[outcome.verdict], described).text = explanation(outcome)
    measured = [f"{label}: {value}" for label, value in zip(headings, figures(outcome, headings), strict=True) if value]
    if measured:
        SubElement(case, "system-out").text = "\n".join(measured)


# Workflow commands: GitHub shows a failure at the model's line of the project file

# Escapes that GitHub's runner decodes; "%" must come first.
_IN_MESSAGE = (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"))
_IN_PROPERTY = (*_IN_MESSAGE, (":", "%3A"), (",", "%2C"))


def check_github(project: Project, outcomes: Sequence[CheckOutcome]) -> bytes:
    """Return the report as GitHub annotations.

    There is one for each model that does not hold, or a notice that all hold.
    """
    failing = [outcome for outcome in outcomes if outcome.failures]
    file = clean(_from_the_top(project.path))
    lines = [_annotation(file, outcome) for outcome in failing]
    # If there are failures, this is a plain line of the log, as each failure has an annotation.
    whole = "\n".join([conclusion(outcomes), *sessions(outcomes)])
    lines.append(whole if failing else _command("notice", {"title": "remat check"}, whole))
    return ("\n".join(lines) + "\n").encode()


def _annotation(file: str, outcome: CheckOutcome) -> str:
    command = "warning" if outcome.verdict is Verdict.WARNS else "error"
    title = f"remat check: {clean(outcome.model.name)} {ENDINGS[outcome.verdict][0]}"
    return _command(command, {"file": file, "line": str(outcome.model.line), "title": title}, explanation(outcome))


def _command(name: str, properties: dict[str, str], message: str) -> str:
    described = ",".join(f"{key}={_escaped(value, _IN_PROPERTY)}" for key, value in properties.items())
    return f"::{name} {described}::{_escaped(message, _IN_MESSAGE)}"


def _escaped(text: str, pairs: Sequence[tuple[str, str]]) -> str:
    for character, escape in pairs:
        text = text.replace(character, escape)
    return text


def _from_the_top(path: Path) -> str:
    """Return the path relative to the top of the repository.

    GitHub's annotations need this form.
    """
    top = Path(os.environ.get("GITHUB_WORKSPACE") or ".").resolve()
    whole = path.resolve()
    return (whole.relative_to(top) if whole.is_relative_to(top) else path).as_posix()


# Markdown: for a pull request, or `>> $GITHUB_STEP_SUMMARY`

_MARKS = {
    Verdict.HOLDS: "✅ holds",
    Verdict.FAILS: "❌ fails",
    Verdict.WARNS: "⚠️ warns",
    Verdict.ERROR: "⚠️ error",
}
# Characters that Markdown or HTML acts on; an underscore inside a word is harmless.
_SPECIAL = re.compile(r"[\\`*{}\[\]<>|~#&@$]|(?<!\w)_|_(?!\w)")


def check_markdown(project: Project, outcomes: Sequence[CheckOutcome]) -> bytes:
    """Return the report as Markdown.

    A table of all models comes first, then each failure with its remedies.
    """
    headings = headers(outcomes)
    lines = [
        f"### remat check: {conclusion(outcomes)}",
        "",
        f"| | model | {' | '.join(headings)} |",
        f"|---|---|{'---:|' * len(headings)}",
        *(
            f"| {_MARKS[outcome.verdict]} | {_plain(outcome.model.name)} | {' | '.join(figures(outcome, headings))} |"
            for outcome in outcomes
        ),
        *(line for outcome in outcomes for line in _failures(outcome)),
        "",
        *(f"{_plain(session)}\n" for session in sessions(outcomes)),
        f"Limits: {_plain(project.path.as_posix())}",
    ]
    return ("\n".join(lines) + "\n").encode()


def _failures(outcome: CheckOutcome) -> Iterator[str]:
    for failure in outcome.failures:
        yield ""
        yield f"**{_plain(outcome.model.name)}**: {_plain(failure.reason)}"
        if failure.remedies:
            yield ""
        for remedy in failure.remedies:
            yield f"- {_plain(sentence(remedy))}"


def _plain(text: str) -> str:
    """Escape text so that Markdown shows it literally."""
    return _SPECIAL.sub(_entity, clean(text))


def _entity(match: re.Match[str]) -> str:
    # A backslash would work only outside of tables, and would not disable mentions.
    return f"&#{ord(match[0])};"


# For people: one line per model, followed by its failures and remedies

_NARROWEST_NAME = 8
_WIDTH_OF_FILES = 100
_GAP = "  "
_STYLES = {
    Verdict.HOLDS: "green",
    Verdict.FAILS: "bold red",
    Verdict.WARNS: "bold yellow",
    Verdict.ERROR: "bold yellow",
}
_WORST_FIRST = (Verdict.ERROR, Verdict.FAILS, Verdict.WARNS)
_VERDICT_WIDTH = max(len(verdict) for verdict in Verdict)
_INDENT = _VERDICT_WIDTH + len(_GAP)


def check_report(outcomes: Sequence[CheckOutcome]) -> Report:
    """Return the report of `remat check`."""
    worst = next((v for v in _WORST_FIRST if any(o.verdict is v for o in outcomes)), Verdict.HOLDS)
    held = [Text("\n".join(sessions(outcomes)), QUIET_STYLE)] if sessions(outcomes) else []
    return Report(_Lines(outcomes), *held, Text(conclusion(outcomes), f"bold {_STYLES[worst]}"))


def check_text(project: Project, outcomes: Sequence[CheckOutcome]) -> bytes:
    """Return the report as plain text, for a file."""
    file = StringIO()
    Console(file=file, width=_WIDTH_OF_FILES, color_system=None, highlight=False).print(check_report(outcomes))
    return file.getvalue().encode()


class _Lines:
    """One line per model, in columns; names get the remaining width.

    Where too little remains, each figure has a line of its own.
    """

    def __init__(self, outcomes: Sequence[CheckOutcome]) -> None:
        self._outcomes = outcomes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        headings = headers(self._outcomes)
        rows = [figures(outcome, headings) for outcome in self._outcomes]
        widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
        left = options.max_width - _INDENT - sum(len(_GAP) + width for width in widths)
        if left < _NARROWEST_NAME:
            yield from self._one_below_the_other(options.max_width - _INDENT, headings, rows)
            return
        names = [shorten(outcome.model.name, left) for outcome in self._outcomes]
        width = max(map(cell_len, ("model", *names)))
        heading = "check".ljust(_INDENT) + _in_columns("model", width, headings, widths)
        yield Text(heading, QUIET_STYLE, no_wrap=True)
        for outcome, name, row in zip(self._outcomes, names, rows, strict=True):
            yield from _lines(outcome, _in_columns(name, width, row, widths))

    def _one_below_the_other(
        self, width: int, headings: Sequence[str], rows: Sequence[Sequence[str]]
    ) -> Iterator[RenderableType]:
        longest = max(map(cell_len, headings))
        for outcome, row in zip(self._outcomes, rows, strict=True):
            lines = [f"{heading:{longest}}{_GAP}{cell}" for heading, cell in zip(headings, row, strict=True) if cell]
            below = [Padding(Text(line), (0, 0, 0, _INDENT)) for line in lines]
            yield from _lines(outcome, shorten(outcome.model.name, max(_NARROWEST_NAME, width)), below)


def _in_columns(name: str, width: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return a line with a name on the left and right-aligned figures."""
    padded = [" " * (space - cell_len(cell)) + cell for cell, space in zip(cells, widths, strict=True)]
    return _GAP.join([name + " " * (width - cell_len(name)), *padded])


def _lines(outcome: CheckOutcome, columns: str, below: Sequence[RenderableType] = ()) -> Iterator[RenderableType]:
    verdict = outcome.verdict
    mark = verdict.ljust(_VERDICT_WIDTH)
    yield Text.assemble((mark, _STYLES[verdict]), _GAP, columns, no_wrap=True)
    yield from below
    for failure in outcome.failures:
        body: list[RenderableType] = [Text(sentence(clean(failure.reason)))]
        if failure.remedies:
            body.append(bullets([sentence(clean(remedy)) for remedy in failure.remedies]))
        yield Padding(Group(*body), (0, 0, 0, _INDENT))


FORMS: Mapping[str, Callable[[Project, Sequence[CheckOutcome]], bytes]] = {
    "table": check_text,
    "json": check_json,
    "junit": check_junit,
    "github": check_github,
    "markdown": check_markdown,
}
