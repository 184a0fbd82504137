"""Python's garbage collection, switched off while a graph is read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_search_for_garbage() -> Iterator[None]:
    """Switch off Python's garbage collection within the block.

    The millions of objects of a graph stay: scanning them again and again takes up to a quarter of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                # Together these move all objects to the oldest generation, unscanned; otherwise the next collection
                # would scan millions of objects.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
