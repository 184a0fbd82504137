"""Ops that write their result into the memory of their first operand: what a schedule's `inplace` steps run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_aten = torch.ops.aten


def write_slice(whole: torch.Tensor, part: torch.Tensor, dim: int, start: int, end: int) -> torch.Tensor:
    """Write a part into its slice of a tensor, and return that."""
    whole.narrow(dim, start, end - start).copy_(part)
    return whole


# What runs in place of an op.
WORKS_IN_PLACE: Mapping[Any, Callable[..., Any]] = {
    _aten.slice_scatter.default: write_slice,
    _aten.add.Tensor: _aten.add_.Tensor,
    _aten.mul.Tensor: _aten.mul_.Tensor,
    _aten.addmm.default: _aten.addmm_.default,
}
