"""Group norm with the memory layout of eager.

Eager first brings its operand into one of two layouts. A capture leaves this copy out if a tensor without data has such
a layout. For a batch of 1, a view's strides differ from those of the tensor with data: the kernel raises an error, or
reads other elements.
"""

from __future__ import annotations

from typing import Any

import torch

from remat_cli.pytorch.unstable.tensors import suggest_memory_format

_aten = torch.ops.aten


def forward(x: torch.Tensor, *rest: Any, **named: Any) -> Any:
    """Run the forward op."""
    return _aten.native_group_norm.default(_laid_out(x, x), *rest, **named)


def backward(gradient: torch.Tensor, x: torch.Tensor, *rest: Any, **named: Any) -> Any:
    """Run the backward op."""
    return _aten.native_group_norm_backward.default(_laid_out(gradient, x), _laid_out(x, x), *rest, **named)


def _laid_out(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a value in the layout that eager takes for `like`.

    A value in this layout is returned unchanged.
    """
    on_cpu = like.device.type == "cpu"
    return value.contiguous(memory_format=suggest_memory_format(like) if on_cpu else torch.contiguous_format)
