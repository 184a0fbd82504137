"""The report of `remat diff GRAPH snapshot.pickle`: predicted and recorded memory side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from remat_cli.reports.safe_text import Report, clean
from remat_cli.reports.terminal.layout import Cell, bullets, columns, facts, section
from remat_cli.studies.recorded import Parting, Reality
from remat_cli.units import format_bytes, format_count, format_share

_MOST_MODULES = 15
_MOST_PARTINGS = 12
# Below it, a recording is hardly one of the step.
_LEAST_RECOGNISED = 0.5


def reality_report(snapshot: Path, reality: Reality) -> Report:
    """Return the report."""
    predicted, recorded = reality.predicted, reality.recorded
    labels: list[tuple[str, Cell]] = [
        ("predicted", clean(predicted.name)),
        ("recorded", f"{clean(str(snapshot))}, device {recorded.device}, {format_count(recorded.events)} events"),
        ("recognised", f"{format_share(reality.recognised)} of the predicted bytes, by size and order"),
    ]
    parts: list[RenderableType] = [facts(labels), Text(_verdict(reality), "bold")]
    if reality.recognised < _LEAST_RECOGNISED:
        parts.append(Text("Little of it is recognised: is this a recording of the same step, with the same sizes?"))
    parts.append(section("At the peaks", _modules(reality)))
    shown = reality.partings[:_MOST_PARTINGS]
    said = [clean(_in_words(parting)) for parting in shown]
    if rest := reality.partings[_MOST_PARTINGS:]:
        said.append(f"and {len(rest):,} more, {format_bytes(sum(item.bytes for item in rest))} together")
    parts.append(section("Where lifetimes part", bullets(said or ["Nowhere."])))
    return Report(*parts)


def _verdict(reality: Reality) -> str:
    predicted, recorded = reality.predicted.peak_bytes, reality.recorded.peak_bytes
    share = format_share(abs(recorded - predicted) / max(1, predicted))
    than = "as predicted" if recorded == predicted else f"{share} {'above' if recorded > predicted else 'below'} it"
    return f"The predicted peak is {format_bytes(predicted)}, the recorded one {format_bytes(recorded)}: {than}."


def _modules(reality: Reality) -> RenderableType:
    rows: list[list[Cell]] = []
    items = list(reality.at_peak.items())
    for name, (predicted, recorded) in items[:_MOST_MODULES]:
        rows.append([clean(name), format_bytes(predicted), format_bytes(recorded), _signed(recorded - predicted)])
    if rest := [sizes for _, sizes in items[_MOST_MODULES:]]:
        predicted, recorded = (sum(sizes) for sizes in zip(*rest, strict=True))
        label = f"{len(rest):,} others"
        rows.append([label, format_bytes(predicted), format_bytes(recorded), _signed(recorded - predicted)])
    return columns(["", "predicted", "recorded", "difference"], rows, right=(1, 2, 3))


def _signed(size: int) -> str:
    return "" if size == 0 else f"{'+' if size > 0 else '-'}{format_bytes(abs(size))}"


def _in_words(parting: Parting) -> str:
    what = f"{parting.name} of {parting.module}" if parting.name else f"what {parting.module} allocates"
    return f"{format_bytes(parting.bytes)}: {what} {parting.how}"


def reality_summary(reality: Reality) -> dict[str, Any]:
    """Return the JSON values that `remat diff GRAPH snapshot.pickle --json` prints."""
    return {
        "predicted": {"name": reality.predicted.name, "peak_bytes": reality.predicted.peak_bytes},
        "recorded": {
            "device": reality.recorded.device,
            "events": reality.recorded.events,
            "peak_bytes": reality.recorded.peak_bytes,
        },
        "recognised": reality.recognised,
        "at_peak": [
            {"module": name, "predicted_bytes": predicted, "recorded_bytes": recorded}
            for name, (predicted, recorded) in reality.at_peak.items()
        ],
        "partings": [
            {"module": item.module, "tensor": item.name or None, "bytes": item.bytes, "how": item.how}
            for item in reality.partings
        ],
    }
