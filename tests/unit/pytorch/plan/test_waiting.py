"""What calls wait for is timed, and told where it takes long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from remat_cli.pytorch.plan import waiting
from remat_cli.pytorch.plan.waiting import Waiting


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the time that the phases see, in nanoseconds."""
    now = [0]
    monkeypatch.setattr(waiting, "monotonic_ns", lambda: now[0])
    return now


def test_a_phase_within_another_stops_its_clock(clock: list[int]) -> None:
    waits = Waiting()
    with waits.phase("tracing"):
        clock[0] += 3
        with waits.phase("planning"):
            clock[0] += 5
        clock[0] += 7
    assert waits.spent_ns == {"tracing": 10, "planning": 5}


def test_a_phase_that_raises_is_counted_and_left(clock: list[int]) -> None:
    waits = Waiting()
    with suppress(ValueError), waits.phase("tracing"):
        clock[0] += 3
        raise ValueError
    with waits.phase("tracing"):
        clock[0] += 4
    assert waits.spent_ns == {"tracing": 7}


def test_who_waits_long_is_told_for_what(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_NS", 1)
    with caplog.at_level(logging.INFO, logger="remat"), Waiting().phase("planning", "the step has 7 ops"):
        _wait_for(lambda: bool(caplog.messages))
    assert caplog.messages[0] == "planning takes more than 1 ns; the step has 7 ops"


def test_a_phase_that_goes_on_after_another_is_told_once(
    clock: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    long = 2 * 10**12
    monkeypatch.setattr(waiting, "PATIENCE_NS", long // 2)  # no timer of this test waits so long
    waits = Waiting()
    for _ in range(2):  # each wait is told of anew
        caplog.clear()
        with caplog.at_level(logging.INFO), waits.phase("tracing"):
            clock[0] += long
            with waits.phase("planning"):
                clock[0] += long
            _wait_for(lambda: len(caplog.messages) == 1)
            with waits.phase("planning"):
                _wait_for(lambda: len(caplog.messages) == 2)
            time.sleep(0.05)
        assert [message.split()[0] for message in caplog.messages] == ["tracing", "planning", "this"]


def test_who_waits_briefly_hears_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with Waiting().phase("planning"):
        pass
    assert caplog.messages == []


def _wait_for(happened: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if happened():
            return
        time.sleep(0.005)
    raise TimeoutError
