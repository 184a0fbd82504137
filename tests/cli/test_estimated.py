"""Sizes that are guesses are marked in whatever a command shows, writes and prints as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calls import Remat
from tests.unit.formats.onnx.models import Model, float_input, node

READ = ("--mode", "inference", "--dim", "N=4")
COMMANDS = (
    ("inspect", "blur.onnx", *READ),
    ("plan", "blur.onnx", *READ, "--budget", "100%"),
    ("budget", "blur.onnx", *READ),
    ("sweep", "blur.onnx", *READ, "--budgets", "100%"),
    ("compare", "blur.onnx", *READ, "--budget", "100%", "--planner", "keep_all"),
    ("fit", "blur.onnx", "--mode", "inference", "--dim", "N", "--budget", "1kB"),
    ("diff", "blur.onnx", "blur.onnx", *READ),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model of an op that remat does not know."""
    nodes = [node("Blur", ["x"], ["a"], "blur", domain="com.acme"), node("Exp", ["a"], ["y"], "exp")]
    (tmp_path / "blur.onnx").write_bytes(Model(nodes, inputs=[float_input("x", "N", 3)]).proto().SerializeToString())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values_of(name: str, document: Any) -> list[Any]:
    """Return all that stands under a name, however deep."""
    if isinstance(document, list):
        return [found for each in document for found in values_of(name, each)]
    if not isinstance(document, dict):
        return []
    own = [document[name]] if name in document else []
    return own + [found for each in document.values() for found in values_of(name, each)]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_reports_and_json_say_so(command: tuple[str, ...], remat: Remat) -> None:
    ended = remat(*command)
    assert ended.code == 0, ended.err
    assert "estimated sizes" in ended.out
    said = values_of("estimated", json.loads(remat(*command, "--json").out))
    assert said
    assert all(said)


def test_files_say_so(folder: Path, remat: Remat) -> None:
    assert "if the estimated sizes hold: it peaks at" in remat(*COMMANDS[1], "-o", "schedule.json").out
    assert json.loads((folder / "schedule.json").read_text())["graph"]["estimated"] is True
    assert "estimated sizes" in remat("verify", "blur.onnx", "schedule.json").out
    remat(*COMMANDS[3], "--csv", "sweep.csv")
    remat(*COMMANDS[4], "--csv", "compare.csv", "--markdown", "compare.md")
    for table in ("sweep.csv", "compare.csv", "compare.md"):
        assert "estimated" in (folder / table).read_text()


@pytest.mark.usefixtures("folder")
def test_batch_says_so(remat: Remat) -> None:
    ended = remat("batch", "blur.onnx", *READ, "--budget", "100%", "-o", "results.jsonl")
    assert "optimal, estimated" in ended.out, ended.err
    assert json.loads(Path("results.jsonl").read_text())["estimated"] is True


def test_known_sizes_are_not_marked(folder: Path, remat: Remat) -> None:
    model = Model([node("Exp", ["x"], ["y"])], inputs=[float_input("x", "N", 3)])
    (folder / "blur.onnx").write_bytes(model.proto().SerializeToString())
    assert "estimated" not in remat(*COMMANDS[1], "-o", "schedule.json").out
    assert "estimated" not in (folder / "schedule.json").read_text()
