"""Decisions of all ranks about sharded models.

Models are sharded by FSDP2 (`fully_shard`), or by tensor parallelism (DTensors).

If one rank alone rehearses a step, or raises an error, the others wait in a collective for ever.
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
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from remat_cli.errors import RematError, UsageError
from remat_cli.pytorch.unstable.modules import MODULES, PARAMETERS
from remat_cli.pytorch.unstable.ranks import (
    AsyncCollectiveTensor,
    can_communicate_on,
    forms_of,
    gathered_form,
    gradient_places,
    is_managed_by_fsdp1,
    sharded_parameters,
    wait_for_part,
)

T = TypeVar("T")

_SHARDING = (FSDPModule, nn.parallel.DistributedDataParallel)
_PLAIN = frozenset({nn.Parameter, torch.Tensor, type(None)})  # what a module may have for a parameter


def has_plain_parameters(module: nn.Module) -> bool:
    """Return whether a module has plain, unsharded parameters only.

    Each call walks the module once.
    """
    left = [module]
    while left:
        part = left.pop()
        own = part.__dict__
        if isinstance(part, _SHARDING) or is_managed_by_fsdp1(part):
            return False
        if any(type(parameter) not in _PLAIN for parameter in own[PARAMETERS].values()):
            return False
        left.extend(child for child in own[MODULES].values() if child is not None)
    return True


def is_sharded(module: nn.Module) -> bool:
    """Return whether FSDP2 manages a module, or some of its parts."""
    return any(isinstance(part, FSDPModule) for part in module.modules())


def is_distributed(module: nn.Module) -> bool:
    """Return whether a module is sharded, or has DTensor parameters."""
    return is_sharded(module) or any(isinstance(parameter, DTensor) for parameter in module.parameters())


def check_regions_are_whole(regions: Mapping[str, nn.Module]) -> None:
    """Check that no part of a region is sharded separately.

    Raises:
        UsageError: a part is.
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
        UsageError: a shard is on the host.
    """
    for name, part in module.named_parameters():
        if isinstance(part, DTensor) and part.device.type != part.device_mesh.device_type:
            raise UsageError(
                f"parameter {name!r} is on {part.device.type}, as CPUOffloadPolicy has it, and the step runs on "
                f"{part.device_mesh.device_type}: such models cannot be planned",
                hint="shard without offload_policy",
            )


@dataclass
class Ranks:
    """The ranks of a sharded model; without shards this one alone.

    Attributes:
        groups: groups of processes, one for each dimension of the mesh.
        device: kind of device on which they communicate.
    """

    groups: Sequence[Any] = ()
    device: str = "cpu"

    def meet(self, module: nn.Module) -> None:
        """Find the ranks of a model once it is sharded."""
        meshes = [part.device_mesh for part in parameters_at_rest(module) if isinstance(part, DTensor)]
        if meshes and not self.groups:
            self.groups = list(dict.fromkeys(group for mesh in meshes for group in mesh.get_all_groups()))
            self.device = _device_to_ask_on(self.groups, meshes[0].device_type)

    def most(self, *values: int) -> list[int]:
        """Return the largest of each of these values on any rank."""
        if not self.groups:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64, device=self.device)
        for group in self.groups:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
        return [int(value) for value in tensor.tolist()]

    def all(self, value: T) -> list[T]:
        """Return the values of all ranks, in the same order on each."""
        values: list[Any] = [value]
        for group in self.groups:
            gathered: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(gathered, values, group=group)
            values = [item for items in gathered for item in items]
        return values

    def all_or_none(self, refusal: RematError | None) -> None:
        """Let all ranks go on, or none.

        Raises:
            RematError: the refusal of a rank.
        """
        said = self.all(None if refusal is None else (type(refusal), refusal.message, refusal.hint))
        if refusal is not None:
            raise refusal
        for rank, other in enumerate(said):
            if other is not None:
                kind, message, hint = other
                raise kind(f"rank {rank}: {message}", hint=hint)


def arrived(value: Any) -> Any:
    """Return a value once it has arrived from other ranks."""
    if isinstance(value, DTensor):
        wait_for_part(value)
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
    """Return the device for communication: the host if possible.

    Communication over the host need not wait for the device.
    """
    return "cpu" if all(can_communicate_on(group, "cpu") for group in groups) else device


def parameters_at_rest(module: nn.Module) -> list[nn.Parameter]:
    """Return a module's parameters, or FSDP2's shards of these parameters.

    This is so also while they are gathered.
    """
    parts = sharded_parameters(module)
    managed = {id(shown) for part in parts for shown in forms_of(part)}
    return [*(part.sharded_param for part in parts), *(p for p in module.parameters() if id(p) not in managed)]


def gathered_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the module's parameters that FSDP2 has gathered.

    They are in memory in addition to the shards.
    """
    gathered = {id(form) for part in sharded_parameters(module) for form in forms_of(part)[1:]}
    return [parameter for parameter in module.parameters() if id(parameter) in gathered]


@contextmanager
def gradients_kept(module: nn.Module) -> Iterator[None]:
    """Keep the gradients of parameters through a step.

    No hooks run on them.
    """
    sharded = sharded_parameters(module)
    shards = [part.sharded_param for part in sharded]
    parameters = list({id(part): part for part in (*module.parameters(), *shards)}.values())
    # Also gradients not yet reduced, if the caller accumulates them with set_requires_gradient_sync(False).
    holders = gradient_places(sharded, parameters)
    before = [getattr(holder, name) for holder, name in holders]
    for holder, name in holders:
        setattr(holder, name, None)
    try:
        yield
    finally:
        for part in sharded:
            if (gathered := gathered_form(part)) is not None:  # which the step may have gathered for the first time
                gathered.grad = None
        for (holder, name), value in zip(holders, before, strict=True):
            setattr(holder, name, value)


def plain_copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a copy of a module without its sharding.

    `memo` gives the parameters of the copy.
    """
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
