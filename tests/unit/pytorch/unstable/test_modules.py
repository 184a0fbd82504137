"""Hooks that others put on gradients."""

from __future__ import annotations

import torch

from remat_cli.pytorch.unstable.modules import hooks_on_gradients
from remat_cli.pytorch.update.first_step import FirstStep
from remat_cli.pytorch.update.updates import Updates


def test_only_hooks_of_others_count() -> None:
    """The watch of the first step is this package's own: a plan may use gradients up while it lasts."""
    parameter = torch.nn.Parameter(torch.ones(3))
    FirstStep(Updates(torch.optim.SGD([parameter], lr=0.1))).begin()
    assert hooks_on_gradients(parameter) == 0
    parameter.register_post_accumulate_grad_hook(lambda _: None)  # type: ignore[no-untyped-call]
    parameter.register_hook(lambda gradient: gradient)  # type: ignore[no-untyped-call]
    assert hooks_on_gradients(parameter) == 2
