"""A model and its inputs without memory: built on torch's meta device, then given fake tensors of a real device.

Meta tensors have shapes but neither data nor kernels: attention would be decomposed into small ops. Fake tensors have
the kernels of the device that they name. A constructor may read a tensor's value (`.item()`) if the tensor is small and
created on the CPU by name, as model libraries do for this purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement
from torch.overrides import TorchFunctionMode

from remat_cli.pytorch.capture.step import Step
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.fakes import FakeTensor, FakeTensorMode
from remat_cli.pytorch.unstable.modules import BUFFERS, MODULES, PARAMETERS, makes_tensors, own_tensors
from remat_cli.pytorch.unstable.ranks import part_of
from remat_cli.pytorch.unstable.tensors import key_of, moved_to

# A tensor that is asked for on the CPU by name, and has at most this many elements, has its values.
_SMALL = 1 << 16
_MOVES = {torch.Tensor.to: None, torch.Tensor.cuda: "cuda", torch.Tensor.cpu: "cpu", torch.Tensor.xpu: "xpu"}


class Weightless(TorchFunctionMode):
    """Lets torch create tensors without data on any device.

    Attributes:
        device_type: last requested type of device other than the CPU; None before the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.device_type: str | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Send factories and moved tensors to the meta device."""
        kwargs = dict(kwargs or {})
        if makes_tensors(func):
            return self._created(func, args, kwargs)
        if func in _MOVES and args and isinstance(args[0], torch.Tensor):
            return self._moved(func, args, kwargs)
        return func(*args, **kwargs)

    def _created(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        asked = self._asked(kwargs.get("device"))
        created = func(*args, **{**kwargs, "device": "meta"})
        if asked == "cpu" and isinstance(created, torch.Tensor) and created.numel() <= _SMALL:
            return func(*args, **kwargs)
        return created

    def _moved(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the tensor with the wanted element type, on meta.

        On the CPU it may keep its values.
        """
        tensor = args[0]
        asked: str | None
        if (named := _MOVES[func]) is not None:
            asked, dtype = self._asked(named), None
        else:
            device, dtype = moved_to(args[1:], kwargs)
            asked = self._asked(device)
            if device is None and dtype is None:  # .to(other)
                return func(*args, **kwargs)
        result = tensor if dtype is None else tensor.to(dtype)
        return result if asked in (None, "cpu") else result.to("meta")

    def _asked(self, device: Any) -> str | None:
        """Return the kind of device that was asked for, None for the default; remembers one that is not the CPU."""
        if device is None:
            return None
        kind = torch.device("cuda" if isinstance(device, int) else device).type
        if kind not in ("cpu", "meta"):
            self.device_type = kind
        return kind


@dataclass
class _Fakes:
    """Gives each tensor one fake tensor, so that sharing is preserved."""

    mode: FakeTensorMode
    device: str
    created: dict[int, torch.Tensor] = field(default_factory=dict)  # by the identity of the original
    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)  # by the original's storage
    originals: list[torch.Tensor] = field(default_factory=list)  # kept, so that identities stay unique
    functions: list[Any] = field(default_factory=list)  # that were looked into

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake tensor of a tensor: of its shape, strides and element type, in a storage of its size."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self.created:
            self.originals.append(tensor)
            self.created[id(tensor)] = self._fake(tensor)
        return self.created[id(tensor)]

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DTensor):
            local, mesh = self.of(part_of(tensor)), tensor.device_mesh
            shard = split_tensor(local, mesh, tensor.placements, tensor.shape, tensor.stride())
            if isinstance(tensor, nn.Parameter):
                return nn.Parameter(shard, requires_grad=tensor.requires_grad)
            return shard.requires_grad_(tensor.requires_grad)
        whole = tensor.untyped_storage()
        with self.mode:
            storage = self.storages.get(key_of(whole))
            if storage is None:
                storage = torch.empty(whole.nbytes(), dtype=torch.uint8, device=self.device).untyped_storage()
                self.storages[key_of(whole)] = storage
            fake = torch.empty(0, dtype=tensor.dtype, device=self.device)
            fake.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(fake, requires_grad=tensor.requires_grad)
        return fake.requires_grad_(tensor.requires_grad)

    def everywhere(self, value: Any) -> Any:
        """Return `value` with fake tensors in its lists, tuples and dicts; modules in it are changed in place."""
        if isinstance(value, nn.Module):
            self.in_module(value)
            return value
        return pytree.tree_map(self._leaf, value)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.of(value)
        if isinstance(value, nn.Module):
            self.in_module(value)
        elif isinstance(value, Mapping) and hasattr(value, "data"):  # a dict of a class of its own, such as a batch
            value.data = self.everywhere(value.data)
        elif callable(value):
            self.in_function(value)
        return value

    def in_module(self, module: nn.Module) -> None:
        """Replace all tensors of a module and its parts: parameters, buffers, and plain attributes."""
        for part in module.modules():
            for tensors in own_tensors(part):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        tensors[name] = self.of(tensor)
            for name, value in list(vars(part).items()):
                if name not in (PARAMETERS, BUFFERS, MODULES) and _holds_tensors(value):
                    vars(part)[name] = self.everywhere(value)

    def in_function(self, function: Any) -> None:
        """Replace the tensors of the modules that a function reaches: bound, closed over, or global to it."""
        if any(function is known for known in self.functions):
            return
        self.functions.append(function)
        if isinstance(owner := getattr(function, "__self__", None), nn.Module):
            self.in_module(owner)
        function = getattr(function, "__func__", function)
        for cell in getattr(function, "__closure__", None) or ():
            cell.cell_contents = self.everywhere(cell.cell_contents)
        code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
        for name in () if code is None else code.co_names:
            if isinstance(value := names.get(name), nn.Module | torch.Tensor):
                names[name] = self.everywhere(value)


def split_tensor(
    local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: torch.Size, stride: tuple[int, ...]
) -> torch.Tensor:
    """Return a DTensor from this rank's part.

    Args:
        local: this rank's part.
        mesh: the ranks.
        placements: how it is split among them, for each dimension of the mesh.
        shape: shape of the whole tensor.
        stride: strides of the whole tensor.
    """
    return DTensor.from_local(local.detach(), mesh, placements, run_check=False, shape=shape, stride=stride)


def _holds_tensors(value: Any) -> bool:
    """Return whether an attribute is or contains a tensor."""
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, list | tuple | dict) and any(
        isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value)
    )


def with_fake_tensors(step: Step, device: str) -> tuple[Step, FakeTensorMode]:
    """Return the step with a fake tensor for each tensor, and the mode that they live in.

    Args:
        step: built under `Weightless`, or with real tensors; its modules are changed in place.
        device: device of the fake tensors, such as "cpu".
    """
    fakes = _Fakes(FakeTensorMode(allow_non_fake_inputs=True), device)
    if isinstance(step.model, nn.Module):
        fakes.in_module(step.model)
    else:
        fakes.in_function(step.model)
    inputs, keyword_inputs = fakes.everywhere(step.inputs), fakes.everywhere(dict(step.keyword_inputs))
    return Step(step.model, inputs, keyword_inputs, step.optimizer), fakes.mode
