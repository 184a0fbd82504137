"""`planned(..., split=True)`: the step runs in parts, within the budget, with the same gradients to rounding."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from remat_cli.core.graph import Graph
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of
from remat_cli.errors import DoesNotFit, UsageError
from remat_cli.pytorch.capture import piece as piece_module
from remat_cli.pytorch.capture.joint_capture import Captured
from remat_cli.pytorch.capture.split import split
from remat_cli.pytorch.memory.memory import peak_of
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.run.call import PlannedCall
from remat_cli.pytorch.run.planned import plan_of, planned
from remat_cli.splitting import Split

QUICK = {"time_limit": 0.4}
BLOCKS = {"time_limit": 0.05}  # for each plan of a block; cuts are searched for in 20 times that


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


class Wide(nn.Module):
    """A block whose peak is one of its ops'."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 512), nn.Linear(512, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(F.gelu(self.up(x)))
        return y


class Branching(nn.Module):
    """Cannot be captured whole, as a branch depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Wide() for _ in range(2))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for block in self.blocks:
            x = block(x)
            if x.sum() > 1e9:
                x = x / 2
        return {"loss": x.square().mean()}


class EqualLayers(nn.Module):
    """Equal layers with batch norms between them, which see all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer for _ in range(3) for layer in (Wide(), nn.BatchNorm1d(8))))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layers(x).square().sum()}


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
        if isinstance(plan.whole, Graph):
            time = simulate(plan.graph, plan.schedule).time
            assert plan.overhead == pytest.approx(time / baseline_of(plan.whole).time - 1, abs=1e-6)
        assert plan.predicted_peak_bytes < 0.71 * plan.plain_peak_bytes or plan is not plans[0]
        for measured in plan.measured_peak_bytes:
            workspace = max(op.workspace_bytes for op in plan.graph.ops)
            assert plan.predicted_peak_bytes - workspace <= measured <= plan.predicted_peak_bytes + 64
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_cuts_are_written_once_for_drafts_plans_and_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[int, str]] = []

    def counted(captured: Captured, cuts: Mapping[str, Split]) -> Captured:
        written.append((id(captured), str(cuts)))
        return split(captured, cuts)

    monkeypatch.setattr(piece_module, "split", counted)
    model = planned(Head(), budget="70%", split=True, options=QUICK)
    steps(model, *words(), count=1)
    assert plan_of(model).graphs[0].parts
    assert len(written) == len(set(written)) > 0


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

    step = planned(loss, budget="50%", split=True, options=QUICK)
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


def test_equal_layers_are_split_together() -> None:
    """One of them in parts leaves the others in the way."""
    model = planned(EqualLayers(), budget="40%", split=True, options=QUICK)
    steps(model, torch.randn(256, 8), count=1)
    (plan,) = plan_of(model).graphs
    assert "and 2 others in" in plan.parts
    assert max(plan.measured_peak_bytes, default=0) <= plan.predicted_peak_bytes <= (plan.budget_bytes or 0)


def test_blocks_run_in_parts_where_the_whole_cannot_be_captured() -> None:
    model, rows = Branching(), torch.randn(256, 8)
    twin = copy.deepcopy(model)
    steps(twin, rows, count=1)
    planned(model, budget="45%", split=True, options=BLOCKS)
    steps(model, rows)
    record: Any = plan_of(model)
    assert "parts" in str(record)
    assert max(record.measured_peak_bytes) <= record.predicted_peak_bytes <= record.budget_bytes
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_a_refusal_of_blocks_tells_what_split_would_do() -> None:
    for share, effect in {"45%": "split=True fits: in parts", "5%": "split=True would not help: in parts"}.items():
        model = planned(Branching(), budget=share, regions="blocks.*", options=BLOCKS)
        with pytest.raises(DoesNotFit, match="no plans of the regions fit") as refusal:
            steps(model, torch.randn(256, 8))
        assert effect in (refusal.value.hint or "")


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


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Captured]:
    """Collect the captures that planned calls are given."""
    seen: list[Captured] = []
    divide = PlannedCall.divide

    def noted(call: PlannedCall, captured: Captured) -> Any:
        seen.append(captured)
        return divide(call, captured)

    monkeypatch.setattr(PlannedCall, "divide", noted)
    return seen


def ran_as_eager(model: nn.Module, inputs: Sequence[tuple[torch.Tensor, ...]], **options: Any) -> list[GraphRecord]:
    """Plan a model, and hold gradients and peaks against eager's at several sizes; return the plan at each."""
    twin, ran = copy.deepcopy(model), list[GraphRecord]()
    planned(model, split=True, options=QUICK, **options)
    for given in inputs:
        steps(twin, *given, count=1)
        steps(model, *given, count=2)  # the first step tells which outputs are let go of
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert one.grad is not None
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
        model.zero_grad()
        measured = peak_of(partial(steps, model, *given, count=1), "cpu")
        model.zero_grad()
        plan = plan_of(model).last
        assert plan is not None
        workspace = max(op.workspace_bytes for op in plan.graph.ops)
        predicted = plan.predicted_peak_bytes - plan.fixed_bytes
        assert predicted - workspace <= measured <= predicted + 64
        assert plan.predicted_peak_bytes <= (plan.budget_bytes or 0)
        ran.append(plan)
    return ran


@pytest.mark.parametrize(("budget", "logits"), [("60%", True), ("1.5MB", False)])
def test_one_capture_runs_in_parts_at_all_lengths(captures: list[Captured], budget: str, logits: bool) -> None:
    model = Head(logits=logits)
    ran = ran_as_eager(model, [words(count) for count in (32, 27, 30, 31, 36)], budget=budget)
    assert len(captures) == 2
    assert all(plan.parts for plan in ran)
    assert len(plan_of(model).graphs) <= 3


def test_one_capture_runs_in_parts_of_images(captures: list[Captured]) -> None:
    model = Images()
    ran = ran_as_eager(model, [(torch.randn(count, 3, 16, 16),) for count in (16, 14, 15, 9)], budget="60%")
    assert len(captures) == 2
    assert all(plan.parts for plan in ran)


def test_number_of_parts_follows_the_size() -> None:
    short, long = ran_as_eager(Head(), [words(count) for count in (32, 128)], budget="1.5MB")
    ((seed, few),), ((same, many),) = short.cuts.items(), long.cuts.items()
    assert seed == same
    assert many.parts > 2 * few.parts


def test_fewer_rows_than_parts_have_a_plan_of_their_own() -> None:
    model = Images()
    many, few = ran_as_eager(model, [(torch.randn(count, 3, 16, 16),) for count in (16, 3)], budget="25%")
    assert max(cut.parts for cut in many.cuts.values()) > 3
    assert all(cut.parts <= 3 for cut in few.cuts.values())


def test_marked_sizes_have_one_capture_in_parts(captures: list[Captured]) -> None:
    inputs = [words(count) for count in (32, 27, 36)]
    for given in inputs:
        for tensor in given:
            torch._dynamo.mark_dynamic(tensor, 1)
    assert all(plan.parts for plan in ran_as_eager(Head(), inputs, budget="60%"))
    assert len(captures) == 1


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


@pytest.mark.parametrize("content", [None, "", "[]", '{"mm": 0}'], ids=["folder", "empty", "list", "number"])
def test_kept_parts_that_do_not_hold_are_told(
    content: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    call: Any = planned(Head(), budget="60%", split=True, plans=tmp_path)._compiled_call_impl
    folder = call._keeper.source.folder
    path = folder.path("parts", "key")
    assert folder.cuts("key") is None
    assert not caplog.text
    path.mkdir() if content is None else path.write_text(content)
    assert folder.cuts("key") is None
    assert f"what is kept in {path} does not hold, and is made anew" in caplog.text


def test_without_need_nothing_is_split() -> None:
    model = planned(Head(), budget="100%", split=True, options=QUICK)
    steps(model, *words(), count=1)
    assert not plan_of(model).graphs[0].parts


def test_split_is_true_or_false() -> None:
    with pytest.raises(UsageError, match="split is 2"):
        planned(Images(), budget="60%", split=2)  # type: ignore[arg-type]
