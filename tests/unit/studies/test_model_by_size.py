"""Models are told at values at which they were not read as they would be read there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remat_cli.config import GraphOptions, PlannerChoice
from remat_cli.formats.other_sizes import agrees_with_prediction
from remat_cli.planning import Planning, Request, plan
from remat_cli.prepare import Prepared
from remat_cli.studies.fit import Question, fit
from remat_cli.studies.model_by_size import ModelBySize
from remat_cli.units import BudgetSpec
from tests.unit.formats.onnx.models import Model, float_input, node, weight


def attention(folder: Path) -> Path:
    """The scores of all pairs grow with the square of the sequence."""
    nodes = [
        node("MatMul", ["x", "w"], ["q"]),
        node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["q", "t"], ["s"]),
        node("Softmax", ["s"], ["p"]),
        node("MatMul", ["p", "q"], ["y"]),
    ]
    return Model(nodes, inputs=[float_input("x", "batch", "seq", 8)], stored=[weight("w", 8, 8)]).save(folder)


@pytest.mark.parametrize(("dim", "reads"), [("batch", (1, 2, 8, 32)), ("seq", (1, 2, 8, 32, 128))])
def test_what_is_told_is_what_is_read(tmp_path: Path, dim: str, reads: tuple[int, ...]) -> None:
    given = {"batch": 3, "seq": 5}
    del given[dim]
    model = ModelBySize(attention(tmp_path), GraphOptions(dims=given), dim)
    for value in reads:
        assert model.predict_at(1000) is None
        read = model.at(value)
        assert read.options.dims == {**given, dim: value}
    told, fresh = model.predict_at(1000), ModelBySize(model.path, model.options, dim)
    assert told is not None
    assert agrees_with_prediction(told, fresh.at(1000))
    assert not agrees_with_prediction(told, fresh.at(1001))


def test_a_step_of_pytorch_is_told(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = tmp_path / "step.py"
    source.write_text(
        "import torch\n"
        "def step(batch=2):\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Flatten(0))\n"
        "    return torch.nn.Sequential(model, torch.nn.Softmax(0)), torch.randn(batch, 8)\n"
    )
    model = ModelBySize(Path(f"{source}:step"), GraphOptions(), "batch")
    for value in (2, 8, 32):
        model.at(value)
    told = model.predict_at(100)
    assert told is not None
    read = model.at(100)
    assert agrees_with_prediction(told, read)
    assert {op.signature for op in told.graph.ops} == {None}
    assert None not in {op.signature for op in read.graph.ops}


def test_parts_are_searched_once_and_carried_to_other_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("MatMul", ["x", "w"], ["a"], "up"), node("Relu", ["a"], ["b"], "relu")]
    nodes.append(node("GlobalAveragePool", ["b"], ["y"], "pool"))
    model = Model(nodes, inputs=[float_input("x", "batch", 4, 4)], stored=[weight("w", 4, 64)]).save(tmp_path)
    searched: list[int] = []

    def plan_and_note(prepared: Prepared, request: Request, *given: Any, **named: Any) -> Planning:
        if request.split and not any(named.get("former", ())):
            searched.append(prepared.options.dims["batch"])
        return plan(prepared, request, *given, **named)

    monkeypatch.setattr("remat_cli.studies.fit.plan", plan_and_note)
    request = Request(BudgetSpec(device_bytes=200_000), PlannerChoice("dtr"), split=True)
    sized = ModelBySize(model, GraphOptions(mode="inference"), "batch", split=True)
    found = fit(Question("batch", request), sized.at, predict_at=sized.predict_at)
    assert found.plain is not None
    assert found.found is not None
    assert found.found.value > 4 * found.plain.value
    assert found.planning.peak_bytes is not None
    assert found.planning.peak_bytes <= 200_000
    assert found.planning.prepared.options.parts
    assert searched == [2 * found.plain.value, found.found.value + 1]
    assert found.refused[0][0] == found.found.value + 1
