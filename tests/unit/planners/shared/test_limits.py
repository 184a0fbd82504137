"""Where a search stops: by the clock, by work, or because whoever asked has enough."""

from __future__ import annotations

from math import inf
from time import monotonic

import pytest

from remat_cli.core.problem import Observer
from remat_cli.machine.cores import usable_cores
from remat_cli.planners.shared import limits as limits_module
from remat_cli.planners.shared.limits import Limits


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = monotonic()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(limits_module, "monotonic", clock)
    return clock


def test_the_clock_ends_a_search_at_its_deadline(clock: Clock) -> None:
    limits = Limits.of(10.0)
    clock.now += 9.0
    assert not limits.is_over
    assert limits.seconds == pytest.approx(1.0)
    clock.now += 1.5
    assert limits.is_over
    assert limits.seconds == 0


def test_counted_work_ends_it_whatever_the_clock_says(clock: Clock) -> None:
    limits = Limits.of(inf, 100)
    limits.spend(99)
    clock.now += 1e9
    assert not limits.is_over
    limits.spend(1)
    assert limits.is_over


def test_it_ends_where_whoever_asked_has_enough() -> None:
    class Asker(Observer):
        has_enough = False

    asker = Asker()
    limits = Limits.of(60.0, observe=asker)
    part = limits.part(0.5)
    assert not limits.is_over
    asker.has_enough = True
    assert limits.is_over
    assert part.is_over


def test_a_part_has_its_share_of_what_is_left(clock: Clock) -> None:
    limits = Limits.of(10.0, 100, cores=3, seed=5)
    clock.now += 2.0
    part = limits.part(0.25, work=40)
    assert part.seconds == pytest.approx(2.0)
    assert (part.work, part.cores, part.seed) == (40, 3, 5)
    assert limits.part().deadline == limits.deadline
    assert limits.part(work=1000).work == 100
    part.spend(40)
    assert part.is_over
    assert not limits.is_over


@pytest.mark.parametrize(("cores", "meant"), [(0, usable_cores()), (1, 1), (7, 7)])
def test_no_cores_are_all_of_them(cores: int, meant: int) -> None:
    assert Limits.of(1.0, cores=cores).cores == meant


def test_without_work_there_is_as_much_as_time_allows() -> None:
    assert Limits.of(1.0).work == inf
    assert Limits.of(1.0, 0).is_over
