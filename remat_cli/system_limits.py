"""What the system refuses (memory, threads, processes, open files): told in words, and made do with."""

from __future__ import annotations

import os
import resource
from _thread import LockType, allocate_lock, start_new_thread
from contextlib import suppress
from pathlib import Path
from threading import Thread

from remat_cli.errors import OutOfMemory, SystemRefuses

# What Python, C++, the loader of libraries and OpenBLAS say where memory does not suffice, or threads are refused.
_NO_MEMORY = ("MemoryError", "bad_alloc", "Cannot allocate memory", "cannot map", "failed to map", "Memory allocation")
_NO_THREADS = ("can't start new thread", "pthread_create failed", "Resource temporarily unavailable")
_NO_FILES = ("Too many open files",)
# Of a process that starts others: for what it reads and writes itself, and the pipes of one that is being started.
_FILES_OF_ITS_OWN = 20
# Such as a solver's.
_THREADS_OF_ITS_OWN = 4
_MEMORY_OF_MACHINE = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")


def says_out_of_memory(text: str) -> bool:
    """Whether a process that printed this had too little memory."""
    return any(sign in text for sign in _NO_MEMORY)


def refusal_of(error: BaseException) -> SystemRefuses | None:
    """Return in words what the system refuses; None where an error is anything else."""
    if isinstance(error, MemoryError):
        return _out_of_memory()
    # An ImportError where a library finds no room, a RuntimeError where a thread is not to be had.
    if isinstance(error, OSError | ImportError | RuntimeError):
        return refusal_in(str(error))
    return None


def refusal_in(text: str) -> SystemRefuses | None:
    """Return in words what the system refuses, where a text says that it does."""
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
    """Return the bytes that this process can still take, by the machine, its container and its own limit.

    None where none of these tells.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    room = [] if limit == resource.RLIM_INFINITY else [limit]
    with suppress(OSError, ValueError, IndexError):
        lines = _MEMORY_OF_MACHINE.read_text().splitlines()
        room += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # ValueError: "max", where there is no limit
        room.append(int((_CONTAINER / "memory.max").read_text()) - int((_CONTAINER / "memory.current").read_text()))
    return max(0, min(room)) if room else None


def can_start_threads(count: int = 1) -> bool:
    """Whether so many more threads can run at the same time; tried, as no limit tells what others use of it."""
    end = allocate_lock()
    with end:
        try:
            for _ in range(count):
                start_new_thread(_wait_for, (end,))
        except RuntimeError:
            return False
    return True


def start_if_allowed(thread: Thread) -> bool:
    """Start a thread; return whether the system allows it."""
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
    """Have OpenBLAS start no threads where the system does not allow those that it would start, and a few more.

    Where it cannot start one, it presses Ctrl-C as it is loaded. Nothing here needs its threads. Where address space is
    limited, each that is tried takes some for good.
    """
    has_room = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    if not has_room or not can_start_threads(cores + _THREADS_OF_ITS_OWN):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def processes_for_files(wanted: int, files_each: int) -> int:
    """Return how many processes may have so many files open each in this one: one or more, at most `wanted`."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return wanted
    left = most - len(os.listdir("/dev/fd")) - _FILES_OF_ITS_OWN
    return max(1, min(wanted, left // files_each))
