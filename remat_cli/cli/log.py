"""`--log-file`: the events of a call, with their times.

The log is for long unattended runs and for reports of bugs.
"""

from __future__ import annotations

import logging
import platform
import re
import shlex
import sys
from contextlib import suppress
from os.path import isfile  # unlike that of Path, false for a name that no file can have
from pathlib import Path

from remat_cli import __version__
from remat_cli.core.problem import Bound, PassingObserver, Plan
from remat_cli.errors import UsageError
from remat_cli.formats.writing import file_written

_LOG = logging.getLogger("remat")
# The start of a line: the time, and the process.
_LINE = re.compile(rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} \d+ ", re.MULTILINE)


class _OneLine(logging.Formatter):
    """Escapes control characters in names from files.

    They would break lines, or steer the terminal.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging requires this name
        record.message = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in record.message)
        return super().formatMessage(record)


class _LogFile(logging.FileHandler):
    """Warns once if the log can no longer be written, and lets the call go on."""

    def handleError(self, record: logging.LogRecord) -> None:  # logging requires this name
        """Stop logging if the system accepts no more."""
        error = sys.exception()
        if isinstance(error, OSError):
            self._give_up(error)
        else:
            super().handleError(record)

    def close(self) -> None:
        """Close the file; some systems report a full disk only now."""
        try:
            super().close()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if self not in _LOG.handlers:
            return
        _LOG.removeHandler(self)
        self.close()
        _LOG.warning("--log-file %s: %s; the log ends here", self.baseFilename, error.strerror)


def start(path: Path) -> None:
    """Start appending to the log file.

    Raises:
        UsageError: the file cannot be written.
    """
    _check_is_log(path)
    try:
        handler = _LogFile(file_written(path), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(
            f"--log-file {path}: {error.strerror or error}", hint="name a file that can be written"
        ) from None
    handler.setFormatter(_OneLine("%(asctime)s %(process)d %(message)s"))
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False
    system = f"Python {platform.python_version()}, {platform.platform()}"
    _LOG.info("remat %s, %s: %s", __version__, system, shlex.join(sys.argv[1:]))


def _check_is_log(path: Path) -> None:
    """Raise a UsageError if the file is not a log of remat.

    Nothing may be appended to another file.
    """
    if not isfile(path):
        return
    with suppress(OSError), path.open("rb") as file:  # an unreadable file may still be appended to
        head = file.read(4096)
        if head and not _LINE.search(head):
            raise UsageError(
                f"--log-file {path}: is not a log of remat, and a log would be appended to it",
                hint="name another file, or a new one",
            )


def stop() -> None:
    """Close the log file."""
    for handler in tuple(_LOG.handlers):
        if isinstance(handler, _LogFile):
            handler.close()
            _LOG.removeHandler(handler)
    _LOG.setLevel(logging.NOTSET)
    _LOG.propagate = True


class Logged(PassingObserver):
    """Logs and forwards a planner's plans and bounds."""

    def phase(self, text: str) -> None:
        """Log the start of a phase."""
        _LOG.info("%s", text)
        super().phase(text)

    def found(self, plan: Plan) -> None:
        """Log a plan."""
        _LOG.info("found a plan that takes %d units of time", plan.time)
        super().found(plan)

    def bound(self, bound: Bound) -> None:
        """Log a bound."""
        _LOG.info("no plan takes less than %d units of time (%s, %s)", bound.time, bound.scope, bound.basis)
        super().bound(bound)

    def asks(self, planner: str) -> None:
        """Log the portfolio's next planner."""
        _LOG.info("asking %s", planner)
        super().asks(planner)

    def standing(self, overhead: float, bound: float, found_by: str | None) -> None:
        """Log the best overhead and bound."""
        _LOG.info("best overhead %.6f, bound %.6f%s", overhead, bound, f", by {found_by}" if found_by else "")
        super().standing(overhead, bound, found_by)
