"""What `remat allocate` reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from remat_cli.core.problem import Basis, Status
from remat_cli.reports import phrasing
from remat_cli.reports.safe_text import Report, clean
from remat_cli.reports.terminal.layout import Cell, columns, facts, indented
from remat_cli.reports.terminal.plan import STATUS_STYLES
from remat_cli.units import format_bytes, format_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remat_cli.allocation.banks import BankAllocation
    from remat_cli.allocation.portfolio import Allocation
    from remat_cli.core.arena import Bank


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
    rows.append(["bound", _exactly(found.bound_bytes), f"no arena is smaller; {_proof(found.basis)}"])
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


def banks_report(found: BankAllocation, title: str, *, banks: Sequence[Bank], written: Path | None) -> Report:
    """Return the report of `remat allocate --bank`; arguments as of `allocation_report`."""
    rows: list[list[Cell]] = []
    for index, bank in enumerate(banks):
        said = f"of {_exactly(bank.bytes)}, speed {float(bank.speed):g}"
        used = "" if found.used is None else format_bytes(found.used[index])
        rows.append([clean(bank.name), used, said])
    if found.time is not None:
        rows.append(["time", format_bytes(round(found.time)), "to move all bytes, in bytes of the first bank"])
        rows.append(
            ["bound", format_bytes(round(found.bound)), f"no choice of banks takes less; {_proof(found.basis)}"]
        )
        if found.time > found.bound:
            gap = format_share(float(found.time / found.bound - 1))
            rows.append(["gap", gap, "the most that a better choice could save"])
    rows.append(["status", Text(found.status.value, STATUS_STYLES[found.status]), _BANKS_IN_WORDS[found.status]])
    facts_shown: list[tuple[str, Cell]] = [("placed", clean(title)), ("asked for", "the least time to move all bytes")]
    if written is not None:
        facts_shown.append(("written", clean(str(written))))
    return Report(facts(facts_shown), indented(columns(["", "", ""], rows, right=(1,))))


def banks_summary(found: BankAllocation, *, banks: Sequence[Bank]) -> dict[str, Any]:
    """Return the summary of `remat allocate --bank`."""
    used = found.used or (None,) * len(banks)
    return {
        "status": str(found.status),
        "banks": [
            {"name": bank.name, "bytes": bank.bytes, "speed": float(bank.speed), "used_bytes": bytes_used}
            for bank, bytes_used in zip(banks, used, strict=True)
        ],
        "traffic_time": None if found.time is None else float(found.time),
        "bound_traffic_time": float(found.bound),
        "basis": str(found.basis),
        "interrupted": found.interrupted,
    }


_BANKS_IN_WORDS = {
    Status.OPTIMAL: "no choice of banks takes less time",
    Status.FEASIBLE: "the fastest that was found",
    Status.INFEASIBLE: "proven: the banks cannot hold everything",
    Status.UNKNOWN: "none was found that fits; it is not proven that none exists",
}


def _proof(basis: Basis) -> str:
    who = "" if basis is Basis.COUNTED else f"{basis.value.replace('-', ' ')} "
    return f"{who}{phrasing.BASES[basis]}"


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
