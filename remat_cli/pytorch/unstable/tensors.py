"""The memory of tensors, and their layouts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch._prims_common import make_contiguous_strides_for, suggest_memory_format

__all__ = ["suggest_memory_format"]

Wrapper = TypeVar("Wrapper", bound=torch.Tensor)


def key_of(storage: torch.UntypedStorage) -> int:
    """Return a key of a storage: no other storage has it at the same time."""
    key: int = storage._cdata
    return key


def storage_key(tensor: torch.Tensor) -> int:
    """Return a key that tensors share exactly if they share memory."""
    return key_of(tensor.untyped_storage())


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor.

    Of a sharded tensor (a DTensor) it is the shard, otherwise the tensor itself.
    """
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors that hold a tensor's data: of a sparse one its indices and values."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    return (tensor,)


def is_wrapper(kind: type) -> bool:
    """Return whether a class wraps tensors with the data, like DTensor."""
    return hasattr(kind, "__tensor_flatten__")


def version_of(tensor: torch.Tensor) -> int:
    """Return the number of in-place changes of a tensor."""
    return tensor._version


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, in elements."""
    return tuple(make_contiguous_strides_for(tuple(shape)))


def moved_to(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[torch.device | None, torch.dtype | None]:
    """Return device and element type that the arguments of `Tensor.to` ask for; None where they ask for none."""
    device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
    return device, dtype


def known_size(tensor: torch.Tensor, place: int, size: int) -> None:
    """Have torch know a dimension's size while it traces."""
    torch._check(tensor.size(place) == size)  # type: ignore[no-untyped-call]


def without_memory(kind: type[Wrapper], like: torch.Tensor) -> Wrapper:
    """Return a tensor of a class of its own that looks like another, and has no memory."""
    return torch.Tensor._make_wrapper_subclass(
        kind, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
    )


def as_plain_tensors() -> AbstractContextManager[Any]:
    """Return a context in which classes of tensors do not see functions."""
    return torch._C.DisableTorchFunctionSubclass()
