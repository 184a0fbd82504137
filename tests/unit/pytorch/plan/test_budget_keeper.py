"""What a measured step says of the budget, and when another plan is made."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from torch import nn

from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.memory.watch import MeasuredStep, StepWatch
from remat_cli.pytorch.plan.budget_keeper import BudgetKeeper
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.source import ScheduleSource

BUDGET, PEAK = 1_000_000, 900_000


class Reserving(ScheduleSource):
    """Leaves free whatever is asked for, and notes it."""

    def __init__(self, *, counts_state: bool = True, gives: bool = True) -> None:
        self.reserved: list[tuple[int, int]] = []
        self._counts_state, self._gives = counts_state, gives

    @property
    def counts_state(self) -> bool:
        return self._counts_state

    def planned(self, _: Piece) -> tuple[Piece, GraphRecord]:
        raise AssertionError("nothing is planned here")

    def reserve(self, missing_bytes: int, gradient_bytes: int, modules: Sequence[nn.Module]) -> bool:
        del modules
        self.reserved.append((missing_bytes, gradient_bytes))
        return self._gives


def another(keeper: BudgetKeeper, measured: MeasuredStep) -> bool:
    return keeper.needs_another(measured, PEAK, BUDGET, [])


def test_a_step_within_the_budget_needs_no_other_plan(caplog: pytest.LogCaptureFixture) -> None:
    keeper = BudgetKeeper(source := Reserving(), StepWatch())
    for peak in (PEAK, BUDGET, BUDGET + 10_000):  # single numbers and alignment may come on top
        assert not keeper.is_above(MeasuredStep(peak, 0), BUDGET)
        assert not another(keeper, MeasuredStep(peak, peak))
    assert not source.reserved
    assert not caplog.text


def test_memory_beyond_the_plan_is_left_free_a_few_times_and_then_told(caplog: pytest.LogCaptureFixture) -> None:
    keeper = BudgetKeeper(source := Reserving(), StepWatch())
    above = MeasuredStep(BUDGET + 100_000, 0, 7)
    assert keeper.is_above(above, BUDGET)
    assert [another(keeper, above) for _ in range(5)] == [True, True, True, False, False]
    assert source.reserved == [(above.passes_bytes - PEAK, 7)] * 3
    assert caplog.text.count("peaks at 1.100 MB, above the budget of 1.000 MB: 200.0 kB more than the plan has") == 1


def test_a_source_that_can_leave_nothing_free_is_not_asked_for_another_plan(caplog: pytest.LogCaptureFixture) -> None:
    assert not another(BudgetKeeper(Reserving(gives=False), StepWatch()), MeasuredStep(BUDGET + 100_000, 0))
    assert "above the budget" in caplog.text


def test_the_optimizers_own_peak_is_told_and_changes_no_plan(caplog: pytest.LogCaptureFixture) -> None:
    assert not another(BudgetKeeper(source := Reserving(), StepWatch()), MeasuredStep(PEAK, BUDGET + 100_000))
    assert "in the optimizer's step, which no plan changes" in caplog.text
    assert not source.reserved


def test_a_plan_above_the_budget_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    keeper = BudgetKeeper(Reserving(), StepWatch())
    for _ in range(2):
        keeper.tell_of_least(BUDGET + 50_000, BUDGET)
    told = "No plan fits the budget of 1.000 MB here: the one of the least peak runs, which is to peak at 1.050 MB, "
    assert caplog.text.count(f"{told}50.00 kB above it") == 1


@pytest.mark.parametrize(
    ("calls", "state", "words"),
    [
        (1, 0, "of what the model does not see"),
        (2, 0, "as 2 calls came before a backward pass, and this plan is for 1: planned(..., calls=2)"),
        (1, 200_000, "for the optimizer's state, 200.0 kB, which planned(..., optimizer=...) counts"),
        (1, 100_000, "for the optimizer's state, 100.0 kB, which planned(..., optimizer=...) counts, and the rest of"),
    ],
)
def test_the_likely_cause_is_named(calls: int, state: int, words: str, caplog: pytest.LogCaptureFixture) -> None:
    watch = StepWatch()
    watch.calls, watch.state_bytes = calls, state
    another(BudgetKeeper(Reserving(counts_state=not state, gives=False), watch), MeasuredStep(BUDGET + 100_000, 0))
    assert words in caplog.text
    assert ("and the rest" in caplog.text) == (state == 100_000)
