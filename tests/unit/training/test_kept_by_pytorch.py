"""Exported models keep what PyTorch was measured to keep for their backward (`saved_tensors_hooks`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from remat_cli.formats import onnx
from remat_cli.formats.reader import ReadOptions
from remat_cli.training import annotate_saves, kept_for_backward, training_graph

DATA = os.environ.get("REMAT_DATA")
MIB = 2**20


@pytest.mark.skipif(DATA is None, reason="REMAT_DATA does not name the folder with the exported models")
@pytest.mark.parametrize(
    ("file", "dims", "float_mib", "integer_mib"),
    [
        ("unet_noopt.onnx", {"batch": 2}, 623.0, 30.0),
        ("gpt2.onnx", {"batch": 2, "seq": 128}, 270.8, 0),
        ("bert_base.onnx", {"batch": 2, "seq": 128}, 162.8, 0),
    ],
)
def test_kept_activations(file: str, dims: Mapping[str, int], float_mib: float, integer_mib: float) -> None:
    reading = onnx.read(Path(DATA or "") / "onnx" / file, ReadOptions(dims=dims))
    graph, guessed = annotate_saves(reading.graph, reading.operators)
    kept = kept_for_backward(training_graph(graph))
    assert kept.float_bytes / MIB == pytest.approx(float_mib, rel=0.005)
    assert kept.integer_bytes / MIB == pytest.approx(integer_mib, rel=0.005, abs=0.01)
    assert guessed == ()
