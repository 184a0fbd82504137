"""Plans of one region, whole and in parts, that keep less and less."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of
from remat_cli.planners.shared import limits
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.capture.reader import capture
from remat_cli.pytorch.capture.step import Step
from remat_cli.pytorch.plan.region_curve import RegionGraphs
from remat_cli.pytorch.run.planned import source_within
from tests.torch_steps import Block

WIDTH, ROWS = 8, 64


def graphs_of(module: nn.Module, shape: tuple[int, ...] = (ROWS, WIDTH), **asked: Any) -> RegionGraphs:
    _, captured = capture(Step(module, (torch.randn(shape, requires_grad=True),)), "cpu", "the test")
    source = replace(source_within("min", **asked), measures=False)
    return RegionGraphs(source, Piece.of(captured))


@pytest.fixture(scope="module")
def graphs() -> RegionGraphs:
    layers = (layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.GELU()))
    return graphs_of(nn.Sequential(*layers), device="h100", options={"time_limit": 0.5})


def test_plans_of_a_region_keep_less_and_less_and_peak_no_higher(graphs: RegionGraphs) -> None:
    plain, *others = graphs.curve()
    kept = [point.kept for point in (plain, *others)]
    assert len(set(kept)) >= 5
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] == 0, "all but the input and the output, which its caller keeps"
    for point in others:
        assert point.planned.predicted_peak_bytes <= plain.planned.predicted_peak_bytes
        assert point.planned.overhead > 0
    # One by one the shares are reached: nothing is kept beyond them.
    shares = [(size - kept[-1]) / (plain.kept - kept[-1]) for size in kept[1:6]]
    assert all(share <= limit for share, limit in zip(shares, (0.8, 0.6, 0.4, 0.2, 0.0), strict=True))


def test_lower_plans_peak_lower_where_the_peak_is_inside() -> None:
    graphs = graphs_of(Block(32, 2, 0.0), (8, 64, 32), device="h100", options={"time_limit": 0.5})
    keeps_least, smallest = graphs.lower()
    peaks = [point.planned.predicted_peak_bytes for point in (smallest, keeps_least, graphs.plain())]
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[1] < peaks[2], "the least peak keeps more"
    assert keeps_least.kept == 0


def test_a_busy_machine_finds_the_same_least_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def least_peak() -> int:
        layers = [nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.GELU(), nn.Tanh()]
        return graphs_of(nn.Sequential(*layers), device="h100").lower()[-1].planned.predicted_peak_bytes

    idle, ticks = least_peak(), count()
    monkeypatch.setattr(limits, "monotonic", lambda: next(ticks) * 0.02)  # each look at the clock takes 20 ms
    assert least_peak() == idle


def test_the_last_plan_keeps_only_what_cannot_run_again() -> None:
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH))
    curve = graphs_of(module, device="h100", options={"time_limit": 0.5}).curve()
    mask = ROWS * WIDTH
    assert min(point.kept for point in curve) == mask


def test_plans_in_parts_end_with_the_least_peak_and_tell_their_time_beside_the_whole() -> None:
    wide = nn.Sequential(nn.Linear(WIDTH, 64 * WIDTH), nn.GELU(), nn.Linear(64 * WIDTH, WIDTH))
    graphs = graphs_of(wide, device="h100", options={"time_limit": 0.06})
    points = graphs.curve_in_parts([])
    whole = graphs.plain()
    assert points
    assert points[-1].planned.predicted_peak_bytes < whole.planned.predicted_peak_bytes
    for point in points:
        planned = point.planned
        time = simulate(planned.graph, planned.schedule).time
        assert planned.overhead == pytest.approx(time / baseline_of(graphs.prepared().graph).time - 1, abs=1e-6)
    again = graphs.curve_in_parts([points])
    assert [point.planned.schedule for point in again] == [point.planned.schedule for point in points]
