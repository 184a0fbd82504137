"""Attention masks of transformers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def packing_looked_for(is_given: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Have transformers look for packed sequences in given position ids only.

    Without a mask from the user, it looks at position ids for sequences that are packed into one row. In eager mode it
    sees that there are none in those that it made itself; of tensors without data it takes it that there may be.

    Args:
        is_given: whether position ids come from the user.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    looks = getattr(masking, "find_packed_sequence_indices", None)  # older releases do not look
    if looks is None:
        yield
        return

    def found(position_ids: torch.Tensor) -> Any:
        return looks(position_ids) if is_given(position_ids) else None

    masking.find_packed_sequence_indices = found
    try:
        yield
    finally:
        masking.find_packed_sequence_indices = looks
