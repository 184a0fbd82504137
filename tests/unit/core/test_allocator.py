"""Settings of an allocator, as users write them."""

from __future__ import annotations

import pytest

from remat_cli.core.allocator import CudaAllocator, parse_allocator
from remat_cli.errors import UsageError


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("cuda", CudaAllocator()),
        (" cuda ", CudaAllocator()),
        ("cuda:expandable_segments:True", CudaAllocator(expandable_segments=True)),
        ("cuda:expandable_segments:False", CudaAllocator()),
        ("cuda:max_split_size_mb:128", CudaAllocator(max_split_size_mb=128)),
        ("cuda:max_split_size_mb:1048576", CudaAllocator(max_split_size_mb=1 << 20)),
        ("cuda: max_split_size_mb : 21 , expandable_segments:True", CudaAllocator(True, 21)),
    ],
)
def test_settings_are_those_of_pytorch(text: str, meant: CudaAllocator) -> None:
    assert parse_allocator(text) == meant
    assert parse_allocator(str(meant)) == meant


def test_largest_blocks_that_are_split_are_given_in_mebibytes() -> None:
    assert parse_allocator("cuda:max_split_size_mb:32").max_split_bytes == 32 * 1024**2
    assert parse_allocator("cuda").max_split_bytes == float("inf")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not known"),
        ("cuda:", "is not known"),
        ("hip", "is not known"),
        ("cuda:expandable_segments:1", "not True or False"),
        ("cuda:max_split_size_mb:20", "from 21"),
        ("cuda:max_split_size_mb:1048577", "to 1048576"),
        ("cuda:max_split_size_mb:-1", "from 21"),
        ("cuda:max_split_size_mb:٣٠", "from 21"),
        ("cuda:max_split_size_mb:9999999999999999999999", "from 21"),
        ("cuda:garbage_collection_threshold:0.8", "'garbage_collection_threshold' is not modelled"),
        ("cuda:expandable_segments:True,", "'' is not modelled"),
    ],
)
def test_settings_that_are_not_understood_are_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        parse_allocator(text)
    assert error.value.remedy
