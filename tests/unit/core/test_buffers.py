"""Buffers have a lifetime and bytes."""

from __future__ import annotations

import pytest

from remat_cli.core.buffers import Buffer


@pytest.mark.parametrize(
    ("lower", "upper", "size", "said"),
    [
        (3, 3, 1, "needed to a later moment, not 3"),
        (3, 2, 1, "needed to a later moment, not 2"),
        (0, 1, 0, "at least 1 byte, not 0"),
        (0, 1, -1, "at least 1 byte, not -1"),
    ],
)
def test_buffers_without_lifetime_or_bytes_are_refused(lower: int, upper: int, size: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Buffer(lower, upper, size)


def test_one_moment_and_one_byte_are_enough() -> None:
    assert Buffer(-1, 0, 1).size == 1
