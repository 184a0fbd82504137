"""What `plan_of` tells: what was planned, and how calls ran."""

from __future__ import annotations

import io
import logging
import pickle
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remat_cli.errors import UsageError
from remat_cli.pytorch.plan.record import beyond, notify
from remat_cli.pytorch.plan.waiting import DIVIDING, MEASURING, PLANNING, TRACING
from remat_cli.torch import plan_of, planned
from remat_cli.units import format_bytes
from tests.torch_steps import MLP


def test_record_says_what_was_planned_and_how_calls_ran() -> None:
    model = planned(MLP(depth=4), budget="70%", options={"time_limit": 2})
    x = torch.randn(64, 16)
    for _ in range(3):
        model(x).backward()
    with torch.no_grad():
        model(x)
    model.eval()(x)
    record = plan_of(model)
    (graph,) = record.graphs
    assert record.last is graph
    assert (record.calls, graph.calls, dict(record.unplanned)) == (3, 3, {"without gradients": 1, "in eval mode": 1})
    assert graph.inputs == {"x": (64, 16)}
    assert graph.budget_bytes is not None
    assert graph.fixed_bytes < graph.predicted_peak_bytes <= graph.budget_bytes < graph.plain_peak_bytes
    assert graph.budget_bytes == int(0.7 * graph.plain_peak_bytes)
    assert graph.overhead > 0
    report = str(record)
    assert report.startswith("Planned for 70%: 3 calls as planned, 2 calls not\n")
    assert "x 64x16" in report
    assert "  unplanned, in eval mode: 1 call" in report
    # What is torch's, and what is not.
    assert {TRACING, DIVIDING, MEASURING, PLANNING} <= record.waited_ns.keys()
    graph.measured_peak_bytes[:] = [12_000]
    assert "measured peak of the first steps, without the workspace of kernels: 12.00 kB" in str(record)
    graph.measured_peak_bytes[:] = [graph.predicted_peak_bytes]
    assert "beyond the predicted peak" not in str(record)
    graph.measured_peak_bytes.append(2 * graph.predicted_peak_bytes)
    assert f"up to {format_bytes(graph.predicted_peak_bytes)} beyond the predicted peak" in str(record)


def test_only_visible_memory_beyond_the_predicted_peak_is_told() -> None:
    assert beyond(0, 1000) == beyond(30, 1000) == []
    assert len(beyond(31, 1000)) == 1


def test_warnings_go_to_stderr_where_nobody_listens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Tests of the command line may have run in this process, and left its handler.
    monkeypatch.setattr(logging.getLogger("remat"), "handlers", [logging.NullHandler()])
    monkeypatch.setattr(logging.root, "handlers", [])
    for level in (logging.INFO, logging.WARNING, logging.ERROR):
        notify(level, logging.getLevelName(level))
    assert capsys.readouterr().err == "remat: WARNING\nremat: ERROR\n"
    logging.root.handlers.append(logging.StreamHandler(io.StringIO()))
    notify(logging.WARNING, "heard")
    assert capsys.readouterr().err == ""


def test_function_has_a_record_too() -> None:
    def loss(model: nn.Module, x: torch.Tensor) -> Any:
        return model(x).square().sum()

    call = planned(loss, budget="100%")
    torch.autograd.backward(call(nn.Linear(4, 4), torch.ones(2, 4)))
    assert plan_of(call).calls == 1


def test_what_is_not_planned_has_no_record() -> None:
    with pytest.raises(UsageError, match="nothing is planned for this Linear"):
        plan_of(nn.Linear(2, 2))


def test_the_plan_is_written_as_a_memory_snapshot(tmp_path: Path) -> None:
    model, path = planned(MLP(depth=4), budget="70%", options={"time_limit": 2}), tmp_path / "plan.pickle"
    with pytest.raises(UsageError, match="nothing is planned yet"):
        plan_of(model).snapshot(path)
    model(torch.randn(64, 16)).backward()
    plan_of(model).snapshot(path)
    (events,) = pickle.loads(path.read_bytes())["device_traces"]
    signs = {"alloc": 1, "free_completed": -1}
    sizes = accumulate(signs.get(event["action"], 0) * event["size"] for event in events)
    assert max(sizes) == plan_of(model).graphs[0].predicted_peak_bytes


def test_plans_by_blocks_have_no_snapshot(tmp_path: Path) -> None:
    model = planned(MLP(depth=4), budget="100%", regions="layers.*")
    with pytest.raises(UsageError, match="by blocks"):
        plan_of(model).snapshot(tmp_path / "plan.pickle")
