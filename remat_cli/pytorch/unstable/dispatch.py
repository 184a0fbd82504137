"""Modes that see each op."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass,
)

__all__ = ["TorchDispatchMode", "is_traceable_wrapper_subclass"]


def without_modes() -> AbstractContextManager[Any]:
    """Return a context without the modes in force, those of torch's capture included."""
    return _disable_current_modes()


@contextmanager
def as_outside_of_capture() -> Iterator[None]:
    """Run ops as if torch did not capture."""
    with _disable_current_modes(), no_python_dispatcher():
        yield


def modes_in_force() -> list[TorchDispatchMode]:
    """Return the dispatch modes in force, the innermost last."""
    return _get_current_dispatch_mode_stack()


def is_watched() -> bool:
    """Tell whether any dispatch mode is in force."""
    return bool(torch._C._len_torch_dispatch_stack())


def mode_that_watches() -> str | None:
    """Return the name of a mode that sees each op, if any.

    Within such a mode, torch.compile runs nothing that it captured.
    """
    for number in range(torch._C._len_torch_dispatch_stack()):
        mode = torch._C._get_dispatch_stack_at(number)
        if not mode.is_infra_mode() and not mode.ignore_compile_internals():
            return type(mode).__name__.lstrip("_")
    return None


@contextmanager
def without_onednn() -> Iterator[None]:
    """Run no kernels of oneDNN."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def autograd_inside_ops() -> Iterator[None]:
    """Record with autograd inside an op, where torch leaves it out."""
    left_out = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView"):
        left_out = left_out.remove(getattr(torch._C.DispatchKey, key))
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, left_out), torch.enable_grad():
        yield
