"""The report of `remat fuse`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from remat_cli.reports.safe_text import Report, clean
from remat_cli.reports.terminal.layout import bullets, facts, section

if TYPE_CHECKING:
    from remat_cli.runtime.onnx.fuse import Fused


def fusion_report(model: Path, fused: Fused, output: Path) -> Report:
    """Return the report of `remat fuse`."""
    ops = ", ".join(f"{count:,} {clean(name.rpartition('.')[2])}" for name, count in sorted(fused.fused.items()))
    written = clean(str(output))
    return Report(
        facts(
            [
                ("model", clean(str(model))),
                ("fused by", f"onnxruntime {clean(fused.version)}"),
                ("nodes", f"{fused.nodes_before:,} before, {len(fused.proto.graph.node):,} now"),
                ("its own ops", ops or "none"),
                ("written", written),
            ]
        ),
        section("Next", bullets([f"`remat plan {quote(written)} --mode inference --budget 60% -o schedule.json`"])),
    )


def fusion_summary(model: Path, fused: Fused, output: Path) -> dict[str, Any]:
    """Return the summary of `remat fuse`."""
    return {
        "model": str(model),
        "onnxruntime": fused.version,
        "nodes": {"before": fused.nodes_before, "after": len(fused.proto.graph.node)},
        "fused": fused.fused,
        "output": str(output),
    }
