"""The cores of this machine, and the processes that use them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from signal import SIG_IGN, SIGINT, signal
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from remat_cli.system_limits import can_start_threads, processes_for_files, refusal_of, start_if_allowed

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

Task = TypeVar("Task")
Result = TypeVar("Result")

# Of a pool: open files for each process in the one that starts them, and threads (a process is one) of each and of that
# one, which tend to the pool.
_FILES_EACH = 2
_THREADS_EACH = 4
_THREADS_BESIDE = 4


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def process_pool(
    count: int, begin: Callable[..., None] | None = None, arguments: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor | None]:
    """Give processes that end with the block, or with this process; None where the system does not allow two.

    Args:
        count: how many; fewer where the system does not allow so many.
        begin: what each does first; it calls `serve_parent`, which is the default.
        arguments: of `begin`.
    """
    count = processes_for_files(count, _FILES_EACH)
    while count > 1 and not can_start_threads(count * _THREADS_EACH + _THREADS_BESIDE):
        count //= 2
    if count < 2:
        yield None
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import active_children, get_context

    # One thread a process: the cores are for the processes.
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
    """Yield the results of tasks in their order; what a pool cannot do, as it was killed, is done here.

    Args:
        pool: whose processes do them; None: this one does, each as its result is asked for.
        carry_out: does a task.
        tasks: what is to be done; doing it twice is no fault.
        alone: does a task in this process; `carry_out` where it is left out.
    """
    from concurrent.futures.process import BrokenProcessPool

    done = 0
    try:
        # Not `map`, which cancels what is not asked for; a pool that is killed then fails once more (Python 3.11).
        for future in () if pool is None else [pool.submit(carry_out, task) for task in tasks]:
            result = future.result()
            done += 1
            yield result
    except (OSError, RuntimeError) as error:
        if not isinstance(error, BrokenProcessPool) and refusal_of(error) is None:
            raise
    yield from map(alone or carry_out, tasks[done:])


def serve_parent() -> None:
    """Begin a process of a pool: it takes no notice of Ctrl-C, and ends with the process that started it.

    That one may be killed without a chance to end it, as by the system where memory runs out.
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
