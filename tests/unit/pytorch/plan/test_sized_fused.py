"""Kernels that are compiled once for many sizes: eager's results to rounding, and the predicted peak at each size."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from remat_cli.pytorch.capture.sizes import Sizes
from remat_cli.pytorch.memory.memory import peak_of
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.sized_fused import SizedKernels
from remat_cli.torch import plan_of, planned
from tests.unit.pytorch.run.test_planned import twins


class Wide(nn.Module):
    """Wide inside, so that it is worth making again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(16, 64) for _ in range(2))
        self.outer = nn.ModuleList(nn.Linear(64, 16) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for inner, outer in zip(self.inner, self.outer, strict=True):
            x = x + outer(F.gelu(inner(x)))
        return F.softmax(x, 1).square().sum()


def stepped(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x)
    torch.autograd.backward(loss)
    return loss.detach()


def plans_at(model: nn.Module, twin: nn.Module, sizes: Iterator[tuple[int, int]]) -> Iterator[GraphRecord]:
    """Call both models at each size; compare results with eager's, and the peak with the predicted one."""
    for size in sizes:
        x = torch.randn(*size, 16)
        losses = [stepped(each, x) for each in (model, twin)]
        torch.testing.assert_close(*losses)
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
        for each in (model, twin):
            each.zero_grad()
        peak = peak_of(lambda x=x: model(x).backward(), "cpu")  # type: ignore[misc]
        model.zero_grad()
        plan = plan_of(model).last
        assert plan is not None
        assert plan.predicted_peak_bytes <= (plan.budget_bytes or 0)
        assert peak == pytest.approx(plan.predicted_peak_bytes - plan.fixed_bytes, abs=64)
        yield plan


def test_one_capture_runs_at_all_sizes_by_a_plan_and_by_the_plain_run() -> None:
    model, twin = twins(Wide)
    planned(model, budget="60%", fused=True, planner="min_cut", device="h100")
    ran = list(plans_at(model, twin, iter([(8, 24), (8, 16), (8, 9), (8, 23)])))
    first, second = plan_of(model).graphs
    assert (first.inputs, first.carried, second.inputs) == ({"x": (8, 24, 16)}, [], first.inputs)
    assert ran[1:] == [plan for plan in second.carried if plan.calls]
    assert [plan.inputs["x"] for plan in ran[1:]] == [(8, 16, 16), (8, 9, 16), (8, 23, 16)]
    assert [plan.overhead > 0 for plan in ran] == [True, False, False, True]
    assert "fused kernels" in ran[-1].kernels


def test_kernels_that_do_not_hold_at_a_size_are_compiled_for_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    allows = Sizes.allows
    monkeypatch.setattr(Sizes, "allows", lambda self, values: 20 not in values and allows(self, values))
    model, twin = twins(Wide)
    planned(model, budget="100%", fused=True)
    assert len(list(plans_at(model, twin, iter([(8, 24), (8, 16), (8, 20), (8, 18), (8, 20)])))) == 5
    alone = [graph for graph in plan_of(model).graphs if graph.inputs["x"] == (8, 20, 16)]
    assert [(graph.calls, graph.carried) for graph in alone] == [(4, [])]


def test_kernels_for_one_size_alone_run_at_no_other() -> None:
    kernels = SizedKernels(SimpleNamespace(allows=lambda values: values < (9,)), [])  # type: ignore[arg-type]
    of_one_size: Any = SimpleNamespace(replay=None)
    of_all: Any = SimpleNamespace(replay="the code around the kernels")
    runs = {size: [kernels.hold_at(one, (8,), (size,)) for one in (of_one_size, of_all)] for size in (7, 8, 9)}
    assert runs == {7: [False, True], 8: [True, True], 9: [False, False]}


def test_kernels_between_copies_to_the_host_run_at_all_sizes() -> None:
    model, twin = twins(Wide)
    moves: dict[str, Any] = {"offload": True, "device": "h100", "link_bandwidth": "12GB/s"}
    planned(model, budget="45%", fused=True, regions=None, options={"time_limit": 0.5}, **moves)
    ran = list(plans_at(model, twin, iter([(8, 24), (8, 16), (8, 23)])))
    assert len(plan_of(model).graphs) == 2
    assert [plan.schedule.has_transfers for plan in ran] == [True, True, True]
