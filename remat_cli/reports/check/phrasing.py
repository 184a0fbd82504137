"""Phrases of every form of the report of `remat check`: the verdict in one sentence, and a row of figures a model."""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.checks.check import Outcome, Verdict
from remat_cli.reports.safe_text import clean
from remat_cli.units import format_bytes, format_share

# Of the plain peak, since the baseline was written.
_CHANGE = "change"
_HEADINGS = ("plain peak", _CHANGE, "limit", "plan", "overhead")


def conclusion(outcomes: Sequence[Outcome]) -> str:
    """Return what came of a whole check, in one sentence."""
    total = len(outcomes)
    models = "1 model" if total == 1 else f"{total} models"
    fails, errors = (
        sum(outcome.verdict is verdict for outcome in outcomes) for verdict in (Verdict.FAILS, Verdict.ERROR)
    )
    if not fails and not errors:
        return "The model holds." if total == 1 else f"All {models} hold."
    failing = f"{fails} of {models} {'fails' if fails == 1 else 'fail'}"
    broken = f"{errors} could not be checked" if fails else f"{errors} of {models} could not be checked"
    return ", ".join([failing] * bool(fails) + [broken] * bool(errors)) + "."


def headers(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Return the headings of the figures; what changed is shown where a baseline knows any of the models."""
    knows_any = any(outcome.before is not None for outcome in outcomes)
    return tuple(heading for heading in _HEADINGS if knows_any or heading != _CHANGE)


def figures(outcome: Outcome, headings: Sequence[str]) -> list[str]:
    """Return the figures of one model under `headings`; empty where there is none."""
    measured, before = outcome.figures, outcome.before
    if measured is None:
        return [""] * len(headings)
    row = {
        "plain peak": format_bytes(measured.plain_peak_bytes),
        _CHANGE: "new" if before is None else _change(before.plain_peak_bytes, measured.plain_peak_bytes),
        "limit": "" if measured.limit_bytes is None else format_bytes(measured.limit_bytes),
        "plan": "" if measured.plan_peak_bytes is None else format_bytes(measured.plan_peak_bytes),
        "overhead": "" if measured.overhead is None else format_share(measured.overhead),
    }
    return [row[heading] for heading in headings]


def _change(before: int, now: int) -> str:
    if before == now:
        return "none"
    share = (now - before) / max(1, before)
    return f"{'+' if share > 0 else ''}{format_share(share)}"


def explanation(outcome: Outcome) -> str:
    """Return why a model fails and what would help, a line each, without anything that a terminal would act on."""
    lines: list[str] = []
    for failure in outcome.failures:
        lines.append(sentence(clean(failure.reason)))
        lines.extend(f"- {sentence(clean(remedy))}" for remedy in failure.remedies)
    return "\n".join(lines)


def sentence(text: str) -> str:
    """Return a reason or remedy as a sentence of its own."""
    # What begins with a name or key of the user's is left as it is written.
    is_word = text[:1].isalpha() and text.split(maxsplit=1)[0].isalpha()
    return (text[:1].upper() + text[1:] if is_word else text) + ("" if text.endswith((".", "!", "?")) else ".")
