"""Properties of single ops that torch's schemas do not tell, in one table.

[Add a PyTorch op](README.md) says what each is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from remat_cli.pytorch.capture import group_norm

_aten = torch.ops.aten


@dataclass(frozen=True)
class OpProperties:
    """Properties of one op.

    Attributes:
        in_place: function that writes the op's result into its first operand; None if there is none.
        runs_as: function that runs in place of the op among eager's kernels, with eager's bits.
        statistics: running statistics that the op only updates in training mode: by operand, the place of the new one
            among the results.
        ignores_statistics_if: argument; where it is true, the op does not look at running statistics.
        contiguous: operands that the kernel takes for contiguous, whatever their strides.
    """

    in_place: Callable[..., Any] | None = None
    runs_as: Callable[..., Any] | None = None
    statistics: Mapping[str, int] = field(default_factory=dict)
    ignores_statistics_if: str | None = None
    contiguous: tuple[str, ...] = ()


def write_slice(whole: torch.Tensor, part: torch.Tensor, dim: int, start: int, end: int) -> torch.Tensor:
    """Write a part into its slice of a tensor, and return that."""
    whole.narrow(dim, start, end - start).copy_(part)
    return whole


OP_PROPERTIES: Mapping[Any, OpProperties] = {
    _aten.slice_scatter.default: OpProperties(in_place=write_slice),
    _aten.add.Tensor: OpProperties(in_place=_aten.add_.Tensor),
    _aten.mul.Tensor: OpProperties(in_place=_aten.mul_.Tensor),
    _aten.addmm.default: OpProperties(in_place=_aten.addmm_.default),
    _aten._native_batch_norm_legit_functional.default: OpProperties(statistics={"running_mean": 3, "running_var": 4}),
    _aten._batch_norm_with_update_functional.default: OpProperties(statistics={"running_mean": 4, "running_var": 5}),
    _aten.native_batch_norm_backward.default: OpProperties(ignores_statistics_if="train"),
    _aten.batch_norm_backward.default: OpProperties(ignores_statistics_if="update"),
    _aten.native_layer_norm_backward.default: OpProperties(contiguous=("mean", "rstd")),
    _aten.native_group_norm.default: OpProperties(runs_as=group_norm.forward),
    _aten.native_group_norm_backward.default: OpProperties(runs_as=group_norm.backward),
}
_NONE = OpProperties()


def properties_of(op: Any) -> OpProperties:
    """Return the properties of an op; those of an op outside the table are empty."""
    return OP_PROPERTIES.get(op, _NONE)


def in_place_of(op: Any) -> Callable[..., Any]:
    """Return the function that writes an op's result into its first operand."""
    function = properties_of(op).in_place
    assert function is not None, f"{op} has no form in place"
    return function
