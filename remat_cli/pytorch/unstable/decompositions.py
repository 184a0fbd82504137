"""Rules by which torch traces ops."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp.decompositions import upsample_compute_output_size
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensorMode

# Ops that torch traces as Python functions whose results differ from those of eager's kernels in the last bits.
_ROUNDED_DIFFERENTLY = (
    torch.ops.aten.upsample_linear1d,
    torch.ops.aten.upsample_bilinear2d,
    torch.ops.aten.upsample_trilinear3d,
    torch.ops.aten.upsample_bicubic2d,
    torch.ops.aten.multi_margin_loss,
    torch.ops.aten.multilabel_margin_loss_forward,
)


# Their backward ops, whose rules for tensors without data know no symbols.
_WITHOUT_SYMBOLS = (
    torch.ops.aten.upsample_linear1d_backward.default,
    torch.ops.aten.upsample_bilinear2d_backward.default,
    torch.ops.aten.upsample_trilinear3d_backward.default,
    torch.ops.aten.upsample_bicubic2d_backward.default,
)


@contextmanager
def as_eager_computes() -> Iterator[None]:
    """While this lasts, torch traces each op to the kernels that eager runs."""
    overloads = [getattr(op, name) for op in _ROUNDED_DIFFERENTLY for name in op.overloads()]  # type: ignore[no-untyped-call]
    held = [(overload, dict(overload.py_kernels)) for overload in overloads]
    for overload, kernels in held:
        for key in kernels.keys() & {torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd}:
            if overload._overloadname == "vec":  # takes factors or sizes; what torch has for it in C++ knows no symbols
                overload.py_kernels[key] = functools.partial(_interpolated, overload.overloadpacket.default)
            else:
                del overload.py_kernels[key]
        overload._dispatch_cache.clear()
    rules = op_implementations_dict  # among the decompositions, they would keep inductor from loading where CI is set
    added = [op for op in _WITHOUT_SYMBOLS if op not in rules]
    rules.update(dict.fromkeys(added, _like_the_input))
    try:
        yield
    finally:
        for op in added:
            del rules[op]
        for overload, kernels in held:
            overload.py_kernels.update(kernels)
            overload._dispatch_cache.clear()


def _interpolated(
    op: Any, x: torch.Tensor, size: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None
) -> Any:
    size = upsample_compute_output_size(x.size(), size, factors)  # type: ignore[no-untyped-call]
    return op(x, size, align_corners, *(factors or (None,) * len(size)))


def _like_the_input(
    mode: FakeTensorMode, _: Any, gradient: torch.Tensor, __: Any, input_size: Sequence[int], *___: Any
) -> torch.Tensor:
    layout = suggest_memory_format(gradient)
    with mode:
        return torch.empty(input_size, dtype=gradient.dtype, device=gradient.device, memory_format=layout)
