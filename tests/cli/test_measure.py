"""`remat measure` on an ONNX model: the times are those of onnxruntime's profile."""

from __future__ import annotations

import json
from pathlib import Path

from onnx import TensorProto

from tests.cli.calls import Remat
from tests.places import GRAPHS
from tests.unit.formats.onnx.models import Model, float_input, node, value

GPT = GRAPHS / "gpt.onnx"


def test_onnx_model_is_measured_and_planned(remat: Remat, tmp_path: Path) -> None:
    measured, sizes = tmp_path / "m.json", ("--dim", "batch=1", "--dim", "seq=16")
    ended = remat("measure", GPT, *sizes, "-o", measured)
    assert ended.code == 0, ended.err
    assert "run by   onnxruntime" in ended.out
    document = json.loads(measured.read_text())
    assert document["dims"] == {"batch": 1, "seq": 16}
    times = {name: op["time_ns"] for name, op in document["ops"].items()}
    for mode, passes in (("inference", 1), ("training", 3)):  # a backward op takes twice its forward op
        found = remat("inspect", GPT, *sizes, "--mode", mode, "--measurements", measured, "--json").json
        assert found["graph"]["costs"].startswith("measured, onnxruntime")
        assert found["plain"]["time"] >= passes * sum(times.values()) * 0.9
    assert remat("inspect", GPT, "--dim", "batch=2", "--dim", "seq=16", "--measurements", measured).code == 2


def test_measurements_go_to_stdout_and_are_the_same_on_many_ranks(remat: Remat) -> None:
    ended = remat("measure", GPT, "--dim", "batch=1", "--dim", "seq=8", "--ranks", "8", "-o", "-")
    assert json.loads(ended.out)["format"] == "remat.measurements/1"
    assert "The most time" in ended.err


def test_what_no_rule_tells_of_a_kernel_is_measured(remat: Remat, tmp_path: Path) -> None:
    # The kernel makes floats of the weights, of which two are packed in a byte.
    rows, width, made = 64, 512, 1024
    packed = value("packed", [made * width // 2], TensorProto.UINT8)
    block = {"K": width, "N": made, "block_size": 64, "quant_type": 1}
    model = Model(
        [node("MatMulBnb4", ["x", "packed", "largest"], ["y"], "product", domain="com.microsoft", **block)],
        inputs=[float_input("x", rows, width), packed, float_input("largest", made * width // 64)],
        other_opsets={"com.microsoft": 1},
    )
    path, measured = model.save(tmp_path), tmp_path / "m.json"
    call = ("inspect", path, "--mode", "inference", "--value-shape", f"y:{rows},{made}")
    assert "the workspace of kernels of" in " ".join(remat(*call).out.split())
    assert remat("measure", path, *call[-2:], "-o", measured).code == 0
    kernel = json.loads(measured.read_text())["ops"]["product"]["workspace_bytes"]
    assert kernel > 2**18
    peaks = [remat(*call, *more, "--json").json["plain"]["peak_bytes"] for more in ((), ("--measurements", measured))]
    assert peaks[1] - peaks[0] == kernel
