"""Plans for a captured graph of fixed sizes, without a new capture.

A new plan follows if a measured step used memory unknown to the plan, or if the first backward pass shows that the
caller has freed outputs before it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx, nn

from remat_cli.errors import DoesNotFit
from remat_cli.pytorch.capture.joint import rewritten
from remat_cli.pytorch.capture.joint_capture import Captured, primals_of
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.capture.sizes import input_shapes, without_inputs
from remat_cli.pytorch.plan.budget_keeper import BudgetKeeper
from remat_cli.pytorch.plan.fused import fused_plan
from remat_cli.pytorch.plan.record import GraphRecord, PlanRecord, notify
from remat_cli.pytorch.plan.source import ScheduleSource
from remat_cli.pytorch.plan.waiting import DIVIDING
from remat_cli.pytorch.programs.slots import Entry, PassFunctions, Slots, pass_functions
from remat_cli.pytorch.unstable.inductor import as_captured


class FixedStep:
    """Runs a captured graph of fixed sizes.

    Attributes:
        is_stale: whether to plan again before the next run.
    """

    def __init__(
        self, captured: Captured, keeper: BudgetKeeper, record: PlanRecord, modules: Sequence[nn.Module]
    ) -> None:
        """Plan the graph.

        Raises:
            DoesNotFit: no plan fits the budget before the first run.
        """
        self.is_stale = False
        captured = rewritten(captured)
        self._piece = Piece.of(captured, modules)
        self._keeper, self._record = keeper, record
        self._inputs = input_shapes(captured)
        self._slots = Slots(captured, self._piece.joint)
        self._released: frozenset[int] = frozenset()
        self._planned: GraphRecord
        self._number: int
        try:
            self._plan()
        except DoesNotFit as refusal:
            piece = self._piece.releasing(captured.released.possible)
            raise keeper.source.explained(refusal, piece) from None
        self._piece = replace(self._piece, captured=without_inputs(captured))

    def interface(self) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Return the two graphs that stand for all plans."""
        return self._slots.interface(self._run_forward, self._run_backward)

    def _run_forward(self, args: list[Any]) -> tuple[Any, ...]:
        is_released = self._piece.captured.released.known != self._released and not self._keeper.source.is_given
        if self.is_stale or is_released:
            fakes = [node.meta.get("val") for node in primals_of(self._piece.captured.module.graph)]
            with self._keeper.source.waiting.phase(DIVIDING), as_captured(fakes):
                self._plan(again=True)
        with self._record.runs(self._planned):
            return self._slots.forward(self._number, args)

    def _run_backward(self, args: list[Any]) -> Any:
        self._record.runs_back()
        return self._slots.backward(args)

    def _plan(self, *, again: bool = False) -> None:
        if self._released != (released := self._piece.captured.released.known):
            self._keeper.source.regrant()
        self.is_stale, self._released = False, released
        runs, planned = self._keeper.planned(
            self._piece.releasing(self._released), self._piece.captured.released.possible, self._written, again=again
        )
        self._planned = self._record.add(replace(planned, inputs=self._inputs))
        self._number = self._slots.add(Entry(runs))

    def _written(self, source: ScheduleSource, piece: Piece) -> tuple[PassFunctions, GraphRecord]:
        """Return a plan, and the functions that run it in both passes.

        Raises:
            DoesNotFit: there is no plan.
        """
        if source.fused:
            fused = fused_plan(source, piece)
            runs, planned = fused.functions(piece.joint), fused.planned
        else:
            piece, planned = source.planned(piece)
            runs = pass_functions(piece.joint, planned.schedule)
        if planned.schedule.has_transfers and piece.joint.device == "cpu":
            text = "the plan moves tensors to the host, which is the device here: that saves no memory"
            notify(logging.WARNING, text)
        return runs, planned
