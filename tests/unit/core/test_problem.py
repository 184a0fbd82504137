"""Observers that pass on what they are told: nothing is lost on the way."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from inspect import getmembers, isfunction

import pytest

from remat_cli.core.problem import Bound, Observer, PassingObserver, Plan, Scope
from remat_cli.core.schedule import Schedule
from tests.plans import RecordingObserver, told

PLAN: Plan = told(Schedule(()))
BOUND = Bound(3, Scope.ANY_ORDER)
TELLING = sorted(name for name, _ in getmembers(Observer, isfunction) if not name.startswith("_"))


class Enough(Observer):
    """Has enough from the start."""

    @property
    def has_enough(self) -> bool:
        return True


@pytest.mark.parametrize("method", [*TELLING, "has_enough"])
def test_everything_that_an_observer_is_told_is_passed_on(method: str) -> None:
    assert method in vars(PassingObserver), "what it does not pass on is lost"


def test_it_is_passed_on_as_it_is() -> None:
    heard = RecordingObserver()
    passing = PassingObserver(PassingObserver(heard))
    passing.begins()
    passing.phase("searching")
    passing.found(PLAN)
    passing.bound(BOUND)
    passing.asks("dtr")
    passing.standing(0.5, 0.25, "dtr")
    assert (heard.begun, heard.phases, heard.plans, heard.bounds) == (1, ["searching"], [PLAN], [BOUND])
    assert (heard.asked, heard.standings) == (["dtr"], [(0.5, 0.25, "dtr")])


def test_judging_is_surrounded_by_what_whoever_asked_says() -> None:
    entered = nullcontext()

    class Surrounds(Observer):
        def judging(self) -> AbstractContextManager[None]:
            return entered

    assert PassingObserver(PassingObserver(Surrounds())).judging() is entered


def test_whoever_asked_says_whether_it_is_enough() -> None:
    assert not PassingObserver(RecordingObserver()).has_enough
    assert PassingObserver(PassingObserver(Enough())).has_enough


def test_scopes_are_written_by_their_order_of_ops() -> None:
    assert {scope: scope.written for scope in Scope} == {
        Scope.ANY_PLAN: "any-order",
        Scope.ANY_ORDER: "any-order",
        Scope.FIXED_ORDER: "fixed-order",
        Scope.PLANNER: "planner",
    }
    assert [scope for scope in Scope if scope.leaves_out_transfers] == [Scope.ANY_ORDER, Scope.FIXED_ORDER]
