"""Models that FSDP2 has sharded (`fully_shard`), or tensor parallelism (DTensors): what all ranks decide together.

A rank that rehearses a step, or raises an error, while others do not, would leave these waiting in a collective.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from remat_cli.errors import RematError, UsageError

T = TypeVar("T")

_SHARDING = (FSDPModule, nn.parallel.DistributedDataParallel)
_PLAIN = frozenset({nn.Parameter, torch.Tensor, type(None)})  # what a module may have for a parameter


def has_plain_parameters(module: nn.Module) -> bool:
    """Tell whether nothing shards a module, or gives it parameters of a class of its own. Each call asks: one walk."""
    left = [module]
    while left:
        part = left.pop()
        own = part.__dict__
        if isinstance(part, _SHARDING) or "_is_fsdp_managed_module" in own:
            return False
        if any(type(parameter) not in _PLAIN for parameter in own["_parameters"].values()):
            return False
        left.extend(child for child in own["_modules"].values() if child is not None)
    return True


def is_sharded(module: nn.Module) -> bool:
    """Tell whether FSDP2 manages a module, or parts of it."""
    return any(isinstance(part, FSDPModule) for part in module.modules())


def is_distributed(module: nn.Module) -> bool:
    """Tell whether a module is sharded by FSDP2, or has DTensors among its parameters, as in tensor parallelism."""
    return is_sharded(module) or any(isinstance(parameter, DTensor) for parameter in module.parameters())


def check_regions_are_whole(regions: Mapping[str, nn.Module]) -> None:
    """Check that no part of a region is sharded apart from it.

    Raises:
        UsageError: one is.
    """
    for path, region in regions.items():
        inner = next((name for name, part in region.named_modules() if name and isinstance(part, FSDPModule)), None)
        if inner is not None:
            raise UsageError(
                f"regions: {path!r} has a part of its own, {inner!r}, that fully_shard was given",
                hint=f"name the parts that it was given: regions='{path}.{inner}'",
            )


def check_not_offloaded(module: nn.Module) -> None:
    """Check that the shards of a model are on the device that computes.

    Raises:
        UsageError: they are on the host.
    """
    for name, part in module.named_parameters():
        if isinstance(part, DTensor) and part.device.type != part.device_mesh.device_type:
            raise UsageError(
                f"parameter {name!r} is on {part.device.type}, as CPUOffloadPolicy has it, and the step runs on "
                f"{part.device_mesh.device_type}: such models cannot be planned",
                hint="shard without offload_policy",
            )


@dataclass(frozen=True)
class Ranks:
    """The ranks over which a model is sharded; this one alone where it is not.

    Attributes:
        groups: of processes, one for each dimension of the mesh.
        device: kind of device on which they communicate.
    """

    groups: Sequence[Any] = ()
    device: str = "cpu"

    @classmethod
    def of(cls, module: nn.Module) -> Ranks:
        """Return those of a model."""
        meshes = [part.device_mesh for part in parameters_at_rest(module) if isinstance(part, DTensor)]
        if not meshes:
            return cls()
        groups = list(dict.fromkeys(group for mesh in meshes for group in mesh.get_all_groups()))
        return cls(groups, _device_to_ask_on(groups, meshes[0].device_type))

    def most(self, *values: int) -> list[int]:
        """Return the largest of each of these values on any rank."""
        if not self.groups:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64, device=self.device)
        for group in self.groups:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
        return [int(value) for value in tensor.tolist()]

    def all(self, value: T) -> list[T]:
        """Return what all ranks have given, in one order on all of them."""
        found: list[Any] = [value]
        for group in self.groups:
            gathered: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(gathered, found, group=group)
            found = [item for items in gathered for item in items]
        return found

    def all_or_none(self, refusal: RematError | None) -> None:
        """Have all ranks go on, or none.

        Raises:
            RematError: what a rank gave.
        """
        said = self.all(None if refusal is None else (type(refusal), refusal.message, refusal.hint))
        if refusal is not None:
            raise refusal
        for rank, other in enumerate(said):
            if other is not None:
                kind, message, hint = other
                raise kind(f"rank {rank}: {message}", hint=hint)


def arrived(value: Any) -> Any:
    """Return a tensor that is still on its way from other ranks once it is here; any other value as it is."""
    if isinstance(value, DTensor):
        local: Any = value._local_tensor
        if isinstance(local, AsyncCollectiveTensor):
            value._local_tensor = local.trigger_wait()  # type: ignore[no-untyped-call]
        return value
    return _Arrived.apply(value) if isinstance(value, AsyncCollectiveTensor) else value  # type: ignore[no-untyped-call]


class _Arrived(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, tensor: Any) -> torch.Tensor:
        waited: torch.Tensor = tensor.trigger_wait()
        return waited.view_as(waited)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _device_to_ask_on(groups: Sequence[Any], device: str) -> str:
    """Return the host where all groups communicate over it, too: it need not wait for the device then."""
    return "cpu" if all(torch.device("cpu") in group._device_types for group in groups) else device


def _sharded_parts(module: nn.Module) -> list[Any]:
    """Return what FSDP2 has for each parameter. While one is gathered the module shows the whole, not the shard."""
    states = [part._get_fsdp_state() for part in module.modules() if isinstance(part, FSDPModule)]
    groups = [state._fsdp_param_group for state in states if state._fsdp_param_group is not None]
    return [part for group in groups for part in group.fsdp_params]


def parameters_at_rest(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a module: of those that FSDP2 manages the shards, also while they are gathered."""
    parts = _sharded_parts(module)
    managed = {id(shown) for part in parts for shown in _forms(part)}
    return [*(part.sharded_param for part in parts), *(p for p in module.parameters() if id(p) not in managed)]


def gathered_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return what FSDP2 has gathered of the parameters of a module, and holds beside the shards now."""
    gathered = {id(form) for part in _sharded_parts(module) for form in _forms(part)[1:]}
    return [parameter for parameter in module.parameters() if id(parameter) in gathered]


def _forms(part: Any) -> list[nn.Parameter]:
    """Return what a module shows of a parameter in turn: its shard, the whole, and what is left after forward."""
    forms = [getattr(part, name, None) for name in ("sharded_param", "_unsharded_param", "_sharded_post_forward_param")]
    return [form for form in forms if form is not None]


@contextmanager
def gradients_kept(module: nn.Module) -> Iterator[None]:
    """Have a step leave the gradients of parameters as they are, and run no hook on them."""
    sharded = _sharded_parts(module)
    # Gradients that are not reduced yet, where the caller accumulates them by set_requires_gradient_sync(False).
    gathered = [part._unsharded_param for part in sharded if hasattr(part, "_unsharded_param")]
    shards = [part.sharded_param for part in sharded]
    parameters = list({id(part): part for part in (*module.parameters(), *shards)}.values())
    accumulated = "unsharded_accumulated_grad"  # which torch 2.15 has in `_unsharded_param.grad`
    holders: list[tuple[Any, str]] = [(part, accumulated) for part in sharded if accumulated in vars(part)]
    holders += [(part, "grad") for part in (*parameters, *gathered)]
    holders += [(part, "_post_accumulate_grad_hooks") for part in parameters]
    before = [getattr(holder, name) for holder, name in holders]
    for holder, name in holders:
        setattr(holder, name, None)
    try:
        yield
    finally:
        for part in sharded:
            if hasattr(part, "_unsharded_param"):  # which the step may have gathered for the first time
                part._unsharded_param.grad = None
        for (holder, name), value in zip(holders, before, strict=True):
            setattr(holder, name, value)


def plain_copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a copy of a module as it was before it was sharded, with what `memo` has for its parameters."""
    if not isinstance(module, FSDPModule):
        plain: nn.Module = copy.deepcopy(module, memo)
        return plain
    own = type(module).__mro__[2]  # fully_shard makes a class of FSDPModule and this one
    copied: nn.Module = object.__new__(own)
    memo[id(module)] = copied
    attributes = {name: value for name, value in vars(module).items() if not name.startswith("__composable_api")}
    for name, value in attributes.items():
        if name.endswith("_hooks") or "_hooks_" in name:
            memo[id(value)] = type(value)()  # FSDP2's gather parameters
    vars(copied).update(copy.deepcopy(attributes, memo))
    return copied
