"""Measured steps compared with the budget.

The next plan leaves memory free that the last one did not know of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from torch import nn

from remat_cli.errors import DoesNotFit, InvalidSchedule, RematError
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.memory.watch import MeasuredStep, StepWatch
from remat_cli.pytorch.plan.record import GraphRecord, notify
from remat_cli.pytorch.plan.source import ScheduleSource
from remat_cli.units import format_bytes

_log = logging.getLogger("remat")

Result = TypeVar("Result")

# Largest number of new plans for memory of measured steps beyond the plan.
_MOST_REPLANNED = 3
# Tolerance of a measured step above the budget: alignment, and single numbers such as counters of steps.
_SLACK_BYTES = 16_384


class BudgetKeeper:
    """Compares measured steps with the budget.

    Attributes:
        source: source of plans, which can leave memory free.
        watch: measures the steps.
        calls: number of calls before a backward pass, as the user says.
        has_begun: a step has run.
        counts_calls: plans count several calls before a backward pass.
    """

    def __init__(self, source: ScheduleSource, watch: StepWatch, *, calls: int = 1) -> None:
        self.source = source
        self.calls = calls
        self.watch = watch
        self.has_begun = False
        self.counts_calls = False
        self._replanned = 0
        self._warned = False
        self._tells_of_least = False
        self._above = ""  # a measured step's peak in words, if it needs a new plan

    def planned(
        self,
        piece: Piece,
        possible: frozenset[int],
        make: Callable[[ScheduleSource, Piece], tuple[Result, GraphRecord]],
        *,
        again: bool = False,
    ) -> tuple[Result, GraphRecord]:
        """Make a plan that fits; after the first step, at worst the least peak.

        A plan of the least peak comes with a warning.

        Args:
            piece: the piece to plan.
            possible: positions of forward outputs that the caller may free before the backward pass.
            make: makes the plan, from a source.
            again: another plan of the same step has run.

        Raises:
            DoesNotFit: no plan fits, and none has run yet, or the source is strict.
        """
        try:
            result = make(self.source, piece)
        except (DoesNotFit, InvalidSchedule) as error:  # invalid: a file's schedule, if an output may be freed
            # Its traceback would keep all frames of this call, and what the model returns, until the next collection.
            refusal: RematError = error.with_traceback(None)
            refusal.__context__ = None
        else:
            self.tell_again()
            return result
        if possible > piece.joint.released:
            with suppress(DoesNotFit, InvalidSchedule):
                result = make(self.source, piece.releasing(possible))
                _log.info("the plan fits as long as outputs without a gradient are let go of before the backward pass")
                return result
        if self.source.has_reserved and not again:
            self.source.release()
            self.warn(f"there is no plan that leaves that much free: {refusal.message}")
            return self.planned(piece, possible, make)
        least = self.source.least()
        if least is None or self.source.strict or not self.has_begun:
            raise refusal
        runs, planned = make(least, piece)
        budget = self.source.budget_bytes(planned.graph)
        if budget is None:
            raise refusal
        self.tell_of_least(planned.predicted_peak_bytes, budget)
        return runs, replace(planned, budget_bytes=budget)

    def tell_of_least(self, predicted: int, budget: int) -> None:
        """Warn once that no plan fits, and that the least peak runs.

        Args:
            predicted: peak of that plan, in bytes.
            budget: budget in bytes.
        """
        above, self._above = self._above, ""
        self._replanned = _MOST_REPLANNED
        if self._tells_of_least:
            return
        self._tells_of_least = True
        notify(
            logging.WARNING,
            f"{above and f'{above}. '}No plan fits the budget of {format_bytes(budget)} here: the one of the least "
            f"peak runs, which is to peak at {format_bytes(predicted)}, {format_bytes(predicted - budget)} above it "
            "(planned(..., strict=True) refuses such a step)",
        )

    def tell_again(self) -> None:
        """Tell that a new plan leaves a measured step's memory free."""
        above, self._above = self._above, ""
        if above:
            notify(logging.WARNING, f"{above}; planned again with that left free")

    @staticmethod
    def is_above(measured: MeasuredStep, budget: int) -> bool:
        """Return whether a step exceeds the budget before its optimizer's step."""
        return measured.passes_bytes > budget + _SLACK_BYTES

    def note_old_gradients(self, measured: MeasuredStep, budget: int, old: int) -> None:
        """Note the need for a new plan that counts old gradients.

        Gradients of the earlier step are in memory in the forward pass.

        Args:
            measured: a step.
            budget: budget in bytes.
            old: old gradients in bytes.
        """
        self._above = (
            f"the measured step peaks at {format_bytes(measured.peak_bytes)}, above the budget of "
            f"{format_bytes(budget)}: {format_bytes(old)} of gradients of the step before are there in the forward pass"
        )
        self.watch.again()

    def needs_another(self, measured: MeasuredStep, predicted: int, budget: int, modules: Sequence[nn.Module]) -> bool:
        """Return whether a new plan must leave more free; warn above the budget.

        Args:
            measured: a step.
            predicted: the peak of the plan, in bytes.
            budget: budget in bytes.
            modules: the called modules.
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
        """Return the likely cause of memory beyond the plan, in words."""
        unseen = "of what the model does not see (a loss outside, gradients that are kept, several forward passes)"
        if (calls := self.watch.calls) > self.calls and self.counts_calls:
            unseen = f"as {calls} calls came before a backward pass, which plans count from now on"
        elif calls > self.calls:
            unseen = (
                f"as {calls} calls came before a backward pass, and this plan is for {self.calls}: planned(..., "
                f"calls={calls}) counts all of them (without split and offload, and of a whole model without fused); "
                "or plan a function that makes all of them and returns the loss, planned(loss_of_all, budget=...)"
            )
        state = 0 if self.source.counts_state else self.watch.state_bytes
        if not state:
            return unseen
        named = f"the optimizer's state, {format_bytes(state)}, which planned(..., optimizer=...) counts"
        return f"for {named}" if missing - state <= _SLACK_BYTES else f"for {named}, and the rest {unseen}"

    def warn_of_tightest(self, predicted: int, budget: int, missed: int) -> None:
        """Warn that no plan has room for steps' extra memory.

        The plan of the least peak runs.

        Args:
            predicted: peak of that plan with the extra memory, in bytes.
            budget: budget in bytes.
            missed: extra memory of steps, in bytes.
        """
        self._replanned = _MOST_REPLANNED
        self.warn(
            f"no plan that was found leaves {format_bytes(missed)} free, which steps took beyond their plans: the one "
            f"of the least peak runs. Its step is to peak at {format_bytes(predicted)}, above the budget of "
            f"{format_bytes(budget)}"
        )

    def warn(self, text: str) -> None:
        """Warn once of a step above the budget."""
        if not self._warned:
            notify(logging.WARNING, text)
        self._warned = True
