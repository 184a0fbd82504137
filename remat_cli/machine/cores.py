"""The cores of this machine, and pools of processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from signal import SIG_IGN, SIGINT, signal
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from remat_cli.machine.system_limits import can_start_threads, processes_for_files, refusal_of, start_if_allowed

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

Task = TypeVar("Task")
Result = TypeVar("Result")

# For a pool: open files per process in its parent, threads per process (a process is one), and threads of the parent
# that tend the pool.
_FILES_EACH = 2
_THREADS_EACH = 4
_OTHER_THREADS = 4


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def process_pool(
    count: int, begin: Callable[..., None] | None = None, arguments: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor | None]:
    """Provide processes that end with the block, or with this process.

    The result is None if the system does not allow two.

    Args:
        count: number of processes; fewer if the system does not allow so many.
        begin: function that each process calls first; it must call `serve_parent`, which is the default.
        arguments: arguments of `begin`.
    """
    count = processes_for_files(count, _FILES_EACH)
    while count > 1 and not can_start_threads(count * _THREADS_EACH + _OTHER_THREADS):
        count //= 2
    if count < 2:
        yield None
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import active_children, get_context

    # One thread per process: the cores are for the processes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    before = set(active_children())
    # New processes rather than forks: a solver's threads may be running.
    pool = ProcessPoolExecutor(count, get_context("spawn"), initializer=begin or serve_parent, initargs=arguments)
    try:
        yield pool
    finally:
        for process in set(active_children()) - before:
            process.terminate()
        pool.shutdown(cancel_futures=True)


def run_in(
    pool: ProcessPoolExecutor | None,
    carry_out: Callable[[Task], Result],
    tasks: Sequence[Task],
    alone: Callable[[Task], Result] | None = None,
) -> Iterator[Result]:
    """Yield the results of tasks in their order.

    If the pool is killed, this process does the remaining tasks.

    Args:
        pool: pool whose processes do the tasks; with None, this process does each when its result is needed.
        carry_out: function that does a task.
        tasks: the tasks, which may be done twice.
        alone: function that does a task in this process; by default `carry_out`.
    """
    from concurrent.futures.process import BrokenProcessPool

    done = 0
    try:
        # Not `map`, which cancels pending tasks; a killed pool then fails once more (Python 3.11).
        for future in () if pool is None else [pool.submit(carry_out, task) for task in tasks]:
            result = future.result()
            done += 1
            yield result
    except (OSError, RuntimeError) as error:
        if not isinstance(error, BrokenProcessPool) and refusal_of(error) is None:
            raise
    yield from map(alone or carry_out, tasks[done:])


def serve_parent() -> None:
    """Let a process of a pool ignore Ctrl-C, and end with its parent.

    The parent may be killed without a chance to end its children, for example by the system when memory runs out.
    """
    from multiprocessing import parent_process

    signal(SIGINT, SIG_IGN)
    parent = parent_process()
    if parent is not None:
        start_if_allowed(Thread(target=_end_with, args=(parent.sentinel,), daemon=True))


def _end_with(sentinel: int) -> None:
    from multiprocessing.connection import wait

    wait([sentinel])
    os._exit(1)
