"""A solver in its own thread, with Ctrl-C and results on the way."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Generic, TypeVar

from remat_cli.machine.system_limits import start_if_allowed
from remat_cli.planners.shared.limits import Limits

News = TypeVar("News")

# Seconds between two checks for Ctrl-C: some systems cannot interrupt the waiting itself.
_LOOK = 0.1


class SolverThread(Generic[News]):
    """Runs a solver, and passes its solutions and bounds to the caller's thread.

    Ctrl-C, or an exception in the caller's code, is raised in the caller's thread, after the solver has stopped.
    """

    def __init__(
        self,
        name: str,
        solve: Callable[[], None],
        stop: Callable[[], None],
        limits: Limits,
        patience: float = inf,
    ) -> None:
        """Prepare a run.

        Args:
            name: name of the thread.
            solve: runs the solver to its end.
            stop: asks the solver to end; may be called at any time, repeatedly.
            limits: limits whose `has_enough` is watched here; the solver keeps the other limits.
            patience: seconds to wait for a solver that was asked to end, before its thread is abandoned.
        """
        self._solve = solve
        self._stop = stop
        self._limits = limits
        self._patience = patience
        # In the order of arrival; None once the solver has ended.
        self._news: SimpleQueue[News | None] = SimpleQueue()
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._run, name=name, daemon=patience < inf)

    def tell(self, news: News) -> None:
        """Pass on a solution or bound; the solver calls this in any thread."""
        self._news.put(news)

    def run(self, take: Callable[[News], None]) -> None:
        """Solve, and pass all solutions and bounds to `take`.

        Raises:
            KeyboardInterrupt: Ctrl-C; the solver was stopped after passing on everything until then.
        """
        if not start_if_allowed(self._thread):
            self._run()  # runs in this thread: results come at its end, and the solver's own limits end it
        try:
            self._listen(take)
        except KeyboardInterrupt:
            self._end()
            while (news := self._waiting()) is not None:
                take(news)
            raise
        finally:
            self._end()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._solve()
        except BaseException as failure:  # raised again in the caller's thread
            self._failure = failure
        finally:
            self._news.put(None)

    def _listen(self, take: Callable[[News], None]) -> None:
        while True:
            try:
                news = self._news.get(timeout=_LOOK)
            except Empty:
                if self._limits.has_enough():
                    self._stop()
                continue
            if news is None:
                return
            take(news)

    def _waiting(self) -> News | None:
        return None if self._news.empty() else self._news.get()

    def _end(self) -> None:
        """Stop a running solver, and wait for its end."""
        give_up_at = monotonic() + self._patience
        while self._thread.is_alive() and monotonic() < give_up_at:
            # Repeatedly: a solver may lose a request that comes before its start.
            self._stop()
            self._thread.join(timeout=_LOOK)
