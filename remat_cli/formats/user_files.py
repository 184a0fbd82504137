"""The files of the user's Python: modules that it imports, and data that it loads.

They are known once the code has run, and no call may overwrite them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path

from remat_cli.formats.writing import check_writes

_SCHEDULE = b'"format": "remat.schedule/'

_noted: set[str] = set()
_running = 0
_stdout_kept: Callable[[], AbstractContextManager[None]] = nullcontext


def keep_stdout_by(kept: Callable[[], AbstractContextManager[None]]) -> None:
    """Run the user's code within `kept()` from now on, which sends its prints elsewhere."""
    global _stdout_kept
    _stdout_kept = kept


@contextmanager
def noting_files() -> Iterator[None]:
    """Note files that are read while the user's code runs within this context."""
    global _running
    _install_hook()
    known = set(sys.modules)
    _running += 1
    try:
        with _stdout_kept():
            yield
    finally:
        _running -= 1
        modules = (sys.modules.get(name) for name in set(sys.modules) - known)
        # A module whose bytecode is cached is imported without opening its source.
        _noted.update(os.path.abspath(file) for module in modules if (file := getattr(module, "__file__", None)))
        _noted.update(_mapped_files())


def files_of_user() -> list[Path]:
    """Return the files that the user's code has read."""
    return list(map(Path, sorted(_noted)))


def note_files(files: Iterable[Path]) -> None:
    """Note files that the user's code has read in another process."""
    _noted.update(map(os.fspath, files))


def check_user_files(writes: Mapping[str, Path], *, force: bool = False) -> None:
    """Check that no file to write is one that the user's code has read.

    A plan may be replaced: code reads it to run it.

    Args:
        writes: the files to write, by option.
        force: whether write-protected files may be replaced.

    Raises:
        UsageError: a file would be lost.
    """
    if read := files_of_user():
        others = {option: path for option, path in writes.items() if not _is_schedule(path)}
        check_writes(others, read, force=force)


def _mapped_files() -> set[str]:
    """Return the files mapped into this process's memory; native code opens weights without Python's notice."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text(errors="surrogateescape").splitlines() if maps.exists() else []
    columns = (line.split(maxsplit=5) for line in lines)
    return {column[5] for column in columns if len(column) == 6 and column[5].startswith("/")}


def _is_schedule(path: Path) -> bool:
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
