"""`remat inspect --division`: the division tree as a report and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calls import Remat

Skips = Sequence[tuple[int, int]]


def write_chain(path: Path, length: int, skips: Skips = ()) -> Path:
    """A forward chain of ops `op0`, `op1`, ..., 100 bytes each; for a skip (i, j), `opj` also reads what `opi` made."""
    reads = [[f"y{i - 1}" if i else "x"] for i in range(length)]
    for source, target in skips:
        reads[target].append(f"y{source}")
    graph = {
        "format": "remat.graph/1",
        "name": "chain",
        "kind": "forward",
        "tensors": [{"name": name, "bytes": 100} for name in ["x", *(f"y{i}" for i in range(length))]],
        "ops": [
            {"name": f"op{i}", "type": "Test", "inputs": inputs, "outputs": [f"y{i}"], "time": 1}
            for i, inputs in enumerate(reads)
        ],
    }
    path.write_text(json.dumps(graph))
    return path


def inspected(remat: Remat, *args: str | Path) -> str:
    """What `remat inspect` prints."""
    ended = remat("inspect", *args)
    assert (ended.code, ended.err) == (0, "")
    return ended.out


@pytest.fixture
def tree(remat: Remat, tmp_path: Path) -> Any:
    """Return the lines of the tree of a chain with skips, heading left out."""

    def lines(length: int, skips: Skips = (), *args: str) -> list[str]:
        path = write_chain(tmp_path / "graph.json", length, skips)
        out = inspected(remat, path, "--division", *args)
        return [line.strip() for line in out.partition("Division tree\n")[2].splitlines()]

    return lines


def test_a_chain_is_one_line(tree: Any) -> None:
    assert tree(2000) == [
        "Segments of the forward ops: 1 linear, 0 branch, 0 complicate.",
        "linear: op0 … op1999 · 2,000 ops in a row · 200.0 kB",
    ]


def test_skips_are_branches_and_ops_between_them_are_in_a_row(tree: Any) -> None:
    assert tree(6, [(1, 4)])[1:] == [
        "linear: graph inputs to results · 6 ops · 600 B",
        "├── op0 … op1 · 2 ops in a row · 200 B",
        "├── branch: op1 to op4 · 2 ops · 200 B",
        "│   ├── a direct edge",
        "│   └── linear: op2 … op3 · 2 ops in a row · 200 B",
        "└── op4 … op5 · 2 ops in a row · 200 B",
    ]


def test_crossing_skips_are_complicate(tree: Any) -> None:
    assert tree(4, [(0, 2), (1, 3)])[1:] == [
        "linear: graph inputs to results · 4 ops · 400 B",
        "├── op0 · 100 B",
        "├── complicate: op0 to op3 · 2 ops · 200 B",
        "│   ├── 2 connecting ops · 200 B",
        "│   └── 5 direct edges",
        "└── op3 · 100 B",
    ]


def test_what_is_long_or_deep_is_cut_short(tree: Any) -> None:
    wide = tree(200, [(i, i + 2) for i in range(0, 198, 2)])
    assert len(wide) < 150
    assert wide[-1] == "└── … 159 more parts: 80 ops, 79 branch"
    deep = tree(200, [(i, 199 - i) for i in range(99)])
    assert len(deep) < 30
    assert any(line.endswith("└── …") for line in deep)


def test_without_a_backward_all_ops_are_divided(tree: Any) -> None:
    assert tree(3, (), "--mode", "inference")[0] == "Segments of all ops: 1 linear, 0 branch, 0 complicate."


def test_it_is_left_out_where_it_is_not_asked_for(remat: Remat, tmp_path: Path) -> None:
    path = write_chain(tmp_path / "graph.json", 3)
    assert "Division" not in inspected(remat, path)
    assert "division" not in json.loads(inspected(remat, path, "--json"))


def test_json_lists_segments_after_their_members(remat: Remat, tmp_path: Path) -> None:
    path = write_chain(tmp_path / "graph.json", 6, [(1, 4)])
    division = json.loads(inspected(remat, path, "--division", "--json"))["division"]
    assert division["ops"] == 6
    assert division["counts"] == {"edge": 8, "linear": 2, "branch": 1, "complicate": 0}
    segments = division["segments"]
    root = segments[division["root"]]
    assert (root["kind"], root["source"], root["target"]) == ("linear", None, None)
    assert (root["joints"], root["ops"], root["bytes"]) == (["op0", "op1", "op4", "op5"], 6, 600)
    assert [segments[member]["kind"] for member in root["members"]] == ["edge", "edge", "branch", "edge", "edge"]
    assert all(member < number for number, segment in enumerate(segments) for member in segment["members"])
