"""A plan as Model Explorer's node data, on the user's own graph.

Bytes are values, decisions are colours. Model Explorer finds a node by its id, or by the name of an output; the data
have both if they differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from remat_cli.reports.timeline import Run
from remat_cli.reports.viewers.decisions import Decided, Decision, decided

COLOURS = {
    Decision.KEEP: "#2e7d32",
    Decision.FREE: "#9e9e9e",
    Decision.RECOMPUTE: "#ef6c00",
    Decision.OFFLOAD: "#1565c0",
    Decision.SPLIT: "#6a1b9a",
}
_TEXT = "#ffffff"
_NAME = "remat, bytes (green keep, grey free, orange recompute, blue offload, violet split)"


def nodes_bytes(run: Run) -> bytes:
    """Return the node data of a run."""
    results: dict[str, dict[str, Any]] = {}
    for item in decided(run):
        entry = {"value": item.bytes, "bgColor": COLOURS[item.main], "textColor": _TEXT}
        for key in (item.op, *item.outputs):
            results.setdefault(key, entry)
    return (json.dumps({"name": _NAME, "results": results}, indent=1, sort_keys=True) + "\n").encode("ascii")


def node_facts(run: Run) -> Mapping[str, Mapping[str, str]]:
    """Return the decisions on each forward op, by the op's outputs."""
    return {name: _facts(item) for item in decided(run) for name in item.outputs}


def _facts(item: Decided) -> Mapping[str, str]:
    facts = {"decision": str(item), "bytes": str(item.bytes)}
    if item.recomputed_at:
        facts["recomputed_at"] = ", ".join(f"step {index}" for index in item.recomputed_at)
    return facts
