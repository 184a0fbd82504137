"""The time of each stage of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter

from remat_cli.core.problem import Observer, PassingObserver


class Stopwatch:
    """Adds up the time of each stage, without stages inside.

    Attributes:
        seconds: seconds of each stage, in the order of their start.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        """Start with the time of `clock`, in seconds."""
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._running: list[str] = []
        self._since = clock()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of the block for a stage, even after an error."""
        self._count()
        self.seconds.setdefault(name, 0.0)
        self._running.append(name)
        try:
            yield
        finally:
            self._count()
            self._running.pop()

    def _count(self) -> None:
        now = self._clock()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


class Timed(PassingObserver):
    """Counts the time of judging plans separately from that of planning."""

    def __init__(self, observe: Observer, watch: Stopwatch) -> None:
        """Forward everything to `observe`."""
        super().__init__(observe)
        self._watch = watch

    def judging(self) -> AbstractContextManager[None]:
        """Count the block as judging."""
        return self._watch.stage("judging")
