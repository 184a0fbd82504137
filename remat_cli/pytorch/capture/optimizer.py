"""How much memory an optimizer keeps beside the parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from textwrap import shorten
from typing import Any

import torch

from remat_cli.errors import UsageError
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.dispatch import TorchDispatchMode, as_outside_of_capture, is_traceable_wrapper_subclass
from remat_cli.pytorch.unstable.tensors import local_part, storage_key
from remat_cli.training import OPTIMIZERS

# Where classes come from that carry out the steps of another optimizer, which they hold under one of these names.
_WRAPPING = ("accelerate.", "lightning.", "pytorch_lightning.", "torch.distributed.")
_WRAPPED = ("optimizer", "optim")
# Forms of a step that change nothing of the state, and that tensors without data cannot take.
_FORMS = ("fused", "foreach", "capturable")


def optimizer_name(optimizer: str | torch.optim.Optimizer | None) -> str | None:
    """Return an optimizer's name; None without an optimizer."""
    return optimizer if optimizer is None or isinstance(optimizer, str) else type(optimizer).__name__


def checked_optimizer(optimizer: object) -> str | torch.optim.Optimizer:
    """Return an optimizer's name as it is, or an optimizer without its wrappers.

    Accelerate, Lightning and torch.distributed put some around it.

    Raises:
        UsageError: the object is no optimizer, or none has this name.
    """
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            raise UsageError(
                f"unknown optimizer {optimizer!r}", hint=f"name one of {', '.join(OPTIMIZERS)}, or give it itself"
            )
        return optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        is_class = isinstance(optimizer, type)
        name = optimizer.__name__ if isinstance(optimizer, type) else "torch.optim.Adam"
        raise UsageError(
            f"optimizer: {f'the class {name}' if is_class else shorten(repr(optimizer), 60)} is no optimizer",
            hint=f"give it itself, such as {name}(model.parameters())",
        )
    if type(optimizer).__module__.startswith(_WRAPPING):
        inner = (getattr(optimizer, name, None) for name in _WRAPPED)
        return next((checked_optimizer(each) for each in inner if each is not None), optimizer)
    return optimizer


def optimizer_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimizer's state: of what it has or, before its first step, of what that will make.

    A twin of the optimizer takes one step on tensors without data, which stand for any values.

    Args:
        optimizer: result of `checked_optimizer`.

    Raises:
        UsageError: the twin cannot take that step.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        return _of_history(optimizer)
    if isinstance(optimizer, torch.optim.SparseAdam):  # no step without data, as gradients are sparse
        return 2 * sum(parameter.nbytes for parameter in _parameters(optimizer))
    return _kept_bytes(optimizer) or _kept_bytes(_stepped(optimizer))


def _of_history(optimizer: torch.optim.LBFGS) -> int:
    """Return the bytes of L-BFGS's full history.

    It has two vectors for each step, the direction, and a gradient.
    """
    (group,) = optimizer.param_groups
    vectors: int = 2 * group["history_size"] + 2
    return vectors * sum(parameter.nbytes for parameter in _parameters(optimizer))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _stepped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    # While torch captures, its own modes and decompositions know of no values.
    with as_outside_of_capture():
        return _stepped_alone(optimizer)


def _stepped_alone(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    try:
        twin = dataless_twin(optimizer)
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), AnyValues():  # type: ignore[no-untyped-call]
            own_step(twin)()
    except Exception as error:
        name = type(optimizer).__name__
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"the state of optimizer {name} cannot be told before its first step: {type(error).__name__}: {reason}",
            hint="name one with as much state instead, such as adam; or plan after its first step",
        ) from error
    return twin


def own_step(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """Return the step of an optimizer's class, without the hooks that torch puts around it."""
    step: Any = type(optimizer).step
    return partial(step.__wrapped__ if getattr(step, "hooked", False) else step, optimizer)


def dataless_twin(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the same optimizer for tensors without data, in a form of its step that they can take.

    Raises:
        TypeError: see `twin_of`.
    """
    twin = twin_of(optimizer, {parameter: _without_data(parameter) for parameter in _parameters(optimizer)})
    for group in twin.param_groups:
        group.update({form: False for form in _FORMS if form in group})
    return twin


def twin_of(optimizer: torch.optim.Optimizer, parameters: Mapping[torch.Tensor, torch.Tensor]) -> torch.optim.Optimizer:
    """Return the same optimizer for other parameters, before its first step.

    It shares nothing with the first, which stays as it is.

    Args:
        optimizer: the optimizer.
        parameters: the other parameter for each of its own.

    Raises:
        TypeError: another optimizer or a module is among its attributes.
    """
    attributes = {name: value for name, value in vars(optimizer).items() if name not in ("state", "step")}
    for name, value in attributes.items():
        if isinstance(value, torch.optim.Optimizer | torch.nn.Module):
            raise TypeError(f"its {name} is a {type(value).__name__}")
        if name.endswith("_hooks"):  # they are the user's, and may belong to what cannot be copied
            attributes[name] = type(value)()
    twin: torch.optim.Optimizer = object.__new__(type(optimizer))
    known: dict[int, Any] = {id(parameter): other for parameter, other in parameters.items()}
    vars(twin).update(deepcopy(attributes, {id(optimizer): twin, **known}))
    vars(twin)["state"] = defaultdict(dict)
    return twin


def _without_data(parameter: torch.Tensor) -> torch.Tensor:
    part = local_part(parameter)
    like = torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device="meta")
    twin = torch.nn.Parameter(like, requires_grad=parameter.requires_grad)
    twin.grad = torch.empty_like(like) if parameter.requires_grad else None
    return twin


class AnyValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives whoever asks a tensor without data for its value some number."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            dtype = args[0].dtype
            return dtype != torch.bool and (0.5 if dtype.is_floating_point else 1)
        return func(*args, **(kwargs or {}))


def kept_state(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the state that an optimizer has by now, on the device of its parameters.

    Single numbers, such as counters of steps, are left out.
    """
    for parameter, state in optimizer.state.items():
        for tensor in (part for value in pytree.tree_leaves(dict(state)) for part in _plain_tensors(value)):
            if tensor.dim() > 0 and tensor.device == getattr(parameter, "device", tensor.device):
                yield tensor


def _kept_bytes(optimizer: torch.optim.Optimizer) -> int:
    kept = {storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in kept_state(optimizer)}
    return sum(kept.values())


def _plain_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that a value is made of: 8-bit states are of classes that hold several."""
    if isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value):
        names, _ = value.__tensor_flatten__()
        for name in names:
            yield from _plain_tensors(getattr(value, name))
    elif isinstance(value, torch.Tensor):
        yield value
