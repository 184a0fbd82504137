"""Stand-ins for gradients: of an update that has run, and in the step that shows who reads gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from remat_cli.errors import UsageError
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.tensors import as_plain_tensors, without_memory

# What `zero_grad(set_to_none=False)` does to a gradient.
_ZEROS = (torch.ops.aten.zero_.default, torch.ops.aten._foreach_zero_.default)
_ADDS = torch.ops.aten.add_.Tensor  # as autograd adds to a gradient that is there
_DETACHES = (torch.ops.aten.detach.default, torch.ops.aten.detach_.default)

_FACTS = frozenset(
    getattr(torch.Tensor, name).__get__
    for name in (
        *("device", "dtype", "grad_fn", "is_cuda", "is_leaf", "is_meta", "is_sparse", "is_quantized", "layout"),
        *("ndim", "requires_grad", "shape", "is_cpu"),
    )
)


class UsedGradient(torch.Tensor):
    """The gradient of a parameter that was updated in the backward pass: it has no memory any more.

    It can be set to zero; anything else that is asked of it is an error in words.
    """

    _parameter: weakref.ref[torch.Tensor]
    _is_zeroed: Callable[[torch.Tensor], None]

    @staticmethod
    def of(parameter: torch.Tensor, is_zeroed: Callable[[torch.Tensor], None]) -> UsedGradient:
        """Return the used gradient of a parameter.

        Args:
            parameter: the parameter.
            is_zeroed: is told the parameter when its gradient is set to zero.
        """
        used = without_memory(UsedGradient, parameter)
        used._parameter, used._is_zeroed = weakref.ref(parameter), is_zeroed
        return used

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Take note of zeros; refuse everything else.

        Raises:
            UsageError: the gradient is read.
        """
        if func in _DETACHES:
            return args[0]
        if func not in _ZEROS:
            does = "a gradient is added to one" if func is _ADDS else f"{func} reads a gradient"
            raise UsageError(
                f"{does} that is gone: its parameter was updated in the backward pass, as if nothing read gradients "
                "(clipping, another optimizer), one pass came before each step, and no loss outside of the planned "
                "model used the parameter",
                hint="planned(..., update='step') updates parameters when optimizer.step() is called",
            )
        for leaf in pytree.tree_leaves(args):
            if not isinstance(leaf, UsedGradient):
                leaf.zero_()
            elif (parameter := leaf._parameter()) is not None:
                leaf._is_zeroed(parameter)
        return args[0]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """Return a text without values."""
        return f"UsedGradient({tuple(self.shape)})"


class WatchedGradient(torch.Tensor):
    """A gradient that tells of whoever reads or changes it.

    An existing gradient becomes one, and a plain tensor again.
    """

    _note: Callable[[str], None]

    @staticmethod
    def watch(gradient: torch.Tensor, note: Callable[[str], None]) -> None:
        """Let a gradient call `note` with the name of each op that takes it."""
        if type(gradient) is torch.Tensor:
            gradient.__class__ = WatchedGradient
            gradient._note = note  # type: ignore[attr-defined]

    @staticmethod
    def leave(gradient: torch.Tensor | None) -> None:
        """Make a watched gradient a plain tensor again."""
        if isinstance(gradient, WatchedGradient):
            del gradient.__dict__["_note"]
            gradient.__class__ = torch.Tensor  # type: ignore[assignment]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Tell of the op, and run it."""
        if func not in _FACTS:
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, WatchedGradient):
                    leaf._note(getattr(func, "__name__", str(func)))
                    break
        with as_plain_tensors():
            return func(*args, **(kwargs or {}))


def as_accumulated(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a gradient in the layout in which autograd accumulates it: that of its parameter."""
    strides = [stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True) if size != 1]
    own = [stride for size, stride in zip(gradient.shape, gradient.stride(), strict=True) if size != 1]
    is_dense = _is_dense(parameter)
    if own == strides if is_dense else gradient.is_contiguous():
        return gradient.detach()
    if not is_dense:
        return gradient.detach().clone(memory_format=torch.contiguous_format)
    laid_out = torch.empty_strided(parameter.shape, parameter.stride(), dtype=gradient.dtype, device=gradient.device)
    return laid_out.copy_(gradient.detach())


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements of a tensor fill a piece of memory, each once."""
    extent = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != extent:
                return False
            extent *= size
    return True
