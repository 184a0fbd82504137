"""Measured steps held against the budget: what a plan did not know of is left free in the next one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from torch import nn

from remat_cli.errors import DoesNotFit, InvalidSchedule, RematError
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.memory.watch import MeasuredStep, StepWatch
from remat_cli.pytorch.plan.choice import ScheduleSource
from remat_cli.pytorch.plan.record import PlannedGraph, told
from remat_cli.units import format_bytes

_log = logging.getLogger("remat")

Made = TypeVar("Made")

# A model is planned again at most so often for memory that measured steps took beyond the plan.
_MOST_REPLANNED = 3
# Tolerance of a measured step above the budget: alignment, and single numbers such as counters of steps.
_SLACK_BYTES = 16_384


class Holding:
    """Holds measured steps against the budget.

    Attributes:
        source: leaves memory free in what is planned from then on.
        watch: measures the steps.
        strict: a step for which no plan fits is refused, though others have run.
        has_begun: a step has run.
    """

    def __init__(self, source: ScheduleSource, watch: StepWatch, *, strict: bool = False) -> None:
        self.source = source
        self.watch = watch
        self.strict = strict
        self.has_begun = False
        self._replanned = 0
        self._warned = False
        self._tells_of_least = False
        self._above = ""  # what a measured step took, where another plan is to be made for that

    def planned(
        self,
        joint: Joint,
        possible: frozenset[int],
        make: Callable[[ScheduleSource, Joint], tuple[Made, PlannedGraph]],
        *,
        again: bool = False,
    ) -> tuple[Made, PlannedGraph]:
        """Make a plan; where none fits and a step has run already, make the one of the least peak, and warn.

        Args:
            joint: what is planned.
            possible: positions of forward outputs that the caller may let go of before the backward pass.
            make: makes it, by plans of a source.
            again: another plan of the same step has run.

        Raises:
            DoesNotFit: no plan fits, and none has run yet, or `strict` is set.
        """
        try:
            made = make(self.source, joint)
        except (DoesNotFit, InvalidSchedule) as error:  # invalid: a file's, where an output is to be let go of
            # Its traceback would keep all frames of this call, and what the model returns, until the next collection.
            refusal: RematError = error.with_traceback(None)
            refusal.__context__ = None
        else:
            self.tell_again()
            return made
        if possible > joint.released:
            with suppress(DoesNotFit, InvalidSchedule):
                made = make(self.source, joint.releasing(possible))
                _log.info("the plan fits as long as outputs without a gradient are let go of before the backward pass")
                return made
        if self.source.has_reserved and not again:
            self.source.release()
            self.warn(f"there is no plan that leaves that much free: {refusal.message}")
            return self.planned(joint, possible, make)
        least = self.source.least()
        if least is None or self.strict or not self.has_begun:
            raise refusal
        runs, planned = make(least, joint)
        budget = self.source.budget_bytes(planned.graph)
        if budget is None:
            raise refusal
        self.tell_of_least(planned.predicted_peak_bytes, budget)
        return runs, replace(planned, budget_bytes=budget)

    def tell_of_least(self, predicted: int, budget: int) -> None:
        """Warn, once, that no plan fits, though others have run, and the one of the least peak runs.

        Args:
            predicted: its peak, in bytes.
            budget: in bytes.
        """
        above, self._above = self._above, ""
        self._replanned = _MOST_REPLANNED
        if self._tells_of_least:
            return
        self._tells_of_least = True
        told(
            logging.WARNING,
            f"{above and f'{above}. '}No plan fits the budget of {format_bytes(budget)} here: the one of the least "
            f"peak runs, which is to peak at {format_bytes(predicted)}, {format_bytes(predicted - budget)} above it "
            "(planned(..., strict=True) refuses such a step)",
        )

    def tell_again(self) -> None:
        """Tell that another plan has been made for what a measured step took."""
        above, self._above = self._above, ""
        if above:
            told(logging.WARNING, f"{above}; planned again with that left free")

    @staticmethod
    def is_above(measured: MeasuredStep, budget: int) -> bool:
        """Tell whether a measured step is above the budget before its optimizer's step."""
        return measured.passes_bytes > budget + _SLACK_BYTES

    def note_old_gradients(self, measured: MeasuredStep, budget: int, old: int) -> None:
        """Note that another plan is to be made, as gradients of the step before are there in the forward pass.

        Args:
            measured: a step.
            budget: in bytes.
            old: these, in bytes.
        """
        self._above = (
            f"the measured step peaks at {format_bytes(measured.peak_bytes)}, above the budget of "
            f"{format_bytes(budget)}: {format_bytes(old)} of gradients of the step before are there in the forward pass"
        )
        self.watch.again()

    def needs_another(self, measured: MeasuredStep, predicted: int, budget: int, modules: Sequence[nn.Module]) -> bool:
        """Tell whether another plan is to be made, with more left free; warn of a step above the budget.

        Args:
            measured: a step.
            predicted: the peak of the plan, in bytes.
            budget: in bytes.
            modules: that are called.
        """
        most = budget + _SLACK_BYTES
        missing = measured.passes_bytes - predicted
        above = f"the measured step peaks at {format_bytes(measured.peak_bytes)}, above the budget of "
        above += format_bytes(budget)
        if measured.passes_bytes > most and missing > 0:
            more = f"{format_bytes(missing)} more than the plan has, {self._what(missing)}"
            if self._replanned < _MOST_REPLANNED and self.source.reserve(missing, measured.gradient_bytes, modules):
                self._above = f"{above}: {more}"
                self._replanned += 1
                self.watch.again()
                return True
            self.warn(f"{above}: {more}")
        elif measured.optimizer_bytes > most:
            self.warn(f"{above}, in the optimizer's step, which no plan changes: foreach=False may take less")
        return False

    def _what(self, missing: int) -> str:
        """Return what may have taken memory that the plan does not have."""
        unseen = "of what the model does not see (a loss outside, gradients that are kept, several forward passes)"
        if (calls := self.watch.calls) > 1:
            unseen = (
                f"as {calls} calls came before a backward pass, and a plan is for one: plan a function that makes all "
                "of them and returns the loss, planned(loss_of_all, budget=...)"
            )
        state = 0 if self.source.counts_state else self.watch.state_bytes
        if not state:
            return unseen
        named = f"the optimizer's state, {format_bytes(state)}, which planned(..., optimizer=...) counts"
        return f"for {named}" if missing - state <= _SLACK_BYTES else f"for {named}, and the rest {unseen}"

    def warn_of_tightest(self, predicted: int, budget: int, missed: int) -> None:
        """Warn that no plan leaves free what steps took beyond their plans; the one of the least peak runs.

        Args:
            predicted: its peak, with that, in bytes.
            budget: in bytes.
            missed: what steps took, in bytes.
        """
        self._replanned = _MOST_REPLANNED
        self.warn(
            f"no plan that was found leaves {format_bytes(missed)} free, which steps took beyond their plans: the one "
            f"of the least peak runs. Its step is to peak at {format_bytes(predicted)}, above the budget of "
            f"{format_bytes(budget)}"
        )

    def warn(self, text: str) -> None:
        """Warn of a step above the budget, once."""
        if not self._warned:
            told(logging.WARNING, text)
        self._warned = True
