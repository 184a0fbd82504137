"""The report of `remat allocate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from remat_cli.core.problem import Basis, Status
from remat_cli.reports import phrasing
from remat_cli.reports.safe_text import Report, clean
from remat_cli.reports.terminal.layout import Cell, bullets, columns, facts, indented, section
from remat_cli.reports.terminal.plan import STATUS_STYLES
from remat_cli.units import format_bytes, format_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remat_cli.allocation.banks import BankAllocation
    from remat_cli.allocation.portfolio import Allocation
    from remat_cli.core.arena import Bank


def allocation_report(allocation: Allocation, title: str, *, capacity: int | None, written: Path | None) -> Report:
    """Return the report of `remat allocate`.

    Args:
        allocation: the result of the search.
        title: name of the buffers or schedule.
        capacity: requested capacity of the arena, in bytes; None for the smallest arena.
        written: the file with the addresses; None if none was written.
    """
    asked = "the smallest" if capacity is None else f"at most {_exactly(capacity)}"
    rows: list[list[Cell]] = []
    if allocation.bytes is not None:
        rows.append(["arena", _exactly(allocation.bytes), "all that is in memory together lies apart"])
    rows.append(["bound", _exactly(allocation.bound_bytes), f"no arena is smaller; {_proof(allocation.basis)}"])
    if allocation.bytes is not None and allocation.bytes > allocation.bound_bytes:
        gap = format_share(allocation.bytes / allocation.bound_bytes - 1)
        rows.append(["gap", gap, "the most that a better arrangement could save"])
    rows.append(
        ["status", Text(allocation.status.value, STATUS_STYLES[allocation.status]), _in_words(allocation, capacity)]
    )
    facts_shown: list[tuple[str, Cell]] = [("placed", clean(title)), ("asked for", asked)]
    if written is not None:
        facts_shown.append(("written", clean(str(written))))
    notes = [section("Next", bullets([allocation.note]))] if allocation.note else []
    return Report(facts(facts_shown), indented(columns(["", "", ""], rows, right=(1,))), *notes)


def allocation_summary(allocation: Allocation, *, capacity: int | None) -> dict[str, Any]:
    """Return the summary of `remat allocate`."""
    return {
        "status": str(allocation.status),
        "capacity_bytes": capacity,
        "arena_bytes": allocation.bytes,
        "bound_bytes": allocation.bound_bytes,
        "basis": str(allocation.basis),
        "interrupted": allocation.interrupted,
    }


def banks_report(allocation: BankAllocation, title: str, *, banks: Sequence[Bank], written: Path | None) -> Report:
    """Return the report of `remat allocate --bank`.

    Arguments are as for `allocation_report`.
    """
    rows: list[list[Cell]] = []
    for index, bank in enumerate(banks):
        said = f"of {_exactly(bank.bytes)}, speed {float(bank.speed):g}"
        used = "" if allocation.used is None else format_bytes(allocation.used[index])
        rows.append([clean(bank.name), used, said])
    if allocation.time is not None:
        rows.append(["time", format_bytes(round(allocation.time)), "to move all bytes, in bytes of the first bank"])
        rows.append(
            [
                "bound",
                format_bytes(round(allocation.bound)),
                f"no choice of banks takes less; {_proof(allocation.basis)}",
            ]
        )
        if allocation.time > allocation.bound:
            gap = format_share(float(allocation.time / allocation.bound - 1))
            rows.append(["gap", gap, "the most that a better choice could save"])
    rows.append(
        ["status", Text(allocation.status.value, STATUS_STYLES[allocation.status]), _BANKS_IN_WORDS[allocation.status]]
    )
    facts_shown: list[tuple[str, Cell]] = [("placed", clean(title)), ("asked for", "the least time to move all bytes")]
    if written is not None:
        facts_shown.append(("written", clean(str(written))))
    return Report(facts(facts_shown), indented(columns(["", "", ""], rows, right=(1,))))


def banks_summary(allocation: BankAllocation, *, banks: Sequence[Bank]) -> dict[str, Any]:
    """Return the summary of `remat allocate --bank`."""
    used = allocation.used or (None,) * len(banks)
    return {
        "status": str(allocation.status),
        "banks": [
            {"name": bank.name, "bytes": bank.bytes, "speed": float(bank.speed), "used_bytes": bytes_used}
            for bank, bytes_used in zip(banks, used, strict=True)
        ],
        "traffic_time": None if allocation.time is None else float(allocation.time),
        "bound_traffic_time": float(allocation.bound),
        "basis": str(allocation.basis),
        "interrupted": allocation.interrupted,
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


def _in_words(allocation: Allocation, capacity: int | None) -> str:
    match allocation.status:
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
