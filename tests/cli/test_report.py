"""`remat report` and `remat plan --html` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remat_cli.units import format_share
from tests.cli.calls import Remat
from tests.places import GRAPHS

SKIP_CHAIN = GRAPHS / "skip_chain.json"


@pytest.fixture
def schedule(remat: Remat, tmp_path: Path) -> Path:
    path = tmp_path / "s.json"
    assert remat("plan", SKIP_CHAIN, "--budget", "80%", "-o", path, "-q", "--planner", "approx_dp").code == 0
    return path


def test_plan_writes_a_page_beside_the_schedule(remat: Remat, tmp_path: Path) -> None:
    schedule, page = tmp_path / "s.json", tmp_path / "r.html"
    ended = remat("plan", SKIP_CHAIN, "--budget", "80%", "-o", schedule, "--html", page)
    assert (ended.code, ended.err) == (0, "")
    assert page.read_text().startswith("<!doctype html>")
    assert "The plan fits" in ended.out
    assert "The plan fits" in page.read_text()
    assert schedule.exists()


def test_a_plan_that_does_not_exist_has_a_page_too(remat: Remat, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    assert remat("plan", SKIP_CHAIN, "--budget", "1%", "--html", page, "-q").code == 3
    assert "What could be done" in page.read_text()


def test_only_one_thing_goes_to_stdout(remat: Remat) -> None:
    ended = remat("plan", SKIP_CHAIN, "--budget", "80%", "--html", "-", "-o", "-")
    assert (ended.code, ended.out) == (2, "")
    assert "stdout takes one file, not -o and --html" in ended.err


def test_report_writes_a_page_and_says_what_verify_says(remat: Remat, schedule: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    ended = remat("report", schedule, SKIP_CHAIN, "-o", page)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == remat("verify", SKIP_CHAIN, schedule).out
    assert "The schedule holds" in page.read_text()
    summary = remat("report", schedule, SKIP_CHAIN, "-o", page, "--json").json
    assert summary.pop("report") == str(page)
    assert summary == remat("verify", SKIP_CHAIN, schedule, "--json").json


def test_the_page_shows_bound_and_gap(remat: Remat, tmp_path: Path) -> None:
    schedule, page = tmp_path / "s.json", tmp_path / "r.html"
    assert remat("plan", SKIP_CHAIN, "--budget", "80%", "-o", schedule, "-q").code == 0
    document = json.loads(schedule.read_text())
    assert document["overhead"] > 0
    document["status"], document["bound"]["overhead"] = "feasible", 0.0
    schedule.write_text(json.dumps(document))
    assert remat("report", schedule, SKIP_CHAIN, "-o", page).code == 0
    text = page.read_text()
    assert "<th scope=row>bound</th>" in text
    gap = format_share(document["overhead"])
    assert f"<th scope=row>gap</th><td class=n></td><td class=n>{gap}</td>" in text
    del document["bound"]
    schedule.write_text(json.dumps(document))
    remat("report", schedule, SKIP_CHAIN, "-o", page)
    assert "scope=row>gap<" not in page.read_text()


def test_report_goes_to_stdout_too(remat: Remat, schedule: Path) -> None:
    ended = remat("report", schedule, SKIP_CHAIN, "-o", "-")
    assert ended.out.startswith("<!doctype html>")
    assert "The schedule holds" in ended.err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"budget_bytes": 1}, "is above the budget"),
        ({"time": 1}, "the file says time 1"),
        ({"peak_bytes": 7}, "says peak"),
    ],
)
def test_what_does_not_hold_is_shown_and_fails(
    remat: Remat, schedule: Path, tmp_path: Path, change: dict[str, int], says: str
) -> None:
    schedule.write_text(json.dumps(json.loads(schedule.read_text()) | change))
    page = tmp_path / "r.html"
    ended = remat("report", schedule, SKIP_CHAIN, "-o", page)
    assert ended.code == 5
    assert says in ended.err
    assert page.exists()


def test_a_schedule_that_does_not_replay_leaves_no_page(remat: Remat, schedule: Path, tmp_path: Path) -> None:
    document = json.loads(schedule.read_text())
    schedule.write_text(json.dumps(document | {"steps": document["steps"][1:]}))
    page = tmp_path / "r.html"
    ended = remat("report", schedule, SKIP_CHAIN, "-o", page)
    assert ended.code == 5
    assert "step 0" in ended.err
    assert not page.exists()


def test_graph_and_schedule_come_in_either_order(remat: Remat, schedule: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one.html", tmp_path / "other.html"
    assert remat("report", SKIP_CHAIN, schedule, "-o", one).code == 0
    assert remat("report", schedule, SKIP_CHAIN, "-o", other).code == 0
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((SKIP_CHAIN, "no.json", "-o", "r.html"), 6, "no.json"),
        (("no.json", "SCHEDULE", "-o", "r.html"), 6, "no.json"),
        ((SKIP_CHAIN, SKIP_CHAIN, "-o", "r.html"), 6, "unknown format"),
        (("SCHEDULE", GRAPHS / "unet.json", "-o", "r.html"), 6, "another graph"),
        (("SCHEDULE", SKIP_CHAIN, "-o", "no/r.html"), 2, "cannot be written"),
        (("SCHEDULE", SKIP_CHAIN, "-o", "r.html", "--budget", "min"), 2, "--budget min"),
        (("SCHEDULE", SKIP_CHAIN), 2, "-o"),
    ],
)
def test_wrong_calls_say_what_is_wrong(
    remat: Remat,
    schedule: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str | Path, ...],
    code: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = remat("report", *(schedule if argument == "SCHEDULE" else argument for argument in arguments))
    assert ended.code == code
    assert says in ended.err
    assert not (tmp_path / "r.html").exists()


UNET = GRAPHS / "unet.onnx"


@pytest.fixture
def unet_schedule(remat: Remat, tmp_path: Path) -> Path:
    path = tmp_path / "u.json"
    assert remat("plan", UNET, "--dim", "batch=2", "--budget", "60%", "-o", path, "-q", "-c", "min_cut").code == 0
    return path


@pytest.mark.parametrize("name", ["p.trace.json", "p.json.gz", "p.pickle", "p.nodes.json", "p.onnx"])
def test_form_is_guessed_from_the_name_or_said(remat: Remat, unet_schedule: Path, tmp_path: Path, name: str) -> None:
    guessed, said = tmp_path / name, tmp_path / "x" / f"report{'.gz' if name.endswith('.gz') else ''}"
    said.parent.mkdir()
    forms = {"p.trace.json": "trace", "p.json.gz": "trace", "p.pickle": "snapshot", "p.nodes.json": "nodes"}
    assert remat("report", UNET, unet_schedule, "-o", guessed, "-q").code == 0
    assert remat("report", UNET, unet_schedule, "-o", said, "--as", forms.get(name, "onnx"), "-q").code == 0
    assert guessed.read_bytes() == said.read_bytes()


def test_a_snapshot_is_inspected(remat: Remat, unet_schedule: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.pickle"
    assert remat("report", UNET, unet_schedule, "-o", path, "-q").code == 0
    (device,) = remat("inspect", path, "--json").json["devices"]
    assert device["peak_bytes"] == remat("verify", UNET, unet_schedule, "--json").json["peak_bytes"]
    assert "fragmentation" in remat("inspect", path).out
    assert remat("inspect", path, "--division").code == 2


def test_nodes_of_the_model_carry_the_plan(remat: Remat, unet_schedule: Path, tmp_path: Path) -> None:
    import onnx

    written = tmp_path / UNET.name  # a graph has the name of its file
    assert remat("report", UNET, unet_schedule, "-o", written, "-q").code == 0
    said = [
        {entry.key: entry.value for entry in node.metadata_props}
        for node in onnx.load(str(written), load_external_data=False).graph.node
    ]
    decisions = [entries["remat.decision"] for entries in said if "remat.decision" in entries]
    assert len(decisions) > 0.9 * len(said)
    assert {"keep", "recompute"} <= set(decisions)
    assert all(("remat.recomputed_at" in entries) == (entries.get("remat.decision") == "recompute") for entries in said)
    # It is still the user's model: it is read, and planned, as before.
    assert remat("verify", written, unet_schedule, "-q").code == 0


def test_schedule_above_its_budget_has_every_form_too(remat: Remat, unet_schedule: Path, tmp_path: Path) -> None:
    written = tmp_path / "p.trace.json"
    assert remat("report", UNET, unet_schedule, "-o", written, "--budget", "10%", "-q").code == 5
    events = json.loads(written.read_text())["traceEvents"]
    assert "budget" in {event["name"] for event in events}


@pytest.mark.parametrize(
    ("graph", "name", "says"),
    [
        (SKIP_CHAIN, "p.json", "several forms are JSON"),
        (SKIP_CHAIN, "p.onnx", "is no ONNX model: there are no nodes to annotate"),
    ],
)
def test_form_that_cannot_be_written_is_refused(
    remat: Remat, schedule: Path, tmp_path: Path, graph: Path, name: str, says: str
) -> None:
    ended = remat("report", graph, schedule, "-o", tmp_path / name)
    assert ended.code == 2
    assert says in ended.err
    assert not (tmp_path / name).exists()
