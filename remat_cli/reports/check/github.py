"""The report of `remat check` as workflow commands: GitHub shows a failure at the model's line of the project file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from remat_cli.checks.check import Outcome, Verdict
from remat_cli.checks.project import Project
from remat_cli.reports.check.phrasing import conclusion, explanation
from remat_cli.reports.safe_text import clean

# What GitHub's runner reads back; "%" first.
_IN_MESSAGE = (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"))
_IN_PROPERTY = (*_IN_MESSAGE, (":", "%3A"), (",", "%2C"))


def check_github(project: Project, outcomes: Sequence[Outcome]) -> bytes:
    """Return the report as an error annotation for each model that fails, or a notice that all hold."""
    failing = [outcome for outcome in outcomes if outcome.failures]
    file = clean(_from_the_top(project.path))
    lines = [_error(file, outcome) for outcome in failing]
    # In a line of the log that is no command, an annotation for each failure being there.
    lines.append(
        conclusion(outcomes) if failing else _command("notice", {"title": "remat check"}, conclusion(outcomes))
    )
    return ("\n".join(lines) + "\n").encode()


def _error(file: str, outcome: Outcome) -> str:
    name = clean(outcome.model.name)
    title = f"remat check: {name} {'fails' if outcome.verdict is Verdict.FAILS else 'could not be checked'}"
    return _command("error", {"file": file, "line": str(outcome.model.line), "title": title}, explanation(outcome))


def _command(name: str, properties: dict[str, str], message: str) -> str:
    described = ",".join(f"{key}={_escaped(value, _IN_PROPERTY)}" for key, value in properties.items())
    return f"::{name} {described}::{_escaped(message, _IN_MESSAGE)}"


def _escaped(text: str, pairs: Sequence[tuple[str, str]]) -> str:
    for character, escape in pairs:
        text = text.replace(character, escape)
    return text


def _from_the_top(path: Path) -> str:
    """Return the path as seen from the top of the repository, as annotations want it."""
    top = Path(os.environ.get("GITHUB_WORKSPACE") or ".").resolve()
    whole = path.resolve()
    return (whole.relative_to(top) if whole.is_relative_to(top) else path).as_posix()
