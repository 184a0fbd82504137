"""Models as exporters write them, without their weights. The figures were measured by other means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remat_cli.formats.onnx import read
from remat_cli.formats.reader import Aliasing, Reading, ReadOptions
from remat_cli.schedule import input_order, with_frees
from remat_cli.simulate import simulate

pytestmark = pytest.mark.skipif(
    "REMAT_DATA" not in os.environ, reason="REMAT_DATA does not name the folder with the exported models"
)

MIB = 2**20
SYMBOLS = {
    "bert_base": ("batch", "seq"),
    "densenet121": ("batch",),
    "gpt2": ("batch", "seq"),
    "mobilenetv3_large": ("batch",),
    "resnet50": ("batch",),
    "unet_noopt": ("batch",),
    "unet_train_legacy": (),
}


def exported(name: str, batch: int, seq: int, aliasing: Aliasing = Aliasing.ORT_CPU) -> Reading:
    sizes = {"batch": batch, "seq": seq}
    dims = {symbol: sizes[symbol] for symbol in SYMBOLS[name]}
    return read(Path(os.environ["REMAT_DATA"]) / "onnx" / f"{name}.onnx", ReadOptions(dims=dims, aliasing=aliasing))


@pytest.mark.parametrize(("batch", "seq"), [(1, 128), (2, 128), (8, 512), (1, 1)])
@pytest.mark.parametrize("name", SYMBOLS)
def test_every_output_is_sized(name: str, batch: int, seq: int) -> None:
    reading = exported(name, batch, seq)
    assert not reading.estimated
    for operator in reading.operators.values():
        assert all(one is None or one.shape is not None for one in operator.outputs)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("bert_base", 376),
        ("densenet121", 368),
        ("gpt2", 455),
        ("mobilenetv3_large", 140 + 21),  # each of its 21 HardSwish runs as two ops
        ("resnet50", 122),
        ("unet_noopt", 67),
        ("unet_train_legacy", 67),
    ],
)
def test_nodes_that_are_left_after_folding(name: str, nodes: int) -> None:
    assert len(exported(name, 1, 128).graph.ops) == nodes


@pytest.mark.parametrize(
    ("name", "total_mib", "peak_mib"),
    [
        ("resnet50", 100.9, 9.2),
        ("mobilenetv3_large", 35.3 + 5.8, 6.1),  # 5.8: what lies between the two ops of each HardSwish
        ("densenet121", 166.6, 8.0),
        ("bert_base", 177.8, 3.4),
        ("gpt2", 276.5, 6.4),
    ],
)
def test_activations_and_their_peak_in_file_order(name: str, total_mib: float, peak_mib: float) -> None:
    graph = exported(name, 1, 128).graph
    activations = sum(graph.tensors[output].bytes for op in graph.ops for output in op.outputs)
    assert activations / MIB == pytest.approx(total_mib, rel=0.002)
    plain = exported(name, 1, 128, Aliasing.NONE).graph
    peak = simulate(plain, with_frees(plain, input_order(plain))).peak_bytes - plain.fixed_bytes
    assert peak / MIB == pytest.approx(peak_mib, abs=0.05)


@pytest.mark.parametrize(
    ("name", "weights_mib"),
    [("resnet50", 97), ("mobilenetv3_large", 21), ("densenet121", 30), ("bert_base", 417), ("gpt2", 474)],
)
def test_weights(name: str, weights_mib: int) -> None:
    reading = exported(name, 1, 128)
    assert round(sum(one.bytes for one in reading.parameters) / MIB) == weights_mib
    assert round(reading.graph.resident_bytes / MIB) == weights_mib
