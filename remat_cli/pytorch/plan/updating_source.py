"""Plans that count the optimizer's update, and may let state wait on the host between updates."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import nn

from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.core.solve import baseline_of, share_over
from remat_cli.errors import DoesNotFit, UsageError
from remat_cli.prepare import Prepared, link_of
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.memory.measure import MEASURED_DEVICES
from remat_cli.pytorch.plan.budget_source import BudgetSource, OwnState
from remat_cli.pytorch.plan.captured_updates import CapturedParameters, CapturedUpdates
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.state_levels import StateLevel, candidates, moving_time, state_levels
from remat_cli.pytorch.unstable.modules import enclosing_parallel
from remat_cli.pytorch.update.first_step import FirstStep
from remat_cli.pytorch.update.partial_steps import check_owned, check_partial_steps
from remat_cli.pytorch.update.updates import Updates, check_one_owner
from remat_cli.units import format_bytes

# Where the user wants updates.
IN_STEP, IN_BACKWARD = "step", "backward"


_log = logging.getLogger("remat")


@dataclass
class UpdatingSource(BudgetSource):
    """Plans within a budget that holds in the optimizer's step, too.

    Attributes:
        updates: the updates by the optimizer.
        moves_state: state may wait on the host.
        update: where the user wants updates; "True" where that is seen.
        first_step: sees whether updates may run in the backward pass; None once that is known.
        level: state on the host in the plans that are asked for.
        parameters: parameters of captured graphs.
        captured: updates in the graphs that are planned; None where updates run at the optimizer's step.
    """

    updates: Updates | None = None
    moves_state: bool = False
    update: str = IN_STEP
    first_step: FirstStep | None = None
    level: StateLevel = field(default_factory=lambda: StateLevel(frozenset(), 0, 0))
    parameters: CapturedParameters = field(default_factory=CapturedParameters)
    captured: CapturedUpdates | None = None

    def for_copy(self) -> BudgetSource:
        """Return a source for a copy of the model, whose optimizer is another."""
        known = {item.name: getattr(self, item.name) for item in fields(BudgetSource)}
        return BudgetSource(**{**known, "own": OwnState()})

    def for_regions(self) -> BudgetSource:
        """Return a source of plans of single blocks, which have no updates."""
        known = {item.name: getattr(self, item.name) for item in fields(BudgetSource)}
        return BudgetSource(**known)

    def state_bytes(self) -> int:
        """Return the bytes of the optimizer's state that stay on the device."""
        return super().state_bytes() - self.level.bytes

    def at(self, level: StateLevel) -> UpdatingSource:
        """Return a source of plans with this state on the host; measurements are shared."""
        source = replace(self, level=level)
        source.waiting = self.waiting
        return source

    def begins_step(self) -> bool:
        """Watch the first step, unless the user says where updates run; see `ScheduleSource.begins_step`."""
        assert self.updates is not None
        self.updates.check_stepped()
        if self.insists_on_backward and enclosing_parallel() is not None:
            raise UsageError(
                f"update={IN_BACKWARD!r}: DistributedDataParallel reduces gradients after the backward pass of a "
                "parameter, and an update there would not see those of other ranks",
                hint=f"update=True, or {IN_STEP!r}",
            )
        first = self.first_step
        if first is None or self.updates.in_backward or self.update == IN_STEP:
            return False
        if not first.is_over:
            if enclosing_parallel() is not None:
                first.note("DistributedDataParallel reduces gradients")
            first.begin()
            return False
        self.first_step = None
        first.end()
        if first.obstacles:
            _log.info("updates run at optimizer.step(): %s", "; ".join(first.obstacles))
            return False
        self.updates.in_backward, self.updates.hosted = True, frozenset()
        return True

    def ends_call(self, results: Any) -> None:
        """Watch who adds to gradients in the first step; see `ScheduleSource.ends_call`."""
        if self.first_step is not None and not self.insists_on_backward:
            self.first_step.follow(results)

    @property
    def insists_on_backward(self) -> bool:
        """Whether the user wants updates in the backward pass, needed or not."""
        return self.update == IN_BACKWARD

    def may_update_in_backward(self) -> bool:
        """Let updates run in the backward pass, as no plan fits that has them after it; return whether they may."""
        assert self.updates is not None
        if self.first_step is None or self.update == IN_STEP or enclosing_parallel() is not None:
            return False
        if self.first_step.obstacles:
            return False
        self.first_step.end()
        self.updates.in_backward = True
        return True

    def planned(self, piece: Piece) -> tuple[Piece, GraphRecord]:
        """Return a plan with updates in the backward pass where these may run there, else at the optimizer's step.

        Raises:
            DoesNotFit: no plan fits, with all state on the host that may go there.
        """
        assert self.updates is not None
        self.parameters.note(piece.captured)
        can_update = not self.fused and not self.splits and piece.joint.device in MEASURED_DEVICES
        if can_update and self.updates.in_backward:
            return self._planned_in_backward(piece)
        try:
            return self._planned_at_step(piece)
        except DoesNotFit:
            if not can_update or not self.may_update_in_backward():
                raise
            return self._planned_in_backward(piece)

    def prepared(self, piece: Piece) -> Prepared:
        """Return the graph that is planned, with the updates if they run in the backward pass."""
        prepared = super().prepared(piece)
        if self.captured is None:
            return prepared
        return replace(prepared, graph=self.captured.with_updates(prepared.graph))

    def _planned_in_backward(self, piece: Piece) -> tuple[Piece, GraphRecord]:
        assert self.updates is not None
        request = self.request
        if not self.is_smallest:
            whole = self.prepared(piece).graph
            if not self.insists_on_backward:
                with suppress(DoesNotFit):  # as long as that costs nothing
                    at_step = self._planned_at_step(piece)
                    if at_step[1].overhead == 0 and not self.updates.hosted:
                        return at_step
            self.own.granted = max(self.own.granted, self.request_for(whole).budget_bytes(whole) or 0)
            request = request.at(self.request_for(whole).budget_bytes(whole) or 0)
        captured = self.parameters.updates_of(piece, self.updates)
        level = StateLevel(frozenset(), captured.state_bytes, 0)
        source = replace(self, captured=captured, level=level, request=request)
        source.waiting = self.waiting
        in_parts, planned = BudgetSource.planned(source, piece)
        hosted = captured.parameters_of(planned.schedule.on_host)
        moved = sum(self.updates.costs[parameter].movable_bytes for parameter in hosted)
        self.updates.settle(hosted, 0)
        words = StateLevel(hosted, moved, 0).in_words("in the backward pass")
        updating = replace(in_parts, joint=in_parts.joint.updating(captured.runs))
        return updating, replace(planned, update=words)

    def _planned_at_step(self, piece: Piece) -> tuple[Piece, GraphRecord]:
        """Return the fastest plan found, over a few amounts of state on the host.

        Raises:
            DoesNotFit: no plan fits, with all state on the host that may go there.
        """
        assert self.updates is not None
        levels = state_levels(self.updates, moves=self.moves_state)
        graph = self.at(replace(levels[0], bytes=0)).prepared(piece).graph
        if self.is_smallest:
            smallest = self._smallest(piece, levels, graph)
            source = replace(self, request=self.request.at(smallest))
            source.waiting = self.waiting
            return source._planned_at_step(piece)
        budget = self.request_for(graph).budget_bytes(graph)
        assert budget is not None
        if self.is_share:  # smaller inputs may use as much as larger ones
            self.own.granted = max(self.own.granted, budget)
        link, plain = self.link_of_state(graph), baseline_of(graph).peak_bytes

        def peak(level: StateLevel) -> int:
            return level.peak(at_end(graph))

        best: tuple[int, Piece, GraphRecord, StateLevel] | None = None
        refusal: DoesNotFit | None = None
        for level in candidates(levels, budget, peak, lambda level: plain - level.bytes):
            if best is not None and best[2].overhead == 0 and best[3].bytes <= level.bytes:
                break
            try:
                in_parts, planned = self._planned_at(piece, level, budget)
            except DoesNotFit as error:
                refusal = error.with_traceback(None)
                continue
            time = round(baseline_of(planned.graph).time * (1 + planned.overhead)) + moving_time(level, link)
            if best is None or time < best[0]:
                best = time, in_parts, planned, level
        if best is None:
            raise refusal or too_small(min(map(peak, levels)), budget, moves=self.moves_state)
        time, in_parts, planned, level = best
        self.updates.settle(level.hosted, budget - at_end(graph) + level.bytes)
        return in_parts, replace(
            planned,
            predicted_peak_bytes=max(planned.predicted_peak_bytes, peak(level)),
            plain_peak_bytes=planned.plain_peak_bytes + level.bytes,
            overhead=share_over(time, baseline_of(planned.graph).time),
            update=level.in_words("at optimizer.step()"),
        )

    def _planned_at(self, piece: Piece, level: StateLevel, budget: int) -> tuple[Piece, GraphRecord]:
        source = self.at(level).within(budget)
        return BudgetSource.planned(source, piece)  # type: ignore[arg-type]

    def _smallest(self, piece: Piece, levels: Sequence[StateLevel], graph: Graph) -> int:
        """Return the smallest budget at which both the passes and the update fit."""
        least = min(level.peak(at_end(graph)) for level in levels)
        _, planned = BudgetSource.planned(self.at(levels[-1]), piece)
        return max(least, planned.predicted_peak_bytes)

    def link_of_state(self, graph: Graph | None) -> Link | None:
        """Return the link that state moves over; None if it does not move."""
        return link_of(graph, self.graph_options) if self.moves_state and graph is not None else None


def too_small(least: int, budget: int, *, moves: bool) -> DoesNotFit:
    """Return the refusal of a budget that the optimizer's step does not fit.

    Args:
        least: bytes that the step takes.
        budget: budget in bytes.
        moves: whether state may wait on the host.
    """
    moved = "" if moves else ", or offload=True, which lets the optimizer's state wait on the host"
    return DoesNotFit(
        f"the budget of {format_bytes(budget)} is below {format_bytes(least)}, which the optimizer's step takes: "
        "parameters, all gradients, state, and the temporaries of one update",
        hint=f"give a larger budget{moved}",
    )


def check_update(update: object, optimizer: object, schedule: object) -> None:
    """Check the argument `update` of `planned`, and that the others go with it.

    Raises:
        UsageError: they do not.
    """
    if not isinstance(update, bool) and update not in (IN_STEP, IN_BACKWARD):
        raise UsageError(f"update is {update!r}", hint=f"give True, False, {IN_STEP!r} or {IN_BACKWARD!r}")
    if not update:
        return
    if schedule is not None:
        raise UsageError("a schedule from a file has no updates of this optimizer", hint="give a budget instead")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            "update needs the optimizer itself, whose step it runs",
            hint="planned(model, budget=..., optimizer=optimizer, update=True)",
        )


def updating_source(source: BudgetSource, model: object, update: bool | str) -> BudgetSource:
    """Return a source of plans that count the optimizer's update, if that is asked for.

    Args:
        source: a source, with an optimizer if that is asked for.
        model: the model, or a function.
        update: see `planned`.

    Raises:
        UsageError: the optimizer cannot update its parameters one at a time, or they are no model's.
    """
    if not update:
        return source
    assert source.optimizer is not None
    if source.calls > 1:
        raise UsageError(
            f"plans for {source.calls} calls before a backward pass leave the optimizer's step alone",
            hint="leave update out, or calls",
        )
    if source.graph_options.accumulate:
        if update == IN_BACKWARD:
            raise UsageError(
                f"update={IN_BACKWARD!r} and accumulate: an update needs the gradients of all passes",
                hint=f"give update={IN_STEP!r}, or leave accumulate out",
            )
        update = IN_STEP
    if isinstance(model, nn.Module):
        check_owned(source.optimizer, list(model.parameters()))
    check_one_owner(source.optimizer, model)
    check_partial_steps(source.optimizer)
    known = {item.name: getattr(source, item.name) for item in fields(BudgetSource)}
    updates = Updates(source.optimizer, model)
    updates.in_backward = update == IN_BACKWARD
    return UpdatingSource(
        **known,
        updates=updates,
        moves_state=source.request.offload,
        update=str(update),
        first_step=FirstStep(updates),
    )


def at_end(graph: Graph) -> int:
    """Return the memory at the end of the backward pass: with gradients, and the results that the caller holds."""
    made = (name for name in graph.outputs if name in graph.producer)
    return graph.fixed_bytes + sum(graph.tensors[name].bytes for name in made)
