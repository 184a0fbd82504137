"""`plan --split`: a step whose head runs in parts, verified, executed, and refused where it means nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from remat_cli.formats.onnx import axes
from remat_cli.pytorch.capture import reader
from remat_cli.pytorch.capture.reader import capture
from remat_cli.units import format_share
from tests.cli.calls import Remat
from tests.places import GRAPHS
from tests.unit.formats.onnx.models import Model, float_input, node, scalar

STEP = """
import torch
from torch import nn
from torch.nn import functional as F

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(3000, 8), nn.Linear(8, 3000, bias=False)

    def forward(self, tokens, labels):
        return F.cross_entropy(self.head(F.gelu(self.embed(tokens))).flatten(0, 1), labels.flatten())

def step(batch=4):
    return Head(), (torch.randint(3000, (batch, 32)), torch.randint(3000, (batch, 32)))
"""


@pytest.fixture
def step(tmp_path: Path) -> str:
    (tmp_path / "head.py").write_text(STEP)
    return f"{tmp_path / 'head.py'}:step"


def test_a_plan_in_parts_is_verified_and_runs(remat: Remat, step: str, tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.json"
    refused = remat("plan", step, "--budget", "60%", "--time-limit", 1)
    assert refused.code == 3
    assert "--split fits: the region around '_log_softmax_backward_data' in 2 parts" in " ".join(refused.out.split())
    ended = remat("plan", step, "--budget", "60%", "--time-limit", 1, "--split", "-o", schedule)
    assert ended.code == 0, ended.err
    words = " ".join(ended.out.split())
    assert "results are those of the step to rounding" in words
    assert "planned(model, '" in words
    written = json.loads(schedule.read_text())
    assert written["graph"]["options"]["parts"]
    whole = remat("plan", step, "--budget", "100%", "--time-limit", 1, "--json").json
    executed = remat("verify", step, schedule, "--execute", "--json")
    assert executed.code == 0, executed.err
    for compared in (written, executed.json):  # with the step as it is, not with the plain run of its parts
        assert compared["baseline"] == whole["baseline"]
        assert compared["overhead"] == compared["time"] / whole["time"] - 1 > 0
    assert written["bound"]["overhead"] == 0
    less = format_share(1 - written["peak_bytes"] / whole["baseline"]["peak_bytes"])
    assert remat("report", step, schedule, "-o", tmp_path / "report.html").code == 0
    page = (tmp_path / "report.html").read_text()
    assert f"{less} less" in page
    largest = page[page.index("peak</h2>") :]  # of the step as it is: its scores are whole
    assert "At op _log_softmax_backward_data.<" in largest
    assert ">in parts<" in largest
    assert "Largest tensors at the plain run's peak (op _log_softmax_backward_data)" in words
    assert "in parts" in words[words.index("Largest tensors") :]
    schedule.write_text(json.dumps({**written, "baseline": {**written["baseline"], "time": 1}}))
    assert "the file says baseline.time 1" in remat("verify", step, schedule, "-q").err
    assert remat("verify", step, schedule, "--dim", "batch=5", "-q").code != 0


def test_a_plan_in_parts_is_compiled_and_runs(remat: Remat, step: str, tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.json"
    asked = ("plan", step, "--budget", "60%", "--time-limit", 1, "--split", "--fused", "-o", schedule)
    ended = remat(*asked, "--json")
    assert ended.code == 0, ended.err
    options = json.loads(schedule.read_text())["graph"]["options"]
    assert options["fused"] is True
    assert options["parts"]
    (note,) = (note for note in ended.json["notes"] if note.startswith("compiled once in "))
    assert re.search(r"[1-9]\d* fused kernels, a peak of \d", note)
    execution = remat("verify", step, schedule, "--execute", "--json").json["execution"]
    assert execution["holds"]
    assert execution["fused"]


def test_a_refusal_has_the_trial_as_values(remat: Remat, step: str) -> None:
    fits = remat("plan", step, "--budget", "60%", "--time-limit", 1, "--json").json["split"]
    assert fits["fits"]
    assert fits["parts"] == {"_log_softmax_backward_data": "2"}
    ended = remat("plan", step, "--budget", "5%", "--time-limit", 1, "--json")
    assert ended.code == 3
    assert not ended.json["split"]["fits"]
    assert "in memory at the end" in ended.json["split"]["reason"]
    assert "split" not in remat("plan", step, "--budget", "60%", "--fused", "--json").json


def test_parts_that_were_found_are_given_again(remat: Remat, step: str) -> None:
    given = ("plan", step, "--budget", "100%", "--time-limit", 1, "--json")
    whole, parts = remat(*given).json, remat(*given, "--parts", "_log_softmax_backward_data=4").json
    assert parts["peak_bytes"] < 0.6 * whole["peak_bytes"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--parts", "nothing=2"), "there is no op 'nothing' to split"),
        (("--parts", "mm"), "is not understood"),
        (("--parts", "mm=0"), "is no number of parts"),
        (("--parts", "mm=4097"), "its region has 128 rows"),
        (("--split", "--ranks", "2"), "--ranks 2 is known of the step without parts"),
        (("--split", "--as", "checkpoints"), "checkpoints run whole modules again"),
        (("--split", "--addresses"), "no addresses for each"),
    ],
)
def test_what_does_not_go_is_refused(remat: Remat, step: str, options: tuple[str, ...], message: str) -> None:
    ended = remat("plan", step, "--budget", "60%", *options)
    assert ended.code == 2
    assert message in ended.err


def test_other_graphs_than_steps_are_refused(remat: Remat) -> None:
    graph = GRAPHS / "unet.json"
    for option in (("--split",), ("--parts", "mm=2")):
        ended = remat("plan", graph, "--budget", "60%", *option)
        assert ended.code == 2
        assert "PyTorch step" in ended.err or "has no ops to run in parts" in ended.err


def image_model(folder: Path) -> Path:
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((32, 3, 3, 3)).astype(np.float32), "w")
    return Model(
        [
            node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["b"], "relu"),
            node("GlobalAveragePool", ["b"], ["y"], "pool"),
        ],
        inputs=[float_input("x", "batch", 3, 32, 32)],
        stored=[weight],
    ).save(folder)


def test_a_batch_of_eight_runs_within_the_memory_of_two(remat: Remat, tmp_path: Path) -> None:
    model, schedule, new = image_model(tmp_path), tmp_path / "s.json", tmp_path / "parts.onnx"
    inference = ("--mode", "inference")
    of_two = remat("plan", model, *inference, "--dim", "batch=2", "--budget", "100%", "--json").json
    eight = ("--dim", "batch=8", "--budget", of_two["baseline"]["peak_bytes"] + 6 * 3 * 32 * 32 * 4)
    refused = remat("plan", model, *inference, *eight, "--time-limit", 1)
    assert refused.code == 3
    assert "--split fits: the region around" in " ".join(refused.out.split())
    ended = remat("plan", model, *inference, *eight, "--time-limit", 1, "--split", "-o", schedule)
    assert ended.code == 0, ended.err
    applied = remat("apply", model, schedule, "-o", new, "--json").json
    assert applied["baseline"]["peak_bytes"] > 2 * applied["peak_bytes"]
    assert "the parts were checked by running: on random inputs, outputs are those" in applied["notes"][-1]
    onnx.checker.check_model(onnx.load(new))
    found = remat("verify", model, schedule, "--execute", "--json").json["execution"]
    assert found["holds"]
    assert found["plain"]["agrees"]
    assert set(found["outputs"]) == {"y"} - set(found["rounded_outputs"]) | set(found["rounded_outputs"])


def test_a_region_whose_parts_differ_is_named(remat: Remat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A softmax over the channels cannot work on some of them.
    monkeypatch.setitem(axes._RULES, "Softmax", lambda operands: axes._aligned(operands, [1]))
    model, schedule, new = tmp_path / "model.onnx", tmp_path / "s.json", tmp_path / "parts.onnx"
    nodes = [
        node("Sin", ["x"], ["a"], "sin"),
        node("CumSum", ["a", "zero"], ["b"], "sum"),
        node("Softmax", ["b"], ["y"], "softmax", axis=1),
    ]
    Model(nodes, [float_input("x", 8, 6, 64)], stored=[scalar("zero", 0)]).save(tmp_path)
    parts = ("--mode", "inference", "--parts", "sin=2", "--parts", "softmax=2")
    assert remat("plan", model, *parts, "--budget", "200%", "-c", "keep_all", "-o", schedule).code == 0
    for ended in (remat("apply", model, schedule, "-o", new), remat("verify", model, schedule, "--execute")):
        assert ended.code == 5
        assert "other results come from the region around 'softmax' in parts" in " ".join(ended.err.split())
    assert not new.exists()


def test_each_verb_that_plans_takes_split(remat: Remat, tmp_path: Path) -> None:
    model = image_model(tmp_path)
    read = ("--mode", "inference", "--dim", "batch=8")
    fast = ("--planner", "dtr")
    whole, parts = (remat("budget", model, *read, *fast, *split, "--json").json for split in ((), ("--split",)))
    assert parts["plain_peak_bytes"] == whole["plain_peak_bytes"]
    assert parts["found_bytes"] < 0.5 * whole["found_bytes"]
    assert parts["proven_bytes"] < parts["found_bytes"]

    asked = (*read, "--budgets", "60%,100%", *fast, "--json")
    points = remat("sweep", model, *asked, "--split").json["curves"][0]["points"]
    assert [point["peak_bytes"] is None for point in points] == [False, False]
    assert points[0]["overhead"] > points[1]["overhead"] == 0
    (compared,) = remat("compare", model, *asked, "--split").json["graphs"]
    assert compared["baseline"]["peak_bytes"] == whole["plain_peak_bytes"]
    assert remat("compare", model, *asked).code == 3

    fitting = ("--mode", "inference", "--dim", "batch", "--budget", whole["found_bytes"], "--at-most", 9, *fast)
    values = (remat("fit", model, *fitting, *split, "--json").json["found"]["value"] for split in ((), ("--split",)))
    assert [*values] == [8, 9]


def test_a_step_in_parts_is_captured_once_and_of_eagers_ops(
    remat: Remat, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[bool] = []

    def capture_and_note(*given: Any, **named: Any) -> Any:
        captured.append(named["fused"])
        return capture(*given, **named)

    monkeypatch.setattr(reader, "capture", capture_and_note)
    asked = ("compare", step, "--budgets", "60%", "--planners", "keep_all", "--split", "--fused", "--json")
    (compared,) = remat(*asked).json["graphs"]
    assert captured == [False]
    assert compared["baseline"]["peak_bytes"] > 4_000_000


def test_files_of_settings_take_split(remat: Remat, tmp_path: Path) -> None:
    image_model(tmp_path)
    said = "{path: model.onnx, mode: inference, dims: {batch: 8}, "
    (tmp_path / "remat.yaml").write_text(
        f"models:\n- {said}name: parts, planner: dtr, budget: 60%, split: true}}\n"
        f"- {said}name: whole, planner: dtr, budget: 60%}}\n"
    )
    ended = remat("check", tmp_path / "remat.yaml")
    assert re.findall(r"^(holds|fails)  (\S+)", ended.out, re.MULTILINE) == [("holds", "parts"), ("fails", "whole")]
    (tmp_path / "batch.yaml").write_text(f"budgets: [60%]\nconfigs: [dtr]\nsplit: true\ngraphs:\n- {said[:-2]}}}\n")
    assert remat("batch", tmp_path / "batch.yaml", "-o", tmp_path / "results.jsonl").code == 0


def test_split_takes_models_for_inference_alone(remat: Remat, tmp_path: Path) -> None:
    for option in (("--split",), ("--parts", "conv=2")):
        ended = remat("plan", image_model(tmp_path), "--dim", "batch=8", "--budget", "60%", *option)
        assert ended.code == 2
        assert "inference" in ended.err
