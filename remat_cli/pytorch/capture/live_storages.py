"""Storages in memory, followed from when they are seen until they end."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from remat_cli.pytorch.unstable.tensors import key_of


class LiveStorages:
    """Follows storages until they end; each has a key that is unique while it lives.

    Attributes:
        bytes: bytes of the storages that are followed and have not ended.
    """

    def __init__(
        self, changed: Callable[[], None] = lambda: None, ended: Callable[[int], None] = lambda key: None
    ) -> None:
        """Begin with none.

        Args:
            changed: called after `bytes` has changed.
            ended: called with the key of a storage that has ended.
        """
        self.bytes = 0
        self._changed, self._ended = changed, ended
        self._live: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}  # with its bytes

    def __contains__(self, key: int) -> bool:
        """Return whether the storage of this key is followed."""
        return key in self._live

    def follow(self, storage: torch.UntypedStorage) -> None:
        """Follow a storage, or note its new size."""
        key, size = key_of(storage), storage.nbytes()
        reference, before = self._live.get(key, (None, 0))
        if reference is None:
            reference = weakref.ref(storage, lambda _: self._end(key))
        elif size == before:
            return
        self._live[key] = reference, size
        if size != before:
            self.bytes += size - before
            self._changed()

    def refresh(self) -> None:
        """Note the new sizes of storages that were resized unseen."""
        for reference, _ in tuple(self._live.values()):
            if (storage := reference()) is not None:
                self.follow(storage)

    def _end(self, key: int) -> None:
        _, size = self._live.pop(key)
        self._ended(key)
        if size:
            self.bytes -= size
            self._changed()
