"""A small step run as planned and compared with eager.

It runs before any step of the user.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from remat_cli.core.schedule import with_frees
from remat_cli.pytorch.capture.capture_errors import random_states
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.joint import BOUNDARY, Joint
from remat_cli.pytorch.capture.joint_capture import Captured, check_supported, compiled
from remat_cli.pytorch.programs.program import divided
from remat_cli.pytorch.unstable.versions import unsupported


@functools.cache
def self_test() -> None:
    """Compare a small step of only recomputed ops with eager.

    The generators of random numbers stay as they are.

    Raises:
        UsageError: this torch does not run the given graphs.
    """
    put_back = random_states()
    try:
        _compare()
    finally:
        put_back()


def _compare() -> None:
    check_supported()
    expected = _gradient_and_buffer(_small_step)
    try:
        actual = _gradient_and_buffer(compiled(_small_step, _all_again))
    except Exception as error:
        raise unsupported(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error
    if not all(map(torch.equal, expected, actual)):
        raise unsupported("a small planned step has other gradients than eager")


def _small_step(x: torch.Tensor, weight: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x @ weight) * (buffer * 2)
    buffer.add_(1)
    return (y * y.t()).sum()


def _gradient_and_buffer(step: Callable[..., Any]) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(9.0).reshape(3, 3)
    weight, buffer = (x - 4).requires_grad_(), torch.ones(3)
    step(x, weight, buffer).backward()
    assert weight.grad is not None
    return weight.grad, buffer


def _all_again(captured: Captured) -> tuple[fx.GraphModule, fx.GraphModule]:
    joint = Joint.of(captured)
    names = [op.name for op in joint.ops]
    boundary = names.index(BOUNDARY)
    again = [op.name for op in joint.ops[:boundary] if op.recomputable]
    order = [*names[: boundary + 1], *again, *names[boundary + 1 :]]
    return divided(joint, with_frees(graph_of(joint, "self-test"), order))
