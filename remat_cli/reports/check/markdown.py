"""The report of `remat check` in Markdown: for a pull request, or `>> $GITHUB_STEP_SUMMARY`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from remat_cli.checks.check import Outcome, Verdict
from remat_cli.checks.project import Project
from remat_cli.reports.check.phrasing import conclusion, figures, headers, sentence
from remat_cli.reports.safe_text import clean

_MARKS = {Verdict.HOLDS: "✅ holds", Verdict.FAILS: "❌ fails", Verdict.ERROR: "⚠️ error"}
# What Markdown or HTML would act on; inside a word, an underscore is one.
_SPECIAL = re.compile(r"[\\`*{}\[\]<>|~#&@$]|(?<!\w)_|_(?!\w)")


def check_markdown(project: Project, outcomes: Sequence[Outcome]) -> bytes:
    """Return the report: a table of all models, then each failure with what would help."""
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
        f"Limits: {_plain(project.path.as_posix())}",
    ]
    return ("\n".join(lines) + "\n").encode()


def _failures(outcome: Outcome) -> Iterator[str]:
    for failure in outcome.failures:
        yield ""
        yield f"**{_plain(outcome.model.name)}**: {_plain(failure.reason)}"
        if failure.remedies:
            yield ""
        for remedy in failure.remedies:
            yield f"- {_plain(sentence(remedy))}"


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return _SPECIAL.sub(_entity, clean(text))


def _entity(match: re.Match[str]) -> str:
    # A backslash would do outside of tables only, and keeps no mention from being one.
    return f"&#{ord(match[0])};"
