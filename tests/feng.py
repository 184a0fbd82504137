"""The public data of Feng & Huang 2021: computation graphs with optimal costs, where REMAT_DATA names the folder."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from remat_cli.planners.published.acg.division_tree import ComputationGraph


@dataclass(frozen=True)
class PublishedNetwork:
    """A network, and what the official solver says of it.

    Attributes:
        name: of its file.
        graph: its vertices with their sizes in bytes.
        optimal_cost: stored bytes + those of the largest segment, at the least.
        official_seconds: of the CPU, for the official solver.
    """

    name: str
    graph: ComputationGraph
    optimal_cost: int
    official_seconds: float


def published_files() -> list[Path]:
    """Return the files that there are."""
    return sorted(Path(os.environ["REMAT_DATA"], "feng").glob("*.json")) if "REMAT_DATA" in os.environ else []


def read_published(path: Path) -> PublishedNetwork:
    """Read one of them."""
    data = json.loads(path.read_text())
    number = {node["id"]: place for place, node in enumerate(data["nodes"])}
    graph = ComputationGraph(
        costs=tuple(node["cost"] for node in data["nodes"]),
        edges=tuple((number[u], number[v]) for u, v in data["edges"]),
        source=number[data["source"]],
        target=number[data["target"]],
    )
    return PublishedNetwork(path.stem, graph, data["optimal_cost"], data["official_seconds"])
