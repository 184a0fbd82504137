"""Whole networks at small sizes, as they are and by the tightest plan that is found: as predicted, bit by bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.planners.dtr.planner import DTR
from tests.bench.execution import executed
from tests.places import GRAPHS


@pytest.mark.parametrize(
    ("path", "dims"),
    [
        (GRAPHS / "long_skip.onnx", {"batch": 1, "height": 256, "width": 256}),
        (GRAPHS / "unet.onnx", {"batch": 1}),
        (GRAPHS / "resnet50.onnx", {"batch": 1}),
        (GRAPHS / "gpt.onnx", {"batch": 1, "seq": 64}),
    ],
    ids=lambda given: given.stem if isinstance(given, Path) else "",
)
def test_a_network_runs_as_planned(path: Path, dims: dict[str, int]) -> None:
    execution = executed(path, dims, DTR()).execution
    assert execution.holds
    assert execution.plain.agrees
    assert execution.plan.predicted <= execution.plain.predicted
    assert not execution.not_finite
