"""The files of the user's Python: modules that it imports, and data that it loads.

They are known once the code has run, and no call may overwrite them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_SCHEDULE = b'"format": "remat.schedule/'

_noted: set[str] = set()
_running = 0


@contextmanager
def noting_files() -> Iterator[None]:
    """Note files that are read while the user's code runs within this context."""
    global _running
    _install_hook()
    known = set(sys.modules)
    _running += 1
    try:
        yield
    finally:
        _running -= 1
        modules = (sys.modules.get(name) for name in set(sys.modules) - known)
        # A module whose bytecode is cached is imported without opening its source.
        _noted.update(os.path.abspath(file) for module in modules if (file := getattr(module, "__file__", None)))


def files_of_user() -> list[Path]:
    """Return the files that the user's code has read."""
    return list(map(Path, sorted(_noted)))


def is_schedule(path: Path) -> bool:
    """Tell whether a file is a plan, which code reads to run it, and which the next plan replaces."""
    return os.path.isfile(path) and _SCHEDULE in path.read_bytes()


@cache
def _install_hook() -> None:
    """Watch each opening of a file; Python removes no such hook until it ends."""

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if _running and event == "open":
            path, _, flags = arguments
            is_read = isinstance(flags, int) and flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR) != os.O_WRONLY
            if is_read and isinstance(path, str | bytes):
                _noted.add(os.path.abspath(os.fsdecode(path)))

    sys.addaudithook(watch)
