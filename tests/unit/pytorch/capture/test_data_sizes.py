"""Sizes that depend on the data of inputs: known of inputs alone, and constants of what is captured then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx

from remat_cli.pytorch.capture.data_sizes import DataSizes

X, W = torch.tensor([3, 1, 2, 0, 1]), torch.ones(5, 2, requires_grad=True)
MASK = torch.tensor([True, False, True, True, False])


def parted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    mask = x != 1
    mask[0] = False
    return w[mask].sum()


def drawn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w[torch.rand(5) < 0.5].sum()


def captured(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[fx.GraphModule, Sequence[Any]]:
    seen: list[tuple[fx.GraphModule, Sequence[Any]]] = []

    def look(module: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        seen.append((module, given))
        return module.forward

    torch.compile(function, backend=look, fullgraph=True, dynamic=False)(*inputs)
    return seen[0]


@pytest.mark.parametrize(
    ("function", "inputs", "known"),
    [
        (lambda x, w: (w * 2).sum(), (X, W), ()),
        # What is indexed may depend on parameters: the mask alone decides.
        (lambda x, w: w.exp()[x != 1].sum() + x[x != 1].sum(), (X, W), ((3, None), (3,))),
        (lambda mask, w: w[mask].sum(), (MASK, W), ((3, None),)),
        (lambda x, w: x.nonzero().sum() + w.sum(), (X, W), ((4, None),)),
        (lambda x, w: torch.unique(x).sum() + w.sum(), (X, W), ((4,),)),
        (lambda x, w: torch.unique(x, return_inverse=True)[0].sum() + w.sum(), (X, W), ((4,), (4,))),
        (lambda x, w: torch.zeros(int(x.max()) + 1).sum() + w.sum(), (X, W), (3,)),
        (lambda x, w: w[w[:, 0] > 0].sum(), (X, W), None),
        (parted, (X, W), None),
        (drawn, (X, W), None),
    ],
)
def test_what_inputs_decide_on_is_known(function: Callable[..., Any], inputs: Sequence[Any], known: Any) -> None:
    module, given = captured(function, inputs)
    before = torch.get_rng_state()
    assert DataSizes(module).of(given) == known
    assert torch.equal(torch.get_rng_state(), before)
