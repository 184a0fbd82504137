"""Standard streams without a reader: closed or left.

They are closed under cron and daemons, for example.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from errno import EIO
from io import BufferedWriter, FileIO, TextIOWrapper
from stat import S_ISCHR
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def prepare_streams() -> None:
    """Make sure that standard streams exist, and stderr never ends a call."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if _is_closed(number):
            # The lowest free number is this one. Otherwise the next file gets it, and receives all printed text.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        unheard = BufferedWriter(_Unheard(sys.stderr.fileno(), "wb", closefd=False))
        sys.stderr = TextIOWrapper(unheard, sys.stderr.encoding, errors="backslashreplace", line_buffering=True)


def _is_closed(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return True
    return False


class _Unheard(FileIO):
    """A stream that drops text if its pipe, disk or terminal is gone."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, or pretend to write."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def stdout_is_closed() -> bool:
    """Tell whether the process started without stdout."""
    return sys.__stdout__ is None


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Continue after the reader of stdout has left (`remat ... | head`).

    The exit code still says how the call ended.
    """
    try:
        yield
    except OSError as error:
        is_terminal_gone = error.errno == EIO and S_ISCHR(os.fstat(sys.stdout.fileno()).st_mode)
        if not isinstance(error, BrokenPipeError) and not is_terminal_gone:
            raise
        drop_stdout()


def drop_stdout() -> None:
    """Point stdout to the null device.

    The interpreter would complain about closing a broken stream.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def stdout_kept() -> Iterator[None]:
    """Send to stderr what libraries print to stdout, in Python or in C."""
    import ctypes  # late: most calls do without

    with reader_may_leave():
        sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)  # C holds text back if stdout is no terminal
        os.dup2(stdout, 1)
        os.close(stdout)
