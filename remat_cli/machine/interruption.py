"""Requests to end: Ctrl-C, and the signals of schedulers, containers and closed terminals."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from types import FrameType

# The exit code of an interrupted process.
EXIT_CODE = 130

# Signals from Slurm, containers and service managers, and from a terminal that is closed.
REQUESTS_TO_END = (signal.SIGTERM, signal.SIGHUP)
# Seconds between two looks at whether an import has ended, and the longest wait for one: a longer import is a module of
# the user's that works while it is imported. A second Ctrl-C after the last number of seconds ends the wait, too.
_LOOK = 0.01
_LONGEST_IMPORT = 10.0
_INSISTS = 1.0


def take_as_ctrl_c() -> None:
    """Handle a request to end like Ctrl-C, so that the best plan is written.

    Only the first request counts: later ones must not keep the plan from being written. A signal that nohup ignores
    stays ignored.
    """
    global _is_deaf
    _is_deaf = False
    for number in REQUESTS_TO_END:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        heed_ctrl_c()


def heed_ctrl_c() -> None:
    """Raise KeyboardInterrupt at Ctrl-C, but never during an import."""
    signal.signal(signal.SIGINT, _interrupt)


def heed_a_request_that_waits() -> None:
    """Raise KeyboardInterrupt if a request waits for imports to end.

    Imports may have followed each other until now.
    """
    if _waiting_since is not None:
        _interrupt(signal.SIGALRM, None)


def pass_over_requests() -> None:
    """Ignore requests to end: the parent process decides.

    This needs a handler: child processes would inherit SIG_IGN, and Python complains of SIG_IGN if a request is
    pending.
    """
    for number in REQUESTS_TO_END:
        _pass_over(number)


def end_undisturbed() -> None:
    """Ignore all signals: the work is done, and the interpreter is exiting."""
    global _is_deaf
    _is_deaf = True  # a signal may arrive before the next lines take effect
    numbers = (signal.SIGINT, *REQUESTS_TO_END)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:  # another thread may have received one
        _pass_over(number)
    # Python removes its own handlers at exit; a signal to another thread would then end the process.
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def tell() -> None:
    """Write to stderr that the call was interrupted."""
    with suppress(OSError, ValueError):  # stderr may be gone
        if sys.stderr is not None:
            # Clear a line of progress, and show the cursor again.
            sys.stderr.write(("\r\x1b[K\x1b[?25h" if sys.stderr.isatty() else "") + "error: interrupted\n")
            sys.stderr.flush()


def was_interrupted() -> bool:
    """Whether this process was interrupted, and has noticed."""
    return _has_interrupted


def comes_of_a_request(error: BaseException) -> bool:
    """Whether an error is the reaction of an import or of a library to a request to end.

    pydantic-core tells of a KeyboardInterrupt in the text of an error of its own.
    """
    return _has_interrupted and (isinstance(error, ImportError) or KeyboardInterrupt.__name__ in str(error))


@contextmanager
def nothing_to_lose() -> Iterator[None]:
    """Exit at once on Ctrl-C during a slow import, before there is a result."""
    global _may_leave
    _may_leave = True
    try:
        yield
    finally:
        _may_leave = False


def _pass_over(number: signal.Signals) -> None:
    signal.signal(number, lambda number, frame: None)


# The time of a request that waits for an import to end.
_waiting_since: float | None = None
_may_leave = False
_has_interrupted = False
_is_deaf = False


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but wait for a running import to end.

    A C library that is interrupted during its initialisation fails with an error of its own, or crashes.
    """
    global _waiting_since, _has_interrupted
    if _is_deaf:
        return
    pass_over_requests()
    if _may_leave:
        tell()
        # The interpreter would tear down half-initialised modules, and crash.
        os._exit(EXIT_CODE)
    now = monotonic()
    waited = 0.0 if _waiting_since is None else now - _waiting_since
    insists = number == signal.SIGINT and waited > _INSISTS
    if _is_importing(frame) and waited < _LONGEST_IMPORT and not insists:
        _waiting_since = now - waited
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, _LOOK)
        return
    _waiting_since = None
    _has_interrupted = True
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.unraisablehook = _ask_again
    raise KeyboardInterrupt


def _ask_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Raise KeyboardInterrupt again after Python has lost it.

    Python loses it in a `__del__` or in a callback of a weakref.
    """
    global _waiting_since
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
    elif not _is_deaf:
        _waiting_since = monotonic()
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, _LOOK)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
