"""Models as PyTorch's exporter writes them: every value is sized, and nothing is left of what computes shapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.formats.onnx import read
from remat_cli.formats.reader import ReadOptions
from remat_cli.formats.source import Source
from remat_cli.training import trainable_parameters
from tests.exports import NETWORKS, exported


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_value_is_sized(name: str, batch: int, tmp_path: Path) -> None:
    reading = read(Source(exported(name, tmp_path)), ReadOptions(dims={"batch": batch}))
    assert not reading.estimated
    for operator in reading.operators.values():
        assert all(one is None or one.shape is not None for one in operator.outputs)
    assert {op.type for op in reading.graph.ops}.isdisjoint(("Constant", "Shape", "ConstantOfShape", "Range"))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_peak_grows_with_the_batch_and_the_weights_do_not(name: str, training: bool, tmp_path: Path) -> None:
    path = exported(name, tmp_path, training=training)
    one, four = (read(Source(path), ReadOptions(dims={"batch": batch})) for batch in (1, 4))
    peaks = [simulate(each.graph, plain_run(each.graph)).peak_bytes - each.graph.resident_bytes for each in (one, four)]
    assert peaks[1] == 4 * peaks[0]
    assert one.parameters == four.parameters


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_are_those_of_the_network(name: str, tmp_path: Path) -> None:
    reading = read(Source(exported(name, tmp_path)), ReadOptions(dims={"batch": 2}))
    trained = trainable_parameters(reading.operators, reading.parameters)
    assert sum(one.elements for one in trained) == sum(one.numel() for one in NETWORKS[name][0]().parameters())
