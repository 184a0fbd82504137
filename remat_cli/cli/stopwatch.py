"""Where the time of a call goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter

from remat_cli.core.problem import Observer, PassingObserver


class Stopwatch:
    """Adds up the time of each stage; a stage within another one is not counted as that one's time.

    Attributes:
        seconds: of each stage, in the order in which they began.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        """Read the time, in seconds, off `clock`."""
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._running: list[str] = []
        self._since = clock()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time within as that of a stage, also where it ends with an error."""
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
    """Counts the time in which plans are judged apart from that in which they are made."""

    def __init__(self, observe: Observer, watch: Stopwatch) -> None:
        """Pass everything on to `observe`."""
        super().__init__(observe)
        self._watch = watch

    def judging(self) -> AbstractContextManager[None]:
        """Count it as judging."""
        return self._watch.stage("judging")
