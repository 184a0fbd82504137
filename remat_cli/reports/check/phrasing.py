"""Phrases for all forms of the report of `remat check`.

They are the verdict in one sentence, and a row of figures for each model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from remat_cli.checks.check import CheckOutcome, Verdict
from remat_cli.reports.safe_text import clean
from remat_cli.units import counted, format_bytes, format_share

# the change of the plain peak since the baseline
_CHANGE = "change"
# Verbs for models that do not hold: for one model, and for several.
ENDINGS = {
    Verdict.FAILS: ("fails", "fail"),
    Verdict.WARNS: ("ends with a warning", "end with a warning"),
    Verdict.ERROR: ("could not be checked", "could not be checked"),
}
# the arena, if one was requested; resident bytes are not part of it
_ARENA = "arena"
# a PyTorch step without a plan
_EAGER = "eager peak"
_HEADINGS = (_EAGER, "plain peak", _CHANGE, "limit", "plan", _ARENA, "overhead")


def conclusion(outcomes: Sequence[CheckOutcome]) -> str:
    """State the conclusion of a whole check in one sentence."""
    total = len(outcomes)
    models = counted(total, "model")
    counts = Counter(outcome.verdict for outcome in outcomes)
    if counts[Verdict.HOLDS] == total:
        return "The model holds." if total == 1 else f"All {models} hold."
    endings = [
        (counts[verdict], one if counts[verdict] == 1 else several)
        for verdict, (one, several) in ENDINGS.items()
        if counts[verdict]
    ]
    (first, ending), *others = endings
    return ", ".join([f"{first} of {models} {ending}", *(f"{count} {said}" for count, said in others)]) + "."


def headers(outcomes: Sequence[CheckOutcome]) -> tuple[str, ...]:
    """Return the headings of the figures.

    The change appears if a baseline has any of the models.
    """
    left_out = set()
    if all(outcome.before is None for outcome in outcomes):
        left_out.add(_CHANGE)
    if all(outcome.figures is None or outcome.figures.arena_bytes is None for outcome in outcomes):
        left_out.add(_ARENA)
    if all(outcome.figures is None or outcome.figures.eager_peak_bytes is None for outcome in outcomes):
        left_out.add(_EAGER)
    return tuple(heading for heading in _HEADINGS if heading not in left_out)


def figures(outcome: CheckOutcome, headings: Sequence[str]) -> list[str]:
    """Return the figures of one model under `headings`.

    A missing figure is empty.
    """
    measured, before = outcome.figures, outcome.before
    if measured is None:
        return [""] * len(headings)
    mark = " estimated" if outcome.is_estimated else ""
    row = {
        _EAGER: "" if measured.eager_peak_bytes is None else format_bytes(measured.eager_peak_bytes),
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
    """Return the runtime sessions for which the figures hold, as sentences."""
    return list(dict.fromkeys(clean(outcome.session) for outcome in outcomes if outcome.session))


def explanation(outcome: CheckOutcome) -> str:
    """Return reasons and remedies of a failing model, one per line.

    Characters that a terminal acts on are removed.
    """
    lines: list[str] = []
    for failure in outcome.failures:
        lines.append(sentence(clean(failure.reason)))
        lines.extend(f"- {sentence(clean(remedy))}" for remedy in failure.remedies)
    return "\n".join(lines)


def sentence(text: str) -> str:
    """Turn a reason or remedy into a sentence."""
    # A name or key at the start keeps its spelling.
    is_word = text[:1].isalpha() and text.split(maxsplit=1)[0].isalpha()
    return (text[:1].upper() + text[1:] if is_word else text) + ("" if text.endswith((".", "!", "?")) else ".")
