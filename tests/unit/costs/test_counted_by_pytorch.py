"""The work of exported models is what PyTorch counts (`torch.utils.flop_counter`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.flop_counter import FlopCounterMode

from remat_cli.costs import annotate_work
from remat_cli.formats import onnx
from remat_cli.formats.reader import ReadOptions
from remat_cli.formats.source import Source
from tests.exports import NETWORKS, exported

# PyTorch counts these alone.
COUNTED_BY_PYTORCH = {"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum"}


@pytest.mark.parametrize("name", NETWORKS)
def test_multiplications_and_additions_of_the_forward_pass(name: str, tmp_path: Path) -> None:
    make, inputs = NETWORKS[name]
    with FlopCounterMode(display=False) as counter:
        make().eval()(inputs(3))
    reading = onnx.read(Source(exported(name, tmp_path)), ReadOptions(dims={"batch": 3}))
    graph, estimated = annotate_work(reading.graph, reading.operators)
    assert sum(op.flops or 0 for op in graph.ops if op.type in COUNTED_BY_PYTORCH) == counter.get_total_flops()
    assert estimated == ()
