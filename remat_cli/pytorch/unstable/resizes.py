"""Storages that change their size in place.

No op shows these changes: FSDP2 frees and allocates gathered parameters this way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tell = Callable[[torch.UntypedStorage], None]

_telling: list[Tell] = []
_own: list[Any] = []  # torch's method, while another stands for it


def tell_of_resizes(tell: Tell) -> None:
    """Begin to call a function with each storage that changes its size."""
    if not _telling:
        _own.append(torch.UntypedStorage.resize_)
        torch.UntypedStorage.resize_ = _resize  # type: ignore[method-assign, assignment]
    _telling.append(tell)


def tell_no_more(tell: Tell) -> None:
    """Stop calling a function with resized storages."""
    if tell in _telling:
        _telling.remove(tell)
        if not _telling:
            torch.UntypedStorage.resize_ = _own.pop()  # type: ignore[method-assign]


def _resize(storage: torch.UntypedStorage, size: int) -> Any:
    resized = _own[0](storage, size)
    for tell in tuple(_telling):
        tell(storage)
    return resized
