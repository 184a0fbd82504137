"""A training loop in eager mode, as torch's profiler measures it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from remat_cli.pytorch.capture.step import as_step, losses_in
from remat_cli.pytorch.memory.memory import peak_of
from remat_cli.pytorch.unstable import pytree


def peak_of_loop(build: Callable[[], Any], *, held: bool = True, accumulate: bool = False) -> int:
    """Run a loop of two steps; return the peak of the second one, in bytes beyond those from before.

    Args:
        build: returns the step, as the function that GRAPH names.
        held: all that the model returns is held in the backward pass.
        accumulate: gradients of the first step are there.
    """
    torch.manual_seed(0)
    with created_parameters() as parameters:
        step = as_step(build(), "")

    def once() -> None:
        returned = step.model(*step.inputs, **step.keyword_inputs)
        tensors = [leaf for leaf in pytree.tree_leaves(returned) if isinstance(leaf, torch.Tensor)]
        ends = losses_in(returned, [tensor for tensor in tensors if tensor.requires_grad])
        if not held:
            del returned, tensors
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])

    once()
    if not accumulate:
        for parameter in parameters:
            parameter.grad = None
    return peak_of(once, "cpu")


@contextmanager
def created_parameters() -> Iterator[list[nn.Parameter]]:
    """Collect the parameters of all modules that are built, also of those that no argument names."""
    created: list[nn.Parameter] = []
    hook = nn.modules.module.register_module_parameter_registration_hook(
        lambda module, name, parameter: created.append(parameter)
    )
    try:
        yield created
    finally:
        hook.remove()
