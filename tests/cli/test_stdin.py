"""Standard input wherever a file is read, and what takes a name or a budget more than one way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calls import Remat
from tests.places import GRAPHS, ROOT

GRAPH = GRAPHS / "skip_chain.json"


def with_stdin(content: bytes, *args: str | Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "remat_cli", *map(str, args)]
    return subprocess.run(command, input=content, capture_output=True, check=False)


def test_a_graph_a_schedule_and_a_config_come_from_stdin(tmp_path: Path) -> None:
    planned = with_stdin(GRAPH.read_bytes(), "plan", "-", "--budget", "80%", "-c", "dtr", "-o", "-")
    assert planned.returncode == 0
    assert with_stdin(planned.stdout, "verify", GRAPH, "-", "-q").returncode == 0
    assert with_stdin(b"{}", "verify", GRAPH, "-", "-q").returncode == 6
    configured = with_stdin(b"planner: dtr\nbudget: 80%\n", "plan", GRAPH, "-c", "-", "-o", tmp_path / "s.json", "-q")
    assert configured.returncode == 0
    assert (tmp_path / "s.json").read_bytes() == planned.stdout


def test_a_device_and_measurements_come_from_stdin() -> None:
    call = ("convert", GRAPHS / "unet.onnx", "--dim", "batch=2", "-o", "-")
    profile = (ROOT / "configs/devices/a100.yaml").read_bytes()
    named, given = with_stdin(b"", *call, "--device", "a100"), with_stdin(profile, *call, "--device", "-")
    assert named.returncode == given.returncode == 0
    assert given.stdout == named.stdout
    assert given.stdout != with_stdin(b"", *call).stdout
    measured = with_stdin(b"{", *call, "--cost-model", "measured", "--measurements", "-")
    assert b"stdin:1: no valid YAML" in measured.stderr


def test_an_allocated_schedule_comes_from_stdin() -> None:
    planned = with_stdin(GRAPH.read_bytes(), "plan", "-", "--budget", "80%", "-c", "dtr", "-o", "-")
    assert with_stdin(planned.stdout, "allocate", GRAPH, "-", "-q").returncode == 0


def test_buffers_come_from_stdin() -> None:
    placed = with_stdin(b"id,lower,upper,size\na,0,2,4\nb,1,3,4\n", "allocate", "-", "-o", "-", "-q")
    assert placed.stdout.splitlines()[1:] == [b"a,0,2,4,0", b"b,1,3,4,4"]
    refused = with_stdin(b"id,lower,upper\n", "allocate", "-")
    assert refused.returncode == 6
    assert refused.stderr.startswith(b"error: stdin: not one column 'size'")


def test_a_project_file_comes_from_stdin_and_lies_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "g.json").write_bytes(GRAPH.read_bytes())
    monkeypatch.chdir(tmp_path)
    ended = with_stdin(b"models: [{path: g.json, max_peak: 1kB, max_regression: 1%}]", "check", "-", "--json")
    assert ended.returncode == 3
    assert json.loads(ended.stdout)["project"] == "stdin"
    assert b"`remat check - --update-baseline` writes it" in ended.stderr
    wrong = with_stdin(b"models: [{path: g.json, budgt: 80%}]", "check", "-")
    assert wrong.stderr.startswith(b"error: stdin:1: budgt: unknown key")


def test_a_manifest_and_a_config_of_a_batch_come_from_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "g.json").write_bytes(GRAPH.read_bytes())
    monkeypatch.chdir(tmp_path)
    manifest = b"{graphs: [g.json], budgets: [80%], configs: [dtr]}"
    ended = with_stdin(manifest, "batch", "-", "-o", "-", "-q")
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["graph"] == "g.json"
    configured = with_stdin(b"planner: dtr", "batch", "g.json", "-c", "-", "--budget", "80%", "-o", "-", "-q")
    assert json.loads(configured.stdout)["planner"] == "dtr"
    alone = with_stdin(manifest, "batch", "g.json", "-")
    assert alone.stderr.startswith(b"error: stdin is a manifest, and stands alone")


def test_what_is_said_of_stdin_names_no_temporary_file(tmp_path: Path) -> None:
    refused = with_stdin(GRAPH.read_bytes(), "fit", "-", "--dim", "batch", "--budget", "1GB")
    assert refused.stderr.startswith(b"error: stdin: sizes in a JSON graph are fixed")
    planned = with_stdin(GRAPH.read_bytes(), "plan", "-", "--budget", "80%", "-c", "dtr", "-o", tmp_path / "s.json")
    assert b"`remat report - " in b" ".join(planned.stdout.split())


def test_stdin_is_read_once() -> None:
    ended = with_stdin(GRAPH.read_bytes(), "diff", "-", "-")
    assert ended.returncode == 2
    assert b"stdin can be read only once" in ended.stderr


def test_an_empty_stdin_is_told() -> None:
    ended = with_stdin(b"", "inspect", "-")
    assert ended.returncode == 6
    assert b"is empty" in ended.stderr


def test_one_planner_is_shown(remat: Remat) -> None:
    assert [card["name"] for card in remat("planners", "rotor", "--json").json["planners"]] == ["rotor"]
    shown = remat("planners", "rotor").out
    assert shown.startswith("rotor\n")
    assert len(shown) < len(remat("planners").out) / 4
    refused = remat("planners", "rotr")
    assert refused.code == 2
    assert "did you mean 'rotor'?" in refused.err


@pytest.mark.parametrize("verb", ["compare", "sweep"])
def test_budget_and_budgets_are_the_same(remat: Remat, verb: str) -> None:
    call = (verb, GRAPH, "--planner", "dtr", "--json")
    points = [remat(*call, option, "80%").json for option in ("--budget", "--budgets")]
    for point in points:
        for entry in point.get("graphs", []):
            for result in entry["results"]:
                result.pop("seconds")
        for curve in point.get("curves", []):
            for result in curve["points"]:
                result.pop("seconds", None)
    assert points[0] == points[1]
