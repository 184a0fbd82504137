"""Derived training graphs have gradients from before the step, and add to them in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.config import GraphOptions
from remat_cli.core.solve import baseline_of
from remat_cli.prepare import prepare
from remat_cli.studies.eager import eager_run

WIDTH, DEPTH = 64, 3
STEP = f"""
from torch import nn, randn

def step():
    layers = [part for _ in range({DEPTH}) for part in (nn.Linear({WIDTH}, {WIDTH}), nn.GELU())]
    return nn.Sequential(*layers), (randn(16, {WIDTH}),)
"""


def derived_peak(folder: Path) -> int:
    """Return the plain peak of the same layers as an ONNX model."""
    nodes, stored, last = [], [], "x"
    for layer in range(DEPTH):
        stored += [
            numpy_helper.from_array(np.zeros((WIDTH, WIDTH), np.float32), f"w{layer}"),
            numpy_helper.from_array(np.zeros(WIDTH, np.float32), f"b{layer}"),
        ]
        nodes += [
            helper.make_node("Gemm", [last, f"w{layer}", f"b{layer}"], [f"h{layer}"], transB=1),
            helper.make_node("Gelu", [f"h{layer}"], [f"y{layer}"]),
        ]
        last = f"y{layer}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16, WIDTH]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], stored)
    path = folder / "layers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return baseline_of(prepare(path, GraphOptions()).graph).peak_bytes


def test_torch_makes_the_gradient_of_one_parameter_beside_those_from_before(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "layers.py").write_text(STEP)
    step = Path(f"{tmp_path}/layers.py:step")
    accumulating, fresh = (eager_run(step, GraphOptions(accumulate=accumulate)) for accumulate in (True, False))
    assert accumulating is not None
    assert fresh is not None
    derived, weight, bias = derived_peak(tmp_path), 4 * WIDTH * WIDTH, 4 * WIDTH
    assert fresh.peak_bytes < derived
    assert derived + weight <= accumulating.peak_bytes <= derived + weight + 2 * bias
