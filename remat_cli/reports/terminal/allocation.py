"""What `remat allocate` reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from remat_cli.core.problem import Status
from remat_cli.reports import phrasing
from remat_cli.reports.safe_text import Report, clean
from remat_cli.reports.terminal.layout import Cell, columns, facts, indented
from remat_cli.reports.terminal.plan import STATUS_STYLES
from remat_cli.units import format_bytes, format_share

if TYPE_CHECKING:
    from remat_cli.allocation.portfolio import Allocation


def allocation_report(found: Allocation, title: str, *, capacity: int | None, written: Path | None) -> Report:
    """Return the report of `remat allocate`.

    Args:
        found: what the search came to.
        title: what was placed.
        capacity: largest arena that was asked for, in bytes; None: the smallest.
        written: the file with the addresses; None where none was written.
    """
    asked = "the smallest" if capacity is None else f"at most {_exactly(capacity)}"
    rows: list[list[Cell]] = []
    if found.bytes is not None:
        rows.append(["arena", _exactly(found.bytes), "all that is in memory together lies apart"])
    rows.append(["bound", _exactly(found.bound_bytes), f"no arena is smaller; {phrasing.BASES[found.basis]}"])
    if found.bytes is not None and found.bytes > found.bound_bytes:
        gap = format_share(found.bytes / found.bound_bytes - 1)
        rows.append(["gap", gap, "the most that a better arrangement could save"])
    rows.append(["status", Text(found.status.value, STATUS_STYLES[found.status]), _in_words(found, capacity)])
    facts_shown: list[tuple[str, Cell]] = [("placed", clean(title)), ("asked for", asked)]
    if written is not None:
        facts_shown.append(("written", clean(str(written))))
    return Report(facts(facts_shown), indented(columns(["", "", ""], rows, right=(1,))))


def allocation_summary(found: Allocation, *, capacity: int | None) -> dict[str, Any]:
    """Return the summary of `remat allocate`."""
    return {
        "status": str(found.status),
        "capacity_bytes": capacity,
        "arena_bytes": found.bytes,
        "bound_bytes": found.bound_bytes,
        "basis": str(found.basis),
        "interrupted": found.interrupted,
    }


def _exactly(size: int) -> str:
    return f"{format_bytes(size)} ({size:,} bytes)"


def _in_words(found: Allocation, capacity: int | None) -> str:
    match found.status:
        case Status.OPTIMAL:
            return "no arena is smaller"
        case Status.FEASIBLE if capacity is None:
            return "the smallest that was found"
        case Status.FEASIBLE:
            return "it fits the capacity"
        case Status.INFEASIBLE:
            return "proven: no arrangement fits the capacity"
        case Status.UNKNOWN:
            return "none was found that fits; it is not proven that none exists"
