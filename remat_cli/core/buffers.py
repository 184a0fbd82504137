"""Buffers: sizes that are needed for a span of time, whoever needs them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Buffer:
    """So many bytes, needed from one moment to before another.

    Attributes:
        lower: the first moment at which it is needed.
        upper: the first moment, later than `lower`, at which it is needed no more.
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
