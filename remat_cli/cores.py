"""The cores of this machine, and the processes that use them."""

from __future__ import annotations

import os
from multiprocessing import parent_process
from multiprocessing.connection import wait
from signal import SIG_IGN, SIGINT, signal
from threading import Thread


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def serve_parent() -> None:
    """Begin a process of a pool: it takes no notice of Ctrl-C, and ends with the process that started it.

    That one may be killed without a chance to end it, as by the system where memory runs out.
    """
    signal(SIGINT, SIG_IGN)
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
