"""The report of `remat measure`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import RenderableType

from remat_cli.costs import Measurements
from remat_cli.planning.summary import graph_summary
from remat_cli.prepare import Prepared
from remat_cli.reports.safe_text import Report, clean, shorten
from remat_cli.reports.terminal.layout import columns, facts, section
from remat_cli.reports.terminal.plan import graph_title, notes_section
from remat_cli.units import format_bytes, format_share, format_time

_SHOWN = 8
_LONGEST_NAME = 36


def measurements_report(prepared: Prepared, measured: Measurements, output: Path) -> Report:
    """Return the report on the slowest ops and the largest workspaces."""
    times = {op.name: measured.times_ns.get(op.name, 0) for op in prepared.graph.ops}
    whole = max(1, sum(times.values()))
    slowest = sorted(times.items(), key=lambda item: -item[1])[:_SHOWN]
    hungry = sorted(measured.workspace_bytes.items(), key=lambda item: -item[1])[:_SHOWN]
    parts: list[RenderableType] = [
        facts(
            [
                ("graph", graph_title(prepared)),
                ("run by", clean(measured.machine)),
                ("all ops", format_time(whole, "ns")),
                ("written", clean(str(output))),
            ]
        ),
        section(
            "The most time",
            columns(
                ["op", "time", "of all", "part of"],
                [[_op(name), format_time(time, "ns"), format_share(time / whole), _part(prepared, name)]
                 for name, time in slowest],
                right=(1, 2),
            ),
        ),
    ]  # fmt: skip
    if hungry and hungry[0][1]:
        rows = [[_op(name), format_bytes(size), _part(prepared, name)] for name, size in hungry if size]
        parts.append(section("The largest workspace of a kernel", columns(["op", "size", "part of"], rows, right=(1,))))
    return Report(*parts, *notes_section(prepared.notes))


def _op(name: str) -> str:
    return shorten(name, _LONGEST_NAME)


def _part(prepared: Prepared, name: str) -> str:
    op = prepared.graph.op[name]
    return shorten(op.module or op.source or "", _LONGEST_NAME)


def measurements_summary(prepared: Prepared, measured: Measurements, output: Path) -> dict[str, Any]:
    """Return the summary of `remat measure`."""
    return {
        "graph": graph_summary(prepared),
        "machine": measured.machine,
        "time_ns": sum(measured.times_ns.get(op.name, 0) for op in prepared.graph.ops),
        "largest_workspace_bytes": max(measured.workspace_bytes.values(), default=0),
        "output": str(output),
        "notes": list(prepared.notes),
    }
