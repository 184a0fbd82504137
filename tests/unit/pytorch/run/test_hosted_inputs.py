"""Inputs and saved tensors of blocks on the host: eager's bits, at the predicted peak, below that without it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from remat_cli.pytorch.plan.region_record import RegionsRecord
from remat_cli.torch import plan_of, planned

WIDTH, ROWS = 32, 2048
INPUT = 4 * WIDTH * ROWS
LINK: dict[str, Any] = {"offload": True, "link_bandwidth": "12GB/s", "device": "h100"}


class Residual(nn.Module):
    """Does not keep what it returns for its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        y: torch.Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return x + (y if scale is None else y * scale)


class Rectified(Residual):
    """Keeps what it returns: the gradient of relu needs it."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return F.relu(super().forward(x, scale))


class Counted(Residual):
    """Changes a buffer whose old content the step reads."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        y = super().forward(x, self.scale.clone())
        with torch.no_grad():
            self.scale.mul_(0.9).add_(y.mean(0) * 0.01)
        return y


class Masked(Residual):
    """Reads a tensor that is neither parameter nor buffer nor argument, and keeps it for its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.rand(ROWS, WIDTH)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, scale) * self.mask[: len(x)]


class Stack(nn.Module):
    """Blocks behind an embedding, and a loss."""

    def __init__(self, block: type[Residual] = Residual, depth: int = 5) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
        self.blocks = nn.ModuleList(block() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        loss: torch.Tensor = self.last(x).square().mean()
        return loss


class Scaled(Stack):
    """All blocks are given one tensor, which nobody makes anew."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        scale = torch.full_like(x, 0.5)
        for block in self.blocks:
            x = block(x, scale)
        loss: torch.Tensor = self.last(x).square().mean()
        return loss


class Listed(Stack):
    """What blocks are given is in a list to the end of the forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = [self.first(x)]
        for block in self.blocks:
            states.append(block(states[-1]))
        loss: torch.Tensor = self.last(states[-1]).square().mean()
        return loss


def trained(model: nn.Module, rows: tuple[int, ...] = (ROWS,) * 3, *, twice: bool = False, **options: Any) -> Any:
    """Train a model as planned beside eager, and return its record."""
    torch.manual_seed(0)
    eager = copy.deepcopy(model)
    planned(model, **{"budget": "min", "regions": "blocks.*", **LINK, **options})
    for number, count in enumerate(rows):
        torch.manual_seed(number)
        x = torch.randn(count, WIDTH)
        losses = []
        for each in (model, eager):
            loss = each(x)
            loss.backward(retain_graph=twice)
            if twice:
                loss.backward()
            losses.append(loss)
        assert torch.equal(*losses)
        for one, other in zip(model.parameters(), eager.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)  # type: ignore[arg-type]
        model.zero_grad()
        eager.zero_grad()
    return plan_of(model)


def trained_by_kernels(**options: Any) -> Any:
    """Train a stack with fused kernels beside eager, to rounding, and return its record."""
    model = Stack(depth=3)
    eager = copy.deepcopy(model)
    planned(model, regions="blocks.*", fused=True, **{**LINK, **options})
    for _ in range(2):
        x = torch.randn(ROWS, WIDTH)
        model(x).backward()
        eager(x).backward()
        assert_gradients_close(model, eager)
        model.zero_grad()
        eager.zero_grad()
    with torch.no_grad():
        model(x)  # ends the measurement
    return plan_of(model)


def assert_gradients_close(model: nn.Module, eager: nn.Module) -> None:
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("make", [Stack, Scaled], ids=["a stack", "one input for all"])
def test_inputs_leave_and_the_peak_is_the_predicted_one(make: Callable[[], Stack]) -> None:
    record = trained(make())
    # The last inputs come right back, so the least peak does not need them away.
    assert list(record.away.values()) in ([INPUT] * 3, [INPUT] * 4, [INPUT] * 5)
    assert set(record.measured_peak_bytes) == {record.predicted_peak_bytes}
    kept = trained(make(), offload=False)
    assert record.predicted_peak_bytes <= kept.predicted_peak_bytes - INPUT
    assert "on the host between passes" in str(record)


@pytest.mark.parametrize(
    ("model", "most"), [(lambda: Stack(Rectified), 1), (Listed, 1)], ids=["blocks keep outputs", "a list holds inputs"]
)
def test_inputs_that_others_hold_stay(model: Callable[[], Stack], most: int) -> None:
    record = trained(model())
    assert len(record.away) <= most
    assert set(record.measured_peak_bytes) == {record.predicted_peak_bytes}


def test_nothing_leaves_where_all_fits_and_copies_take_long() -> None:
    record = trained(Stack(), budget="100%", link_bandwidth="1kB/s")
    assert record.away == {}
    assert record.overhead == 0


def test_what_waits_for_a_slow_link_is_counted() -> None:
    slow, fast = (trained(Stack(), link_bandwidth=rate) for rate in ("100kB/s", "12GB/s"))
    assert slow.away
    assert slow.overhead > 10 * max(fast.overhead, 0.01)


def test_blocks_that_change_a_buffer_run_by_their_plans() -> None:
    record = trained(Stack(Counted))
    assert record.away
    assert record.unplanned == {}
    assert set(record.measured_peak_bytes) == {record.predicted_peak_bytes}


def test_sizes_that_change() -> None:
    assert trained(Stack(), (ROWS, ROWS // 2, 700, ROWS, 1200)).calls == 5


def test_a_graph_that_is_kept_goes_back_twice() -> None:
    trained(Stack(), twice=True)


def test_fused_kernels_run_between_copies() -> None:
    record = trained_by_kernels(budget="60%")
    assert isinstance(record, RegionsRecord)
    assert record.away
    assert set(record.measured_peak_bytes) == {record.predicted_peak_bytes}


FAST: dict[str, Any] = {"link_bandwidth": "100TB/s", "budget": "50%"}


@pytest.mark.parametrize("block", [Residual, Rectified, Counted, Masked])
def test_saved_tensors_leave_where_the_link_is_fast(block: type[Residual]) -> None:
    record = trained(Stack(block), **FAST)
    assert record.saved_away
    assert record.saved_away == {name: record.points[name].kept for name in record.saved_away}
    assert record.unplanned == {}
    # The mask is measured in the first step, and counted from then on.
    assert record.measured_peak_bytes[-1] == record.predicted_peak_bytes
    assert "of saved tensors on the host between passes" in str(record)
    without = trained(Stack(block), budget="50%", offload=False)
    assert record.overhead < without.overhead / 2


def test_saved_tensors_of_sizes_that_change() -> None:
    record = trained(Stack(), (ROWS, ROWS // 2, 700, ROWS, 1200), **FAST)
    assert record.calls == 5
    assert record.saved_away


def test_saved_tensors_of_a_graph_that_is_kept_come_back_twice() -> None:
    assert trained(Stack(), (ROWS,), twice=True, **FAST).saved_away


def test_saved_tensors_of_a_step_that_never_goes_back_are_let_go_of() -> None:
    model = Stack(depth=3)
    eager = copy.deepcopy(model)
    planned(model, regions="blocks.*", **{**LINK, **FAST})
    x = torch.randn(ROWS, WIDTH)
    model(x).backward()
    losses = [model(x), model(x)]  # the first goes back after the second has gone forward
    for each in (model, eager):
        each.zero_grad()
    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    (eager(x) + eager(x)).backward()
    assert_gradients_close(model, eager)
    model(x)  # goes back never
    with torch.no_grad():
        model(x)  # ends the measurement
    assert plan_of(model).calls == 4


def test_fused_kernels_save_tensors_on_the_host() -> None:
    record = trained_by_kernels(**{**FAST, "budget": "75%"})
    assert record.saved_away
    assert set(record.measured_peak_bytes) == {record.predicted_peak_bytes}
