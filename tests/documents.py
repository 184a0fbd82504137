"""Graphs in the native format, as a user would write them, and schedules that somebody has changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remat_cli.core.graph import Graph
from remat_cli.formats.native import graph_bytes


def chain_document(length: int = 12, *, size: int = 100) -> dict[str, Any]:
    """A chain of ops to train, in the native format: the plain run keeps all that they make."""
    names = ["x", *(f"y{i}" for i in range(length))]
    return {
        "format": "remat.graph/1",
        "name": "chain",
        "kind": "forward",
        "tensors": [{"name": name, "bytes": size} for name in names],
        "ops": [
            {"name": f"op{i}", "type": "Relu", "inputs": [names[i]], "outputs": [names[i + 1]], "time": 10}
            for i in range(length)
        ],
    }


def to_document(graph: Graph) -> dict[str, Any]:
    """A graph as the JSON document that is written of it."""
    document: dict[str, Any] = json.loads(graph_bytes(graph))
    return document


def changed(schedule: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write a schedule file with something changed beside it."""
    document = json.loads(schedule.read_text())
    change(document)
    path = schedule.with_name("changed.json")
    path.write_text(json.dumps(document))
    return path
