"""Regions in loops whose inputs change in size: few captures and plans, eager's bits, and the predicted peak."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from remat_cli.errors import GraphError
from remat_cli.pytorch.capture import sizes
from remat_cli.pytorch.memory.memory import peak_of
from remat_cli.pytorch.plan.described import Inputs
from remat_cli.pytorch.plan.region_curve import RegionGraphs
from remat_cli.pytorch.plan.region_runner import RegionRunner
from remat_cli.pytorch.plan.sized_fused import SizedKernels
from remat_cli.torch import planned
from tests.unit.pytorch.run.test_regions import Masked, by_regions, fixed_bytes, record_of, same, step


def tokens(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(50, (batch, length)), torch.randint(50, (batch, length))


def test_a_loop_over_lengths_captures_twice_and_plans_for_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    divided = []
    divide = RegionRunner._divide
    monkeypatch.setattr(RegionRunner, "_divide", lambda self, given: divided.append(given) or divide(self, given))  # type: ignore[func-returns-value]
    eager = Masked(2, 16, 50, 0.1).train()
    model = by_regions(copy.deepcopy(eager), "70%", "blocks.*")
    for length in (40, 48, 47, 64, 33, 50, 40, 64, 35, 61):
        inputs = tokens(4, length)
        assert same(step(model, inputs), step(eager, inputs))
    record = record_of(model)
    assert record.plans == 3, "for 40, 48 and 64; the others run by these"
    assert record.whole_calls == 10
    assert not record.unplanned
    assert len(divided) == 2, "all sizes but the first run by one capture"
    assert "3 plans for inputs of different sizes" in str(record)


class Tanhs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().sum()


def test_compiled_blocks_are_captured_twice_and_their_kernels_run_at_all_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    divided, compiled = [], []
    divide, compile_at = RegionRunner._divide, SizedKernels.compiled
    monkeypatch.setattr(RegionRunner, "_divide", lambda self, given: divided.append(given) or divide(self, given))  # type: ignore[func-returns-value]
    monkeypatch.setattr(
        SizedKernels,
        "compiled",
        lambda self, plan, sized, cuts, known: (
            compiled.append(sized.values) or compile_at(self, plan, sized, cuts, known=known)  # type: ignore[func-returns-value]
        ),
    )
    eager = Tanhs().train()
    model = by_regions(copy.deepcopy(eager), "90%", "blocks.*", "h100", fused=True)
    for rows in (40, 48, 47, 41, 48):
        x = (torch.randn(rows, 8),)
        torch.testing.assert_close(step(model, x), step(eager, x))
        model.zero_grad()
        peak = fixed_bytes(model, x) + peak_of(lambda x=x: model(*x).backward(), "cpu")  # type: ignore[misc]
        assert peak <= record_of(model).predicted_peak_bytes + 64
    record = record_of(model)
    assert not record.unplanned
    assert len(divided) == 4, "the first block's input needs no gradient"
    assert f"{len(compiled)} plans compiled" in record.plan
    assert set(compiled) == {(), (48,)}, "kernels of the second call run at all later sizes"


def test_the_peak_at_each_length_is_within_the_budget_and_where_planned_the_predicted_one() -> None:
    model = by_regions(Masked(2, 32, 50, 0.0).train(), "1.2MB", "blocks.*")
    for length in (40, 48, 60, 45):
        step(model, tokens(4, length))
    for length, is_exact in ((60, True), (52, False)):
        inputs = tokens(4, length)
        model.zero_grad(set_to_none=True)
        peak = fixed_bytes(model, inputs) + peak_of(lambda inputs=inputs: model(*inputs).backward(), "cpu")  # type: ignore[misc]
        record = record_of(model)
        assert peak <= record.budget_bytes
        assert peak <= record.predicted_peak_bytes + 64
        if is_exact:
            assert record.predicted_peak_bytes - peak < 0.03 * peak
    assert record.plans == 3


def test_sizes_of_one_and_much_smaller_ones_have_plans_of_their_own() -> None:
    eager = Masked(2, 16, 50, 0.0).train()
    model = by_regions(copy.deepcopy(eager), "75%", "blocks.*")
    plans, overheads = [], []
    for batch, length in ((4, 48), (4, 64), (3, 64), (2, 60), (1, 64), (4, 64), (4, 20)):
        inputs = tokens(batch, length)
        assert same(step(model, inputs), step(eager, inputs))
        plans.append(record_of(model).plans)
        overheads.append(record_of(model).overhead)
    assert plans[:6] == [1, 2, 3, 3, 4, 4]
    assert plans[6] == 4 + (overheads[5] > 0.02), "a plan that takes little time runs smaller inputs, too"
    assert not record_of(model).unplanned


def test_plans_of_near_sizes_are_taken_over_and_much_smaller_ones_are_planned_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned_for = []
    curve = RegionGraphs.curve
    monkeypatch.setattr(RegionGraphs, "curve", lambda self: planned_for.append(self) or curve(self))  # type: ignore[func-returns-value]
    model = by_regions(Masked(2, 16, 50, 0.0).train(), "75%", "blocks.*")
    counts = []
    for length in (48, 64, 72, 24):
        step(model, tokens(4, length))
        counts.append(len(planned_for))
    assert counts == [1, 2, 2, 3]


class Chosen(nn.Module):
    """How many rows its blocks get depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x[x[:, 0] > 0])
        return x.square().sum()


def test_regions_that_are_larger_than_in_the_rehearsal_are_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    def rows(count: int) -> tuple[torch.Tensor]:
        x = torch.randn(40, 8)
        x[:, 0] = -1.0
        x[:count, 0] = 1.0
        return (x,)

    eager = Chosen().train()
    with torch.no_grad():
        for block in eager.blocks:
            block[2].bias[0] = 100.0  # type: ignore[index]
    model = by_regions(copy.deepcopy(eager), "95%", "blocks.*")
    with caplog.at_level(logging.WARNING):
        for x in (rows(10), (rows(20)[0][:30],), (rows(12)[0][:25],), (rows(24)[0][:25],)):
            assert same(step(model, x), step(eager, x))
    reason = "blocks.0 or a region like it, which is larger than in the rehearsal"
    assert record_of(model).unplanned[reason] == 1
    assert "not within the budget: blocks.0" in caplog.text


def test_a_region_that_takes_no_symbols_is_captured_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "_with_size_nodes", Mock(side_effect=GraphError("no plan for these sizes")))
    eager = Masked(2, 16, 50, 0.0).train()
    model = by_regions(copy.deepcopy(eager), "80%", "blocks.*")
    for length in (40, 64, 50):
        inputs = tokens(2, length)
        assert same(step(model, inputs), step(eager, inputs))
    assert record_of(model).plans == 3
    assert not record_of(model).unplanned


@pytest.mark.parametrize("regions", [None, "0"])
def test_what_a_call_is_given_does_not_stay_in_memory(regions: str | None) -> None:
    model = planned(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).train(), budget="1MB", regions=regions)
    given = []
    for size in (10, 20, 30, 15):
        x = torch.randn(size, 8)
        given.append(weakref.ref(x))
        model(x).sum().backward()
        del x
    gc.collect()
    assert [reference() for reference in given] == [None] * 4


def described(*shapes: tuple[int, ...], step: int = 1, **named: object) -> Inputs:
    return Inputs.of((*map(torch.empty, shapes), step), named, "cpu")


def test_inputs_are_within_others_where_only_known_sizes_are_smaller() -> None:
    small, large = described((4, 10), (4,)), described((4, 12), (4,), step=2)
    assert small.differing(large) == frozenset({(0, 1)})
    assert small.is_within(large, frozenset({(0, 1)}))
    assert not small.is_within(large, frozenset({(0, 0)}))
    assert not large.is_within(small, frozenset({(0, 1)}))
    assert not described((4, 1), (4,)).is_within(large, frozenset({(0, 1)}))
    assert described((4, 10), (4, 1)).differing(large) is None
    assert described((4, 10), (4,), mask=True).differing(described((4, 10), (4,), mask=False)) is None
    assert (
        Inputs.of((torch.empty(4, 10).t(),), {}, "cpu").differing(Inputs.of((torch.empty(10, 3),), {}, "cpu")) is None
    )
    assert large.numel == 52
