"""`plan --split`: a step whose head runs in parts, verified, executed, and refused where it means nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from remat_cli.formats.onnx import axes
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
    assert "without parts, the plain run peaks at" in words
    assert "planned(model, '" in words
    assert json.loads(schedule.read_text())["graph"]["options"]["parts"]
    assert remat("verify", step, schedule, "-q").code == 0
    executed = remat("verify", step, schedule, "--execute", "--json")
    assert executed.code == 0, executed.err
    assert remat("verify", step, schedule, "--dim", "batch=5", "-q").code != 0


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
        (("--split", "--fused"), "--fused is known of the step without parts"),
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
    assert remat("plan", model, *inference, *eight, "--time-limit", 1).code == 3
    ended = remat("plan", model, *inference, *eight, "--time-limit", 1, "--split", "-o", schedule)
    assert ended.code == 0, ended.err
    assert "without parts, the plain run peaks at" in " ".join(ended.out.split())
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


def test_split_takes_models_for_inference_alone(remat: Remat, tmp_path: Path) -> None:
    for option in (("--split",), ("--parts", "conv=2")):
        ended = remat("plan", image_model(tmp_path), "--dim", "batch=8", "--budget", "60%", *option)
        assert ended.code == 2
        assert "inference" in ended.err
