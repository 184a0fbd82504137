"""`planned(..., split=True)`: the step runs in parts, within the budget, with the same gradients to rounding."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from remat_cli.errors import DoesNotFit, UsageError
from remat_cli.pytorch.run.planned import plan_of, planned

QUICK = {"time_limit": 0.4}


class Head(nn.Module):
    def __init__(self, words: int = 3000, *, logits: bool = False) -> None:
        super().__init__()
        self.embed, self.up, self.head = nn.Embedding(words, 8), nn.Linear(8, 8), nn.Linear(8, words, bias=False)
        self.logits = logits

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.head(F.gelu(self.up(self.embed(tokens))))
        loss = F.cross_entropy(scores.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": scores} if self.logits else {"loss": loss}


class Images(nn.Module):
    """Labels are made within the step; each image is normalized by itself."""

    def __init__(self) -> None:
        super().__init__()
        convs = (nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
        self.body = nn.Sequential(*convs, nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": F.cross_entropy(self.body(images), torch.zeros(len(images), dtype=torch.long))}


def words(count: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(3000, (4, count)), torch.randint(3000, (4, count))


def steps(model: nn.Module, *given: torch.Tensor, count: int = 3) -> None:
    for _ in range(count):
        model.zero_grad()
        model(*given)["loss"].backward()


@pytest.mark.parametrize("model", [Head(), Head(logits=True), Images()], ids=["head", "logits", "images"])
def test_a_step_in_parts_keeps_its_budget_and_its_gradients(model: nn.Module) -> None:
    given = (torch.randn(8, 3, 16, 16),) if isinstance(model, Images) else words()
    twin = copy.deepcopy(model)
    steps(twin, *given, count=1)
    planned(model, budget="70%", split=True, options=QUICK)
    steps(model, *given)
    plans = plan_of(model).graphs
    assert all(plan.predicted_peak_bytes <= (plan.budget_bytes or 0) for plan in plans)
    assert any(plan.parts for plan in plans)
    for plan in plans:
        assert plan.predicted_peak_bytes < 0.71 * plan.plain_peak_bytes or plan is not plans[0]
        for measured in plan.measured_peak_bytes:
            workspace = max(op.workspace_bytes for op in plan.graph.ops)
            assert plan.predicted_peak_bytes - workspace <= measured <= plan.predicted_peak_bytes + 64
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_compiled_kernels_run_in_parts_at_the_peak_that_is_read_from_them() -> None:
    model, given = Head(), words()
    twin = copy.deepcopy(model)
    steps(twin, *given, count=1)
    planned(model, budget="40%", split=True, fused=True, options=QUICK)
    steps(model, *given)
    (plan,) = plan_of(model).graphs
    assert plan.parts
    assert "fused kernels" in str(plan)
    assert max(plan.measured_peak_bytes) == pytest.approx(plan.predicted_peak_bytes, abs=64)
    assert plan.predicted_peak_bytes <= (plan.budget_bytes or 0) < 0.41 * plan.plain_peak_bytes
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_gradients_scaled_in_the_backward_pass_are_counted() -> None:
    """They stay beside the gradients that the forward pass has saved, as the backward pass may run again."""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3000, bias=False))

    def loss(rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(rows), labels)

    step = planned(loss, budget="min", split=True, options=QUICK)
    given = torch.randn(128, 64), torch.randint(3000, (128,))
    for _ in range(3):
        model.zero_grad()
        step(*given).backward()  # type: ignore[no-untyped-call]
    (plan,) = plan_of(step).graphs
    assert plan.parts
    assert plan.measured_peak_bytes == [pytest.approx(plan.predicted_peak_bytes, abs=512)] * 2


def test_a_refusal_tells_what_split_would_do() -> None:
    model = planned(Head(), budget="60%", options=QUICK)
    with pytest.raises(DoesNotFit) as refusal:
        steps(model, *words())
    assert refusal.value.hint is not None
    assert "split=True fits: the region around '_log_softmax_backward_data' in" in refusal.value.hint


def test_a_refusal_tells_where_split_does_not_help() -> None:
    model = planned(Head(), budget="200kB", options=QUICK)
    with pytest.raises(DoesNotFit) as refusal:
        steps(model, *words())
    assert "split=True would not help: what is in memory at the end" in (refusal.value.hint or "")


def test_where_parts_do_not_help_either_the_refusal_stands() -> None:
    model = planned(Head(), budget="200kB", split=True, options=QUICK)
    with pytest.raises(DoesNotFit, match="no plan fits a budget of 200") as refusal:
        steps(model, *words())
    assert "split was tried: what is in memory at the end" in (refusal.value.hint or "")


def test_each_shape_is_planned_in_parts_of_its_own() -> None:
    model = planned(Head(), budget="60%", split=True, options=QUICK)
    for count in (32, 48):
        steps(model, *words(count), count=1)
    assert [bool(plan.parts) for plan in plan_of(model).graphs] == [True, True]


def test_parts_are_kept_between_runs(tmp_path: Path) -> None:
    given, peaks = words(), []
    for _ in range(2):
        model = planned(Head(), budget="60%", split=True, plans=tmp_path, options=QUICK)
        steps(model, *given, count=1)
        (plan,) = plan_of(model).graphs
        assert plan.parts
        peaks.append(plan.predicted_peak_bytes)
    assert len(set(peaks)) == 1
    assert len(list(tmp_path.glob("parts-*.json"))) == 1
    assert "planning" not in str(plan_of(model))


def test_without_need_nothing_is_split() -> None:
    model = planned(Head(), budget="100%", split=True, options=QUICK)
    steps(model, *words(), count=1)
    assert not plan_of(model).graphs[0].parts


def test_split_is_true_or_false() -> None:
    with pytest.raises(UsageError, match="split is 2"):
        planned(Images(), budget="60%", split=2)  # type: ignore[arg-type]
