"""The calls of modules, and their contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch._dynamo import OptimizedModule
from torch.nn.modules import module as _of_torch
from torch.utils._device import _device_constructors

# Attributes in which a module keeps its parts.
PARAMETERS, BUFFERS, MODULES = "_parameters", "_buffers", "_modules"
# Hooks of all modules' calls, which torch does not check before it runs captured functions.
GLOBAL_HOOKS: tuple[Mapping[int, Any], ...] = (
    _of_torch._global_forward_pre_hooks,
    _of_torch._global_forward_hooks,
    _of_torch._global_backward_pre_hooks,
    _of_torch._global_backward_hooks,
)
# The attribute that holds what runs in place of a module's calls.
_CALL = "_compiled_call_impl"


def own_call(module: nn.Module) -> Callable[..., Any]:
    """Return a module's own call: hooks and forward method."""
    return module._call_impl


def call_instead(module: nn.Module) -> Callable[..., Any] | None:
    """Return the function in place of a module's calls, if any."""
    return module._compiled_call_impl


def set_call_instead(module: nn.Module, call: Callable[..., Any] | None) -> None:
    """Have a function run in place of a module's calls; None: they run themselves again."""
    module.__dict__[_CALL] = call


def own_tensors(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a module's own dicts of parameters and of buffers; parts are left out."""
    return module._parameters, module._buffers


def uncompiled(module: Any) -> Any:
    """Return the module that torch.compile was given; other modules unchanged."""
    return module._orig_mod if isinstance(module, OptimizedModule) else module


def makes_tensors(function: Any) -> bool:
    """Return whether a function of torch makes tensors on a device that it is told."""
    return function in _device_constructors()


def enclosing_parallel() -> nn.parallel.DistributedDataParallel | None:
    """Return the DistributedDataParallel whose call runs, if any."""
    return nn.parallel.DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call,no-any-return]


def is_within_transform() -> bool:
    """Return whether a function transform of torch.func is under way."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def hooks_on_gradients(parameter: torch.Tensor) -> int:
    """Return the number of hooks of others that see a parameter's gradient."""
    after = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    owners = (getattr(hook, "__self__", hook) for hook in after.values())  # of a method, the object that it is bound to
    own = sum(type(owner).__module__.startswith("remat_cli.") for owner in owners)
    return len(parameter._backward_hooks or ()) + len(after) - own
