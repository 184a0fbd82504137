"""A solver in a thread of its own, with a solver that counts until it is told to stop."""

from __future__ import annotations

from threading import Event, Thread, current_thread, main_thread

import pytest

from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.solver_thread import SolverThread


class Counting:
    """Tells of three numbers, and then waits to be stopped."""

    def __init__(self, limits: Limits | None = None, *, fails: bool = False, deaf: bool = False) -> None:
        self.stopped = Event()
        self.fails = fails
        patience = 0.2 if deaf else 10.0
        stop = (lambda: None) if deaf else self.stopped.set
        self.thread: SolverThread[int] = SolverThread("counting", self._solve, stop, limits or Limits(), patience)

    def _solve(self) -> None:
        assert current_thread() is not main_thread()
        for number in (1, 2, 3):
            self.thread.tell(number)
        if self.fails:
            raise ValueError("cannot count further")
        self.stopped.wait(5)


def test_news_are_taken_in_the_thread_that_asked() -> None:
    taken: list[int] = []

    def take(number: int) -> None:
        assert current_thread() is main_thread()
        taken.append(number)
        if number == 3:
            counting.stopped.set()

    counting = Counting()
    counting.thread.run(take)
    assert taken == [1, 2, 3]


def test_ctrl_c_stops_the_solver_and_loses_nothing() -> None:
    taken: list[int] = []

    def take(number: int) -> None:
        taken.append(number)
        if number == 1:
            raise KeyboardInterrupt

    counting = Counting()
    with pytest.raises(KeyboardInterrupt):
        counting.thread.run(take)
    assert counting.stopped.is_set()
    assert taken == [1, 2, 3]


def test_a_solver_is_stopped_where_there_is_enough() -> None:
    counting = Counting(Limits(has_enough=lambda: True))
    counting.thread.run(lambda number: None)
    assert counting.stopped.is_set()


def test_what_fails_in_the_thread_comes_up_where_it_was_asked_for() -> None:
    with pytest.raises(ValueError, match="cannot count"):
        Counting(fails=True).thread.run(lambda number: None)


def test_a_solver_that_does_not_listen_is_left_to_itself() -> None:
    def take(number: int) -> None:
        raise KeyboardInterrupt

    counting = Counting(deaf=True)
    with pytest.raises(KeyboardInterrupt):
        counting.thread.run(take)
    counting.stopped.set()


def test_where_the_system_allows_no_thread_the_solver_runs_in_the_one_that_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refuse)
    taken: list[int] = []
    thread = SolverThread[int]("at once", lambda: thread.tell(7), lambda: None, Limits())
    thread.run(taken.append)
    assert taken == [7]
