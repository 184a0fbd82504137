"""Limits of the system: memory, threads, processes, open files.

Refusals are put in words, and programs make do with less.
"""

from __future__ import annotations

import os
import resource
from _thread import LockType, allocate_lock, start_new_thread
from contextlib import suppress
from pathlib import Path
from threading import Thread

from remat_cli.errors import OutOfMemory, SystemRefuses

# Texts of Python, C++, the loader of libraries and OpenBLAS when memory or threads are refused.
_NO_MEMORY = ("MemoryError", "bad_alloc", "Cannot allocate memory", "cannot map", "failed to map", "Memory allocation")
_NO_THREADS = ("can't start new thread", "pthread_create failed", "Resource temporarily unavailable")
_NO_FILES = ("Too many open files",)
# Files of a process that starts others: its own, and the pipes of a process being started.
_FILES_OF_ITS_OWN = 20
# threads of a solver, for example
_THREADS_OF_ITS_OWN = 4
_MEMORY_OF_MACHINE = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")


def says_out_of_memory(text: str) -> bool:
    """Whether a process that printed this text ran out of memory."""
    return any(sign in text for sign in _NO_MEMORY)


def refusal_of(error: BaseException) -> SystemRefuses | None:
    """Return the system's refusal in words; None for any other error."""
    if isinstance(error, MemoryError):
        return _out_of_memory()
    # An ImportError if a library has no memory, a RuntimeError if there is no thread.
    if isinstance(error, OSError | ImportError | RuntimeError):
        return refusal_in(str(error))
    return None


def refusal_in(text: str) -> SystemRefuses | None:
    """Return the system's refusal in words; None if the text has none."""
    if says_out_of_memory(text):
        return _out_of_memory()
    if any(sign in text for sign in _NO_THREADS):
        hint = "allow more (ulimit -u, or the limit of the container), or run fewer processes at a time"
        return SystemRefuses("the system allows no more threads or processes", hint=hint)
    if any(sign in text for sign in _NO_FILES):
        hint = "allow more (ulimit -n), or run fewer processes at a time"
        return SystemRefuses("the system allows no more open files", hint=hint)
    return None


def _out_of_memory() -> OutOfMemory:
    return OutOfMemory("out of memory", hint="use a smaller graph, or a planner for large graphs: dtr")


def memory_left() -> int | None:
    """Return the bytes that this process can still take.

    The machine, its container and the process may limit them. None if no limit is known.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    room = [] if limit == resource.RLIM_INFINITY else [limit]
    with suppress(OSError, ValueError, IndexError):
        lines = _MEMORY_OF_MACHINE.read_text().splitlines()
        room += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # ValueError: "max", if there is no limit
        room.append(int((_CONTAINER / "memory.max").read_text()) - int((_CONTAINER / "memory.current").read_text()))
    return max(0, min(room)) if room else None


def can_start_threads(count: int = 1) -> bool:
    """Whether this number of threads can run in addition.

    This is tried, as no limit tells what other processes use.
    """
    end = allocate_lock()
    with end:
        try:
            for _ in range(count):
                start_new_thread(_wait_for, (end,))
        except RuntimeError:
            return False
    return True


def start_if_allowed(thread: Thread) -> bool:
    """Start a thread; return whether the system allows that."""
    try:
        thread.start()
    except RuntimeError as error:
        if refusal_of(error) is None:
            raise
        return False
    return True


def _wait_for(end: LockType) -> None:
    with end:
        pass


def leave_threads(cores: int) -> None:
    """Let OpenBLAS start no threads if the system might refuse some.

    If OpenBLAS cannot start a thread, it raises Ctrl-C while it is loaded. No code here needs its threads. If address
    space is limited, each attempt takes some of it for good.
    """
    has_room = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    if not has_room or not can_start_threads(cores + _THREADS_OF_ITS_OWN):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def processes_for_files(wanted: int, files_each: int) -> int:
    """Return the number of processes that may have `files_each` files open.

    It is 1 or more, at most `wanted`; the files are open in this process.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return wanted
    left = most - len(os.listdir("/dev/fd")) - _FILES_OF_ITS_OWN
    return max(1, min(wanted, left // files_each))
