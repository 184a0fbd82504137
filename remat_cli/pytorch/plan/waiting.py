"""What a call waits for before it runs as planned: told where it takes long, and summed up."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic_ns

from remat_cli.pytorch.plan.record import told, waited
from remat_cli.units import format_time

TRACING = "PyTorch's tracing of the model"
MEASURING = "measuring its kernels"
PLANNING = "planning"
DIVIDING = "reading and dividing what was traced"
COMPILING = "compiling its kernels"

# Whoever waits this long is told for what.
PATIENCE_NS = 2_000_000_000


class Waiting:
    """Times the phases before a step runs; each that lasts two seconds is told while it lasts, and all in the log.

    A phase within another one stops the clock of the outer one.

    Attributes:
        spent_ns: time of each phase so far, in nanoseconds.
    """

    def __init__(self) -> None:
        self.spent_ns: Counter[str] = Counter()
        self._before: Counter[str] = Counter()  # the first phase of this wait
        self._under_way: list[tuple[str, str]] = []
        self._since = 0
        self._told: set[str] = set()
        self._timer: threading.Timer | None = None

    @contextmanager
    def phase(self, name: str, detail: str = "") -> Iterator[None]:
        """Count the time until this is left as one of a phase.

        Args:
            name: of the phase.
            detail: what else is told where it takes long.
        """
        if not self._under_way:
            self._before, self._told = self.spent_ns.copy(), set()
        self._stop()
        self._under_way.append((name, detail))
        self._start()
        try:
            yield
        finally:
            self._stop()
            self._under_way.pop()
            self._start() if self._under_way else self._end()

    def _start(self) -> None:
        self._since = monotonic_ns()
        name, detail = self._under_way[-1]
        if name in self._told:
            return
        left = PATIENCE_NS - (self.spent_ns - self._before)[name]
        self._timer = threading.Timer(max(0, left) / 1e9, self._tell, (name, detail))
        self._timer.daemon = True
        self._timer.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._under_way:
            self.spent_ns[self._under_way[-1][0]] += monotonic_ns() - self._since

    def _tell(self, name: str, detail: str) -> None:
        self._told.add(name)
        told(logging.WARNING, f"{name} takes more than {format_time(PATIENCE_NS, 'ns')}{detail and f'; {detail}'}")

    def _end(self) -> None:
        spent = self.spent_ns - self._before
        if spent.total() >= PATIENCE_NS:
            told(logging.INFO, f"this call waited {waited(spent)}")
