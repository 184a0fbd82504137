"""`remat diff`, and what a failed check says of what grew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.calls import Remat
from tests.places import GRAPHS


@pytest.fixture
def versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A graph, and what became of it: one op more whose output is at the peak, another name, another size."""
    monkeypatch.chdir(tmp_path)
    text = (GRAPHS / "skip_chain.json").read_text()
    graph = json.loads(text)
    large = graph["tensors"][2]
    large["bytes"] *= 2
    graph["tensors"].append({"name": "extra", "bytes": 9_000_000})
    graph["ops"].insert(3, {"name": "extra", "type": "Sigmoid", "inputs": [], "outputs": ["extra"], "time": 5})
    graph["outputs"] = [*graph.get("outputs", []), "extra"]
    Path("old.json").write_text(text)
    Path("new.json").write_text(json.dumps(graph))
    return {"large": large["name"]}


def test_diff_names_what_the_peaks_differ_by(remat: Remat, versions: dict[str, str]) -> None:
    report = remat("diff", "old.json", "new.json")
    assert report.code == 0
    assert "The plain peak grew by" in report.out
    assert "Ops that are new: 1 Sigmoid" in report.out
    summary = remat("diff", "old.json", "new.json", "--json").json
    assert {"op": "extra", "type": "Sigmoid"} in summary["ops"]["new"]
    changes = {change["name"]: change["new_bytes"] - change["old_bytes"] for change in summary["at_peak"]}
    assert changes["extra"] == 9_000_000
    grown = summary["new"]["plain"]["peak_bytes"] - summary["old"]["plain"]["peak_bytes"]
    assert sum(changes.values()) == grown


def test_graphs_that_are_the_same_differ_by_nothing(remat: Remat, versions: dict[str, str]) -> None:
    summary = remat("diff", "old.json", "old.json", "--json").json
    assert summary["at_peak"] == []
    assert summary["ops"] == {"new": [], "gone": [], "of_other_shapes": [], "renamed": 0}


@pytest.mark.parametrize("form", ["table", "json", "junit", "github", "markdown"])
def test_a_failed_check_says_what_grew(remat: Remat, versions: dict[str, str], form: str) -> None:
    Path("remat.yaml").write_text("models: [{name: m, path: model.json, max_regression: 2%}]")
    Path("model.json").write_bytes(Path("old.json").read_bytes())
    first = remat("check")
    assert first.code == 3
    assert "`remat check remat.yaml --update-baseline` writes it" in first.err
    assert remat("check", "--update-baseline").code == 0
    assert remat("check").err == ""
    Path("model.json").write_bytes(Path("new.json").read_bytes())
    ended = remat("check", "--format", form)
    assert ended.code == 3
    said = " ".join(ended.out.split()).replace("&#x27;", "'").replace("\\", "")
    assert "new at the peak: 'extra' (9.000 MB)" in said
    assert "ops added: 1 Sigmoid" in said
    assert "remat diff OLD NEW" in said


def test_a_baseline_of_an_older_version_says_no_more_than_it_knows(remat: Remat, versions: dict[str, str]) -> None:
    Path("remat.yaml").write_text("models: [{name: m, path: new.json, max_regression: 2%}]")
    figures = {"plain_peak_bytes": 1000, "hard_limit_bytes": 1000}
    Path("remat.baseline.json").write_text(json.dumps({"format": "remat.baseline/1", "models": {"m": figures}}))
    ended = remat("check")
    assert ended.code == 3
    assert "at the peak:" not in ended.out


class TestRecording:
    """A step beside a recorded snapshot of it."""

    UNET = ("diff", GRAPHS / "unet.onnx")

    @pytest.fixture
    def snapshot(self, remat: Remat, tmp_path: Path) -> Path:
        schedule, path = tmp_path / "plain.json", tmp_path / "plain.pickle"
        asked = ("--budget", "100%", "--planner", "keep_all", "-o", schedule, "-q")
        assert remat("plan", GRAPHS / "unet.onnx", "--dim", "batch=1", *asked).code == 0
        assert remat("report", GRAPHS / "unet.onnx", schedule, "-o", path, "-q").code == 0
        return path

    def test_what_was_recorded_is_recognised(self, remat: Remat, snapshot: Path) -> None:
        found = remat(*self.UNET, snapshot, "--dim", "batch=1", "--json").json
        assert found["recognised"] > 0.95
        assert found["predicted"]["peak_bytes"] == found["recorded"]["peak_bytes"]
        printed = remat(*self.UNET, snapshot, "--dim", "batch=1")
        assert "as predicted." in printed.out
        assert "At the peaks" in printed.out

    def test_recording_of_other_sizes_is_told(self, remat: Remat, snapshot: Path) -> None:
        printed = remat(*self.UNET, snapshot, "--dim", "batch=7")
        assert printed.code == 0
        assert "is this a recording of the same step" in " ".join(printed.out.split())
        assert "is not in the recording" in " ".join(printed.out.split())

    def test_recording_in_front_is_refused(self, remat: Remat, snapshot: Path) -> None:
        ended = remat("diff", snapshot, GRAPHS / "unet.onnx")
        assert ended.code == 2
        assert "name what was recorded first" in ended.err

    @pytest.mark.parametrize("content", [b"hello", b"\x80\x04}.", b"\x80\x04."])
    def test_file_that_is_no_snapshot_is_refused(self, remat: Remat, tmp_path: Path, content: bytes) -> None:
        (path := tmp_path / "bad.pickle").write_bytes(content)
        ended = remat(*self.UNET, path)
        assert ended.code == 6
        assert "is no memory snapshot" in ended.err
