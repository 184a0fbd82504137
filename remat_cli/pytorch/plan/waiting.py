"""The phases that a call waits for before it runs as planned.

Long phases are announced, and all are summed up.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic_ns

from remat_cli.pytorch.plan.record import notify, waited
from remat_cli.units import format_time

TRACING = "PyTorch's tracing of the model"
MEASURING = "measuring its kernels"
PLANNING = "planning"
DIVIDING = "reading and dividing what was traced"
COMPILING = "compiling its kernels"

# A user who waits this long is told the reason.
PATIENCE_NS = 2_000_000_000


class Waiting:
    """Times the phases before a step runs.

    A phase of two seconds is announced while it lasts, and all phases are logged.

    A phase within another one stops the clock of the outer one.

    Attributes:
        spent_ns: time of each phase so far, in nanoseconds.
    """

    def __init__(self) -> None:
        self.spent_ns: Counter[str] = Counter()
        self._before: Counter[str] = Counter()  # the first phase of this wait
        self._phases: list[tuple[str, str]] = []
        self._since = 0
        self._notified: set[str] = set()
        self._timer: threading.Timer | None = None

    @contextmanager
    def phase(self, name: str, detail: str = "") -> Iterator[None]:
        """Count the time inside the context for a phase.

        Args:
            name: name of the phase.
            detail: details for the announcement of a long phase.
        """
        if not self._phases:
            self._before, self._notified = self.spent_ns.copy(), set()
        self._stop()
        self._phases.append((name, detail))
        self._start()
        try:
            yield
        finally:
            self._stop()
            self._phases.pop()
            self._start() if self._phases else self._end()

    def _start(self) -> None:
        self._since = monotonic_ns()
        name, detail = self._phases[-1]
        if name in self._notified:
            return
        left = PATIENCE_NS - (self.spent_ns - self._before)[name]
        self._timer = threading.Timer(max(0, left) / 1e9, self._tell, (name, detail))
        self._timer.daemon = True
        self._timer.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._phases:
            self.spent_ns[self._phases[-1][0]] += monotonic_ns() - self._since

    def _tell(self, name: str, detail: str) -> None:
        self._notified.add(name)
        notify(logging.INFO, f"{name} takes more than {format_time(PATIENCE_NS, 'ns')}{detail and f'; {detail}'}")

    def _end(self) -> None:
        spent = self.spent_ns - self._before
        if spent.total() >= PATIENCE_NS:
            notify(logging.INFO, f"this call waited {waited(spent)}")
