"""The cores of this machine, and the processes that use them."""

from __future__ import annotations

import os
from signal import SIG_IGN, SIGINT, signal


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def leave_ctrl_c_to_parent() -> None:
    """Take no notice of Ctrl-C in this process: whoever started it ends it."""
    signal(SIGINT, SIG_IGN)
