"""Python's search for garbage, left out while what is made stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_search_for_garbage() -> Iterator[None]:
    """Keep Python from looking for garbage meanwhile.

    What is made while a graph is read stays, and is millions of objects: to look through them again and again takes up
    to a quarter of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                # Both together make all of it old, unseen; else the next search would begin with millions of objects.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
