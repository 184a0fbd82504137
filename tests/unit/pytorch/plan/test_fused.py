"""Plans with inductor's kernels: the corrected budget, with compilation left out; one model that is compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from remat_cli.core.schedule import plain_run
from remat_cli.core.solve import baseline_of
from remat_cli.errors import DoesNotFit
from remat_cli.pytorch.capture.joint import JointOp
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.plan import fused
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.source import ScheduleSource
from remat_cli.torch import plan_of, planned
from tests.graphs import chain


class Dropping(nn.Module):
    """Its mask is drawn by a fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.gelu(self.first(x)), 0.4).square().sum()


def test_a_compiled_plan_draws_each_mask_once_and_keeps_its_peak() -> None:
    torch.manual_seed(0)
    model, x = planned(Dropping(), budget="100%", fused=True), torch.randn(64, 8, dtype=torch.float64)

    def loss(seed: int = 3) -> torch.Tensor:
        torch.manual_seed(seed)
        result: torch.Tensor = model(x)
        return result

    torch.autograd.backward(loss())
    weight = model.first.weight
    assert weight.grad is not None
    gradient, direction = weight.grad.clone(), torch.randn_like(weight)
    sides = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.add_(direction, alpha=sign * 1e-5)
        sides.append(loss().item())
        with torch.no_grad():
            weight.add_(direction, alpha=-sign * 1e-5)
    slope = (sides[0] - sides[1]) / 2e-5
    assert slope == pytest.approx(float((gradient * direction).sum()), rel=1e-5)
    assert loss(4).item() != loss(3).item()
    plan = plan_of(model).graphs[0]
    assert "fused kernels, compiled 1 time" in str(plan)
    assert max(plan.measured_peak_bytes) == pytest.approx(plan.predicted_peak_bytes, abs=64)


class Sized(ScheduleSource):
    """Plans that peak at what was asked for; notes what was asked."""

    def __init__(self, budget: int, peak: int = 0) -> None:
        self.budget, self.peak = budget, peak or budget
        self.asked: list[int] = []

    def planned(self, piece: Piece) -> tuple[Piece, GraphRecord]:
        self.asked.append(self.peak)
        graph = chain(1, 1)
        schedule: Any = type("Steps", (), {"steps": self.peak})()
        return piece, GraphRecord(graph, schedule, self.budget, 0, self.peak, 4000, 1 / self.peak)

    def within(self, budget_bytes: int) -> Sized:
        other = Sized(self.budget, budget_bytes)
        other.asked = self.asked
        return other


def fused_within(monkeypatch: pytest.MonkeyPatch, budget: int, more: Any) -> tuple[Sized, int | str]:
    """Plan where fusion makes a plan's peak `more` of it; return what was asked, and the peak or the refusal."""

    def compiled(
        joint: Any, planned: GraphRecord, outputs: int, *, keeps_order: bool, **_: Any
    ) -> fused.CompiledPasses:
        peak = more(planned.predicted_peak_bytes, keeps_order)
        graphs: Any = type("Graph", (), {"kernels": ["cpp_fused_gelu_0"]})()
        memory = fused.CompiledMemory(peak, 0, peak, "cpp_fused_gelu_0")
        return fused.CompiledPasses(replace(planned, predicted_peak_bytes=peak), graphs, graphs, memory, keeps_order)

    monkeypatch.setattr(fused, "compiled_plan", compiled)
    source = Sized(budget)
    piece: Any = Piece(None, type("Captured", (), {"forward_outputs": 1})())  # type: ignore[arg-type]
    try:
        return source, fused.fused_plan(source, piece).planned.predicted_peak_bytes
    except DoesNotFit as error:
        return source, error.message.partition("at kernel ")[2]


@pytest.mark.parametrize(
    ("more", "asked", "peak"),
    [
        (lambda size, kept: size, [1000], 1000),
        (lambda size, kept: size + 100, [1000, 890], 990),
        (lambda size, kept: size - 100, [1000, 1100], 1000),
        (lambda size, kept: size - 100 if size < 1050 else size, [1000, 1100], 900),
        (lambda size, kept: size - 100 if kept or size < 1050 else size, [1000, 1100], 1000),
        (lambda size, kept: size if kept else size + 300, [1000], 1000),
        (lambda size, kept: size + (size - 800) // 2, [1000, 890], 935),
        (lambda size, kept: 1200, [1000, 790], "'cpp_fused_gelu_0'"),
    ],
)
def test_planning_is_corrected_by_what_was_compiled(
    monkeypatch: pytest.MonkeyPatch, more: Any, asked: list[int], peak: int | str
) -> None:
    source, came_to = fused_within(monkeypatch, 1000, more)
    assert source.asked == asked
    assert len(source.asked) <= fused.MOST_COMPILED
    assert came_to == peak


class Moving(Sized):
    """Its plans move tensors, or recompute alone as another source; one of them fits no budget."""

    def __init__(self, *, recomputed: bool, moved: bool) -> None:
        super().__init__(1000)
        self.fits, self.recomputed = moved, Sized(1000) if recomputed else Moving.failing()

    @staticmethod
    def failing() -> Sized:
        source = Moving.__new__(Moving)
        Sized.__init__(source, 1000)
        source.fits, source.recomputed = False, source
        return source

    def planned(self, piece: Piece) -> tuple[Piece, GraphRecord]:
        if not self.fits:
            raise DoesNotFit("no plan fits")
        return super().planned(piece)

    def staying(self) -> ScheduleSource | None:
        return None if self.recomputed is self else self.recomputed


@pytest.mark.parametrize(
    ("recomputed", "moved", "times", "chosen"),
    [
        (True, True, (2, 1), "moved"),
        (True, True, (1, 2), "recomputed"),
        (True, False, (2, 1), "recomputed"),
        (False, True, (2, 1), "moved"),
        (False, False, (2, 1), "no plan fits"),
    ],
)
def test_a_compiled_plan_moves_tensors_only_where_that_takes_less_time(
    monkeypatch: pytest.MonkeyPatch, recomputed: bool, moved: bool, times: tuple[int, int], chosen: str
) -> None:
    source = Moving(recomputed=recomputed, moved=moved)
    made: list[fused.CompiledPasses] = []

    def corrected(given: ScheduleSource, piece: Any, _: Any) -> fused.CompiledPasses:
        _, plan = given.planned(piece)
        graphs: Any = type("Graph", (), {"kernels": ["moved" if given is source else "recomputed"]})()
        memory = fused.CompiledMemory(0, 0, 0, "")
        made.append(fused.CompiledPasses(plan, graphs, graphs, memory, keeps_order=False))
        return made[-1]

    monkeypatch.setattr(fused, "_corrected_plan", corrected)
    monkeypatch.setattr(
        fused.CompiledPasses,
        "time",
        lambda self, _: times[self.forward.kernels == ["moved"]],
    )
    nothing: Any = Piece(None, None)  # type: ignore[arg-type]
    if not (recomputed or moved):
        with pytest.raises(DoesNotFit, match=chosen):
            fused.fused_plan(source, nothing)
    else:
        assert fused.fused_plan(source, nothing).forward.kernels == [chosen]


def test_a_plan_with_many_short_kernels_is_estimated_to_take_longer() -> None:
    graph = chain(1, 1, 1, 1)
    planned = GraphRecord.of(graph, plain_run(graph), baseline_of(graph))
    joint: Any = type(
        "Joint", (), {"op": {op.name: JointOp(op.name, None, op.phase, (), (), ()) for op in graph.ops}}
    )()

    def time(kernels: int) -> float:
        passes: Any = type("Graph", (), {"kernels": ["cpp_fused"] * kernels})()
        none: Any = type("Graph", (), {"kernels": []})()
        memory = fused.CompiledMemory(0, 0, 0, "")
        return fused.CompiledPasses(planned, passes, none, memory, keeps_order=False).time(joint)

    assert 0 < time(1) < time(2) < time(len(graph.ops)) == time(100) == baseline_of(graph).time
