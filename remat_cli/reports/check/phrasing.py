"""Phrases of every form of the report of `remat check`: the verdict in one sentence, and a row of figures a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from remat_cli.checks.check import CheckOutcome, Verdict
from remat_cli.reports.safe_text import clean
from remat_cli.units import format_bytes, format_share

# Of the plain peak, since the baseline was written.
_CHANGE = "change"
# How what does not hold ends: one model, and several.
ENDINGS = {
    Verdict.FAILS: ("fails", "fail"),
    Verdict.WARNS: ("ends with a warning", "end with a warning"),
    Verdict.ERROR: ("could not be checked", "could not be checked"),
}
# Where an arena was asked for: of it, and resident bytes lie beside it.
_ARENA = "arena"
_HEADINGS = ("plain peak", _CHANGE, "limit", "plan", _ARENA, "overhead")


def conclusion(outcomes: Sequence[CheckOutcome]) -> str:
    """Return the conclusion of a whole check, in one sentence."""
    total = len(outcomes)
    models = "1 model" if total == 1 else f"{total} models"
    counts = Counter(outcome.verdict for outcome in outcomes)
    if counts[Verdict.HOLDS] == total:
        return "The model holds." if total == 1 else f"All {models} hold."
    counted = [
        (counts[verdict], one if counts[verdict] == 1 else several)
        for verdict, (one, several) in ENDINGS.items()
        if counts[verdict]
    ]
    (first, ending), *others = counted
    return ", ".join([f"{first} of {models} {ending}", *(f"{count} {said}" for count, said in others)]) + "."


def headers(outcomes: Sequence[CheckOutcome]) -> tuple[str, ...]:
    """Return the headings of the figures; what changed is shown where a baseline knows any of the models."""
    left_out = set()
    if all(outcome.before is None for outcome in outcomes):
        left_out.add(_CHANGE)
    if all(outcome.figures is None or outcome.figures.arena_bytes is None for outcome in outcomes):
        left_out.add(_ARENA)
    return tuple(heading for heading in _HEADINGS if heading not in left_out)


def figures(outcome: CheckOutcome, headings: Sequence[str]) -> list[str]:
    """Return the figures of one model under `headings`; empty where there is none."""
    measured, before = outcome.figures, outcome.before
    if measured is None:
        return [""] * len(headings)
    mark = " estimated" if outcome.is_estimated else ""
    row = {
        "plain peak": format_bytes(measured.plain_peak_bytes) + mark,
        _CHANGE: "new" if before is None else _change(before.plain_peak_bytes, measured.plain_peak_bytes),
        "limit": "" if measured.limit_bytes is None else format_bytes(measured.limit_bytes),
        "plan": "" if measured.plan_peak_bytes is None else format_bytes(measured.plan_peak_bytes) + mark,
        _ARENA: "" if measured.arena_bytes is None else format_bytes(measured.arena_bytes),
        "overhead": "" if measured.overhead is None else format_share(measured.overhead),
    }
    return [row[heading] for heading in headings]


def _change(before: int, now: int) -> str:
    if before == now:
        return "none"
    share = (now - before) / max(1, before)
    return f"{'+' if share > 0 else ''}{format_share(share)}"


def sessions(outcomes: Sequence[CheckOutcome]) -> list[str]:
    """Return for which sessions of a runtime the figures hold, a sentence each."""
    return list(dict.fromkeys(clean(outcome.session) for outcome in outcomes if outcome.session))


def explanation(outcome: CheckOutcome) -> str:
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
