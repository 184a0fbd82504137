"""The report of `remat check` as JSON: the same figures, in bytes and shares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from remat_cli.checks.check import Outcome, Verdict
from remat_cli.checks.project import Project


def check_json(project: Project, outcomes: Sequence[Outcome]) -> bytes:
    """Return the report as JSON; what there is none of is null."""
    summary = {
        "project": str(project.path),
        "baseline": str(project.baseline),
        "holds": all(outcome.verdict is Verdict.HOLDS for outcome in outcomes),
        "models": [_outcome(outcome) for outcome in outcomes],
    }
    text = json.dumps(summary, ensure_ascii=False, indent=2, sort_keys=True)
    # Half a surrogate pair, which a name may hold and UTF-8 may not, is written as JSON would escape it.
    return f"{text}\n".encode(errors="backslashreplace")


def _outcome(outcome: Outcome) -> dict[str, Any]:
    model = outcome.model
    return {
        "name": model.name,
        "path": str(model.path),
        "line": model.line,
        "verdict": outcome.verdict.value,
        "exit_code": outcome.exit_code,
        "planner": model.planner.name,
        "limits": {
            "budget": None if model.budget is None else str(model.budget),
            "max_overhead": None if model.max_overhead is None else float(model.max_overhead),
            "max_peak_bytes": model.max_peak,
            "max_regression": None if model.max_regression is None else float(model.max_regression),
        },
        "figures": None if outcome.figures is None else asdict(outcome.figures),
        "baseline": None if outcome.before is None else asdict(outcome.before),
        "failures": [asdict(failure) for failure in outcome.failures],
        "notes": list(outcome.notes),
    }
