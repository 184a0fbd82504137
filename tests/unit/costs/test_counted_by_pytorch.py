"""Exported models have as many multiply-adds as PyTorch's counter says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from remat_cli.costs import annotate_work
from remat_cli.formats import onnx
from remat_cli.formats.reader import ReadOptions

DATA = os.environ.get("REMAT_DATA")
COUNTED_BY_PYTORCH = {"Conv", "ConvTranspose", "MatMul", "Gemm"}


@pytest.mark.skipif(DATA is None, reason="REMAT_DATA does not name the folder with the exported models")
@pytest.mark.parametrize(
    ("file", "dims", "expected"),
    [
        ("unet_noopt.onnx", {"batch": 2}, "96.343"),
        ("resnet50.onnx", {"batch": 2}, "8.178"),
        ("mobilenetv3_large.onnx", {"batch": 2}, "0.433"),
        ("gpt2.onnx", {"batch": 2, "seq": 128}, "22.347"),
        ("bert_base.onnx", {"batch": 2, "seq": 128}, "22.348"),
    ],
)
def test_forward_multiply_adds_in_10_to_the_9(file: str, dims: Mapping[str, int], expected: str) -> None:
    reading = onnx.read(Path(DATA or "") / "onnx" / file, ReadOptions(dims=dims))
    graph, estimated = annotate_work(reading.graph, reading.operators)
    flops = sum(op.flops or 0 for op in graph.ops if op.type in COUNTED_BY_PYTORCH)
    assert f"{flops / 2e9:.3f}" == expected
    assert estimated == ()
