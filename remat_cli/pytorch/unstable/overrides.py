"""Functions that torch calls in place of its own ops, and ops that it calls by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.library import _scoped_library

# Ops of CUDA that torch calls by itself.
FLASH_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention.default
FLASH_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
EFFICIENT_ATTENTION = torch.ops.aten._scaled_dot_product_efficient_attention.default
MATH_ATTENTION = torch.ops.aten._scaled_dot_product_attention_math.default
RMS_NORM = torch.ops.aten._fused_rms_norm.default
RMS_NORM_BACKWARD = torch.ops.aten._fused_rms_norm_backward.default


@contextmanager
def overridden(functions: Mapping[str, Callable[..., Any]], key: str) -> Iterator[None]:
    """Have torch call functions in place of its own, from C++, too.

    Args:
        functions: by the op's name in `aten`, such as "softmax.int".
        key: dispatch key under which torch finds them, such as "AutogradCPU". Names with a kernel there are left alone.
    """
    with _scoped_library("aten", "IMPL") as library:
        for name, function in functions.items():
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):
                library.impl(name, function, key)
        yield


def below_autograd(op: Any, *args: Any) -> Any:
    """Call an op that autograd and its own decomposition do not see."""
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args)


@contextmanager
def autocast_of_cuda_on_cpu() -> Iterator[None]:
    """Have autocast for CUDA cast ops on the CPU."""
    own = torch.autocast.__init__

    def created(
        self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        own(self, device_type, dtype, enabled, cache_enabled)

    setattr(torch.autocast, "__init__", created)  # noqa: B010
    try:
        yield
    finally:
        setattr(torch.autocast, "__init__", own)  # noqa: B010
