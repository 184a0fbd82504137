"""Tensors and modules that are split among ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["AsyncCollectiveTensor"]

# A torch without distributed training has neither shards nor ranks.
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

# A name that FSDP1 gives to the modules that it manages; it puts views of its own in the place of parameters.
_OF_FSDP1 = "_is_fsdp_managed_module"


def is_managed_by_fsdp1(module: nn.Module) -> bool:
    """Return whether FSDP1 manages a module itself; parts are left out."""
    return _OF_FSDP1 in module.__dict__


def wait_for_part(value: DTensor) -> None:
    """Wait until a DTensor's part has arrived from other ranks."""
    local: Any = value._local_tensor
    if isinstance(local, AsyncCollectiveTensor):
        value._local_tensor = local.trigger_wait()  # type: ignore[no-untyped-call]


def part_of(value: DTensor) -> torch.Tensor:
    """Return this rank's part of a DTensor for autograd."""
    return value._local_tensor


def can_communicate_on(group: dist.ProcessGroup, device: str) -> bool:
    """Return whether ranks of a group can communicate tensors of a kind of device."""
    return torch.device(device) in group._device_types


def sharded_parameters(module: nn.Module) -> list[Any]:
    """Return FSDP2's records of parameters.

    While a parameter is gathered, the module shows the whole, not the shard.
    """
    states = [part._get_fsdp_state() for part in module.modules() if isinstance(part, FSDPModule)]
    groups = [state._fsdp_param_group for state in states if state._fsdp_param_group is not None]
    return [part for group in groups for part in group.fsdp_params]


def forms_of(part: Any) -> list[nn.Parameter]:
    """Return the forms that FSDP2's record of a parameter has: shard, whole, and rest after forward."""
    forms = [getattr(part, name, None) for name in ("sharded_param", "_unsharded_param", "_sharded_post_forward_param")]
    return [form for form in forms if form is not None]


def gathered_form(part: Any) -> nn.Parameter | None:
    """Return the whole that FSDP2's record of a parameter has gathered; None where it has not."""
    return getattr(part, "_unsharded_param", None)


def gradient_places(parts: list[Any], parameters: list[nn.Parameter]) -> list[tuple[Any, str]]:
    """Return where gradients are kept and hooks on them: objects, each with an attribute.

    Args:
        parts: FSDP2's records of parameters.
        parameters: parameters, shards among them.
    """
    accumulated = "unsharded_accumulated_grad"  # which torch 2.15 has in the gathered form's `grad`
    gathered = [form for part in parts if (form := gathered_form(part)) is not None]
    places: list[tuple[Any, str]] = [(part, accumulated) for part in parts if accumulated in vars(part)]
    places += [(part, "grad") for part in (*parameters, *gathered)]
    return places + [(part, "_post_accumulate_grad_hooks") for part in parameters]
