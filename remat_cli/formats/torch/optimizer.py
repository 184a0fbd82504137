"""How much memory an optimizer keeps beside the parameters."""

from __future__ import annotations

import torch

from remat_cli.errors import UsageError
from remat_cli.formats.torch.ops import storage_key


def optimizer_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimizer's state: of what it has or, before its first step, of what that will make.

    A twin of the optimizer takes one step on tensors without data.

    Raises:
        UsageError: the optimizer looks at values, which such tensors do not have.
    """
    return _state_bytes(optimizer) or _state_bytes(_stepped(optimizer))


def _stepped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    try:
        groups = [{**group, "params": [_without_data(p) for p in group["params"]]} for group in optimizer.param_groups]
        twin: torch.optim.Optimizer = type(optimizer)(groups)  # type: ignore[call-arg]  # each class has its defaults
        twin.step()
    except Exception as error:
        name = type(optimizer).__name__
        raise UsageError(
            f"the state of optimizer {name} cannot be told before its first step: {type(error).__name__}: {error}",
            hint="name one with as much state instead, such as adam; or plan after its first step",
        ) from error
    return twin


def _without_data(parameter: torch.Tensor) -> torch.Tensor:
    twin = torch.nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
    twin.grad = torch.empty_like(twin) if parameter.requires_grad else None
    return twin


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Sum the state beside single numbers, such as counters of steps, which are not on the device."""
    states = (value for state in optimizer.state.values() for value in state.values())
    tensors = [value for value in states if isinstance(value, torch.Tensor) and value.dim() > 0]
    return sum({storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())
