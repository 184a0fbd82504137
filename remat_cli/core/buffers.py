"""Buffers: sizes with a lifetime, for the allocators."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Buffer:
    """A number of bytes with a lifetime.

    Attributes:
        lower: the first moment of its lifetime.
        upper: the first moment after its lifetime, later than `lower`.
        size: in bytes, above 0.
    """

    lower: int
    upper: int
    size: int

    def __post_init__(self) -> None:
        if self.upper <= self.lower:
            raise ValueError(f"a buffer that is needed from {self.lower} is needed to a later moment, not {self.upper}")
        if self.size <= 0:
            raise ValueError(f"a buffer has at least 1 byte, not {self.size}")
