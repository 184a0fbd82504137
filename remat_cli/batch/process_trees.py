"""The end of a process with all its descendants."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def kill_tree(leader: int) -> None:
    """Kill a process group with its leader.

    On Linux this kills descendants outside the group, too: solvers leave it.

    Args:
        leader: id of the leader: a process not yet waited for, or the calling process.
    """
    strays = [process for process in _descendants(leader) if process != os.getpid()]
    for process in strays:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _descendants(process: int) -> list[int]:
    descendants: list[int] = []
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # it has ended in the meantime
            children = [int(child) for child in listed.read_text(encoding="ascii").split()]
            descendants += [each for child in children for each in (child, *_descendants(child))]
    return descendants
