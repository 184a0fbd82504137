"""Storages are counted once each, at their present size, until the last tensor on them is gone."""

from __future__ import annotations

import gc

import torch

from remat_cli.pytorch.capture.live_storages import LiveStorages
from remat_cli.pytorch.unstable.tensors import storage_key


def test_views_count_once_and_ends_are_told() -> None:
    seen: list[int] = []
    ended: list[int] = []
    storages = LiveStorages(lambda: seen.append(storages.bytes), ended.append)
    first, second = torch.empty(4), torch.empty(8)
    keys = [storage_key(first), storage_key(second)]
    view = first[1:]
    for tensor in (first, view, second, second):
        storages.follow(tensor.untyped_storage())
    assert (storages.bytes, seen) == (48, [16, 48])
    assert all(key in storages for key in keys)
    del first
    gc.collect()
    assert not ended, "a view holds the storage"
    del view, second, tensor
    gc.collect()
    assert sorted(ended) == sorted(keys)
    assert (storages.bytes, seen[-1]) == (0, 0)
    assert not any(key in storages for key in keys)


def test_a_storage_counts_at_its_new_size() -> None:
    storages = LiveStorages()
    tensor = torch.empty(4)
    for size in (16, 0, 64):
        tensor.untyped_storage().resize_(size)
        storages.follow(tensor.untyped_storage())
        assert storages.bytes == size
