"""The report of `remat inspect snapshot.pickle`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remat_cli.formats.memory_snapshot import RecordedMemory
from remat_cli.reports.safe_text import Report, clean
from remat_cli.reports.terminal.layout import Cell, columns, facts, indented
from remat_cli.units import format_bytes, format_count, format_share

_MOST_PLACES = 12


def recorded_report(path: Path, recorded: Sequence[RecordedMemory]) -> Report:
    """Return the report on a snapshot.

    Args:
        path: path of the snapshot.
        recorded: memory of each device.
    """
    parts: list[Any] = [facts([("snapshot", clean(str(path)))])]
    for memory in recorded:
        parts += _device(memory)
    return Report(*parts)


def _device(memory: RecordedMemory) -> list[Any]:
    said: list[tuple[str, Cell]] = [
        ("device", f"{memory.device}, {format_count(memory.events)} events"),
        ("peak", f"{format_bytes(memory.peak_bytes)} allocated at one time"),
        (
            "reserved",
            f"{format_bytes(memory.reserved_bytes)} by the allocator then, {format_bytes(memory.most_reserved_bytes)} "
            "at the most",
        ),
        ("fragmentation", f"{format_share(memory.fragmentation)} of what was reserved then held nothing"),
    ]
    shown = list(memory.places.items())[:_MOST_PLACES]
    rows: list[list[Cell]] = [
        [format_bytes(size), format_share(size / memory.peak_bytes), clean(place)] for place, size in shown
    ]
    if rest := list(memory.places.values())[_MOST_PLACES:]:
        rows.append(
            [format_bytes(sum(rest)), format_share(sum(rest) / memory.peak_bytes), f"{len(rest):,} other places"]
        )
    return [facts(said), "", "At the peak", indented(columns(["", "", ""], rows, right=(0, 1)))]


def recorded_summary(recorded: Sequence[RecordedMemory]) -> dict[str, Any]:
    """Return the summary of a snapshot, as JSON values."""
    return {
        "devices": [
            {
                "device": memory.device,
                "events": memory.events,
                "peak_bytes": memory.peak_bytes,
                "reserved_bytes": memory.reserved_bytes,
                "most_reserved_bytes": memory.most_reserved_bytes,
                "fragmentation": memory.fragmentation,
                "places": [{"place": place, "bytes": size} for place, size in memory.places.items()],
            }
            for memory in recorded
        ]
    }
