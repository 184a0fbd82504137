"""The optimizer's update in the plan, as a user asks for it: on every verb that plans, in files, and replayed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from remat_cli.formats.native import graph_bytes
from tests.cli.calls import Remat
from tests.graphs import updating_chain
from tests.unit.formats.onnx.models import Model, float_input, node, weight

UPDATE = ("--update", "--optimizer", "adam", "--device", "a100")
MOVES = ("--offload", "--planner", "offload", "--option", "time_limit=1")


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A chain of six products with large weights."""
    monkeypatch.chdir(tmp_path)
    names = ["x", *(f"h{i}" for i in range(1, 6)), "y"]
    nodes = [node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(6)]
    stored = [weight(f"w{i}", 256, 256) for i in range(6)]
    return Model(nodes, inputs=[float_input("x", 16, 256)], stored=stored).save(tmp_path)


def test_inspect_shows_the_parts_of_the_memory_and_the_update(remat: Remat, model: Path) -> None:
    shown = remat("inspect", model, *UPDATE)
    assert (shown.code, "Memory by part" in shown.out, "optimizer state" in shown.out) == (0, True, True)
    assert "6 update" in shown.out
    inspected = remat("inspect", model, *UPDATE, "--json").json
    assert inspected["ops"] == {"forward": 6, "backward": 7, "update": 6}
    assert inspected["parts"]["optimizer_state"]["most_bytes"] == 2 * 6 * 256 * 256 * 4


def test_plan_with_moves_is_written_replayed_and_shown(remat: Remat, model: Path) -> None:
    planned = remat("plan", model, *UPDATE, *MOVES, "--budget", "50%", "-o", "s.json", "--json")
    assert planned.code == 0, planned.err
    assert planned.json["link"]["to_host"]["bytes"] > 0
    file = json.loads(Path("s.json").read_text())
    assert file["graph"]["options"]["update"] is True
    assert set(file["on_host"]) <= {f"w{i}{end}" for i in range(6) for end in ("", ".state")}
    verified = remat("verify", model, "s.json", "--json")
    assert (verified.code, verified.json["peak_bytes"]) == (0, planned.json["peak_bytes"])
    for form in ("html", "trace", "snapshot", "nodes"):
        assert remat("report", model, "s.json", "--as", form, "-o", f"r.{form}").code == 0, form
    assert "Memory by part" in Path("r.html").read_text()
    allocated = pickle.loads(Path("r.snapshot").read_bytes())["device_traces"][0]
    assert sum(event["action"] == "alloc" for event in allocated) > 0


@pytest.mark.parametrize(
    "call",
    [
        ("budget",),
        ("sweep", "--budgets", "90%,100%"),
        ("compare", "--budget", "100%", "--planners", "dtr,min_cut"),
        ("fit", "--budget", "10MB"),
    ],
    ids=lambda call: call[0],
)
def test_verbs_take_the_update(remat: Remat, tmp_path: Path, call: tuple[str, ...]) -> None:
    nodes = [node("MatMul", ["x", "w0"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "w1"], ["y"])]
    stored = [weight(f"w{i}", 64, 64) for i in range(2)]
    (tmp_path / "free").mkdir()
    free = Model(nodes, inputs=[float_input("x", "batch", 64)], stored=stored).save(tmp_path / "free")
    dim = ("--dim", "batch") if call[0] == "fit" else ("--dim", "batch=64")
    answered = remat(call[0], free, *call[1:], *dim, *UPDATE)
    assert answered.code == 0, answered.err or answered.out


def test_json_graph_with_updates_is_planned_as_it_is(remat: Remat) -> None:
    Path("g.json").write_bytes(graph_bytes(updating_chain(4)))
    planned = remat("plan", "g.json", "--budget", "80%", "--offload", "--link-bandwidth", "1", "--json")
    assert planned.code == 0, planned.err
    twice = remat("plan", "g.json", "--budget", "80%", "--update")
    assert (twice.code, "has updates already" in twice.err) == (6, True)


def test_budget_below_the_residents_says_that_they_could_move(remat: Remat, model: Path) -> None:
    refused = remat("plan", model, *UPDATE, "--budget", "4MB")
    assert refused.code == 3
    said = " ".join(refused.out.split())
    assert "whatever the plan that moves nothing to the host" in said
    assert "--offload" in said


def test_after_the_backward_pass_needs_the_update(remat: Remat, model: Path) -> None:
    refused = remat("plan", model, "--budget", "80%", "--update-after-backward")
    assert (refused.code, "--update" in refused.err) == (2, True)
