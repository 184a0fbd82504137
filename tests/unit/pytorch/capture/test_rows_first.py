"""Graphs that are changed so that their ops work on rows have the same results, and neither means nor detours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from remat_cli.pytorch.capture.ops import arguments
from remat_cli.pytorch.capture.rows_first import VIEWS, rows_first

aten = torch.ops.aten
MEAN = 1

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
# Of values in four rows, labels of the rows, and shares of the values.
LOSSES: dict[str, Loss] = {
    "cross_entropy": lambda x, labels, _: F.cross_entropy(x, labels),
    "cross_entropy_of_pixels": lambda x, labels, _: F.cross_entropy(x.view(1, 3, 2, 2), labels.view(1, 2, 2)),
    "cross_entropy_of_one": lambda x, labels, _: F.cross_entropy(x[0], labels[1]),
    "weighted_cross_entropy": lambda x, labels, shares: F.cross_entropy(x, labels, weight=shares[0]),
    "mse": lambda x, _, shares: F.mse_loss(x, shares),
    "sum_of_squares": lambda x, _, shares: F.mse_loss(x, shares, reduction="sum"),
    "smooth_l1": lambda x, _, shares: F.smooth_l1_loss(x, shares),
    "huber": lambda x, _, shares: F.huber_loss(x, shares, delta=0.3),
    "binary": lambda x, _, shares: F.binary_cross_entropy_with_logits(x, shares),
    "mean": lambda x, _, shares: (x * shares).mean(),
}
STAY_MEANS = {"weighted_cross_entropy", "cross_entropy_of_one"}


def changed(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return what is traced of a function, and the same with rows first."""
    before, after = (make_fx(function, tracing_mode="fake")(*inputs) for _ in range(2))
    rows_first(after.graph)
    after.graph.lint()
    after.recompile()
    return before, after


@pytest.mark.parametrize("name", LOSSES)
def test_a_mean_of_losses_is_a_sum_and_a_division(name: str) -> None:
    def step(x: torch.Tensor, labels: torch.Tensor, shares: torch.Tensor) -> Any:
        loss = LOSSES[name](x, labels, shares)
        return loss, *torch.autograd.grad(loss, [x])

    inputs = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 2, -100, 1]), torch.rand(4, 3)
    before, after = changed(step, *inputs)
    torch.testing.assert_close(after(*inputs), before(*inputs))
    ops = [node for node in after.graph.nodes if node.op == "call_function"]
    assert aten.mean.default not in {node.target for node in ops}
    # What goes back from a mean over labels divides by their weight, which is given to it.
    left = {node.target for node in ops if arguments(node).get("reduction") == MEAN}
    assert bool(left - {aten.nll_loss_backward.default, aten.nll_loss2d_backward.default}) == (name in STAY_MEANS)


def test_what_is_computed_between_views_is_computed_before_them() -> None:
    def between(x: torch.Tensor) -> torch.Tensor:
        return (x.view(12).tanh() * 2).view(4, 3).sum(0)

    before, after = changed(between, x := torch.randn(4, 3))
    assert torch.equal(after(x), before(x))
    assert [node.target for node in before.graph.nodes if node.target in VIEWS]
    assert not [node.target for node in after.graph.nodes if node.target in VIEWS]


def test_what_is_not_contiguous_keeps_its_views() -> None:
    def transposed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.t().reshape(12).tanh() + y.t().contiguous().view(12)).view(3, 4).sum(0)

    inputs = torch.randn(4, 3), torch.randn(4, 3)
    before, after = changed(transposed, *inputs)
    assert torch.equal(after(*inputs), before(*inputs))


@pytest.mark.parametrize("shape", [(4, 3), (2, 6), (12,)])
def test_a_view_is_left_out_only_where_its_shape_is_its_base_s(shape: tuple[int, ...]) -> None:
    def viewed(x: torch.Tensor) -> torch.Tensor:
        return x.view(3, 4).view(2, 6).view(shape).sum(0)

    before, after = changed(viewed, x := torch.randn(4, 3))
    assert torch.equal(after(x), before(x))
    count = len([node for node in after.graph.nodes if node.target in VIEWS])
    assert count == (shape != (4, 3))
