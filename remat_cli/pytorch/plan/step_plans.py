"""Plans of a model's steps by regions: new ones for new sizes, and other choices after measured steps."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch

from remat_cli.errors import DoesNotFit, RematError
from remat_cli.pytorch.memory.live import bytes_in
from remat_cli.pytorch.memory.watch import MeasuredStep
from remat_cli.pytorch.plan.block_step import BlockStep, CurvePoint
from remat_cli.pytorch.plan.budget_keeper import BudgetKeeper
from remat_cli.pytorch.plan.carrying import wants_new_plan
from remat_cli.pytorch.plan.described import Dimension, Inputs
from remat_cli.pytorch.plan.plan_chooser import PlanChooser
from remat_cli.pytorch.plan.planned_step import PlannedStep, agreed
from remat_cli.pytorch.plan.record import notify
from remat_cli.pytorch.plan.region_kinds import Captures, RegionKind
from remat_cli.pytorch.plan.region_planner import RegionPlanner
from remat_cli.pytorch.plan.region_record import RegionsRecord
from remat_cli.pytorch.plan.region_request import RegionRequest
from remat_cli.pytorch.plan.region_runner import RegionHooks
from remat_cli.pytorch.plan.rehearsing import Rehearsing
from remat_cli.pytorch.plan.updating_choice import choose_with_updates
from remat_cli.pytorch.plan.updating_source import UpdatingSource
from remat_cli.pytorch.unstable import pytree


class StepPlans:
    """The plans of a model's steps.

    Attributes:
        rehearsing: rehearses steps before they are planned.
    """

    def __init__(self, request: RegionRequest, record: RegionsRecord, keeper: BudgetKeeper, hooks: RegionHooks) -> None:
        """Begin with no plan.

        Args:
            request: what the user asked for.
            record: takes the plan of each call, and what was measured.
            keeper: compares measured steps with the budget.
            hooks: called around the passes of regions.
        """
        self.rehearsing = Rehearsing(request, record.left)
        self._request, self._record, self._keeper = request, record, keeper
        self._planner, self._chooser = RegionPlanner(request, hooks), PlanChooser(request, keeper)
        record.without_symbols = self._planner.without_symbols
        takes_sizes = not request.source.splits and request.given is None
        self._captures = Captures(takes_sizes=takes_sizes, fused=request.is_decomposed)
        self._dimensions: frozenset[Dimension] = frozenset()  # dimensions of inputs with different sizes so far
        self._by_inputs: dict[Inputs, PlannedStep] = {}
        self._choices: list[PlannedStep] = []  # as many on all ranks
        self._wants_another = False

    def plan_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PlannedStep:
        """Return the plan for the model's arguments, new or earlier.

        Raises:
            RematError: see `planned`.
        """
        inputs = Inputs.of(args, kwargs, self._request.device)
        if inputs not in self._by_inputs and (larger := self._larger(inputs)) is not None:
            self._by_inputs[inputs] = larger
        is_new, is_another = self._request.ranks.most(inputs not in self._by_inputs, self._wants_another)
        if is_another:
            self._choose_again()
        if is_new:
            plan = self._planned(args, kwargs, inputs)
            self._choose(plan)
            self._record.take(plan)
            notify(logging.INFO, f"planned {self._record.plan}")
            self._by_inputs[inputs] = plan
            self._choices.append(plan)
            self._record.plans = len(self._choices)
        self._record.take(self._by_inputs[inputs])
        return self._by_inputs[inputs]

    def choose_again(self) -> None:
        """Choose again before the next step, as updates run elsewhere."""
        self._wants_another = True

    def hold(self, measured: MeasuredStep, plan: PlannedStep) -> None:
        """Compare a measured step with the budget.

        If it is above, choose again with the missing bytes, or warn.

        Args:
            measured: the step.
            plan: the plan that it ran by.
        """
        record = self._record
        record.measured_peak_bytes.append(measured.peak_bytes)
        record.beyond_bytes = max(record.beyond_bytes, measured.peak_bytes - plan.peak)
        old = measured.gradient_bytes - plan.standing
        if old > plan.step.old_gradients and self._keeper.is_above(measured, plan.budget):
            for other in self._choices:
                other.step = replace(other.step, old_gradients=max(other.step.old_gradients, old))
                if other.whole_step is not None:
                    other.whole_step = replace(other.whole_step, old_gradients=other.step.old_gradients)
            self._wants_another = True
            self._keeper.note_old_gradients(measured, plan.budget, old)
        elif self._keeper.needs_another(
            replace(measured, gradient_bytes=0), plan.peak, plan.budget, [self._request.module]
        ):
            self._wants_another = True

    def _choose(self, plan: PlannedStep) -> None:
        asked = self._request.asked
        try:
            if isinstance(asked, UpdatingSource):
                choose_with_updates(
                    self._chooser, plan, asked, bytes_in(self._request.trained), is_first=not self._choices
                )
            else:
                self._chooser.choose(plan, is_first=not self._choices)
        except DoesNotFit as refusal:
            raise self._explained(plan, refusal) from None
        self._record.kernels = self._chooser.kernels
        self._record.waited_ns.update(self._request.source.waiting.spent_ns)

    def _explained(self, plan: PlannedStep, refusal: DoesNotFit) -> DoesNotFit:
        """Return a refusal with the effect of regions in parts, tried here."""
        request = self._request
        if request.source.splits or request.source.fused or any(kind.sizes.symbols for kind in plan.kinds):
            return refusal
        curves = self._planner.curves_in_parts(plan.kinds, is_trial=True)
        if all(curves[kind] == kind.points for kind in plan.kinds):
            return refusal
        return self._chooser.explained(refusal, plan, [curves[kind] for kind in plan.kinds])

    def _choose_again(self) -> None:
        self._wants_another, self._record.beyond_bytes = False, 0
        chosen = [plan.chosen for plan in self._choices]
        for plan in self._choices:
            self._choose(plan)
        if chosen != [plan.chosen for plan in self._choices]:
            self._keeper.tell_again()

    def _larger(self, inputs: Inputs) -> PlannedStep | None:
        """Return a larger inputs' plan that can run these inputs.

        None if these inputs need a plan of their own.
        """
        larger = [plan for plan in self._choices if inputs.is_within(plan.inputs, plan.dimensions)]
        plan = min(larger, key=lambda plan: plan.inputs.numel, default=None)
        if plan is not None and wants_new_plan(plan.overhead, inputs.numel, plan.inputs.numel):
            return None
        return plan

    def _planned(self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Inputs) -> PlannedStep:
        """Rehearse a step, and plan each kind of region at several budgets.

        Regions that cannot be captured are left out.

        Raises:
            RematError: one rank fails; all ranks raise its error.
        """
        plan, refusal = None, None
        try:
            plan = self._planned_here(args, kwargs, inputs)
        except RematError as error:
            refusal = error
        self._request.ranks.all_or_none(refusal)
        assert plan is not None
        return agreed(plan, self._request.ranks)

    def _planned_here(self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Inputs) -> PlannedStep:
        request = self._request
        rehearsed = self.rehearsing.run(args, kwargs, self._captures)
        rehearsal = rehearsed.rehearsal
        names = [call.name for call in rehearsal.calls]
        if request.given is not None:
            request.given.check_calls(names)
        kinds = self._planner.kinds(rehearsed)
        given = (value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor))
        curves = [kind.points for kind in kinds]
        step = BlockStep(
            rehearsed.always,
            rehearsal.moments,
            names,
            curves,
            calls=request.asked.calls,
            kept_outside=rehearsal.kept + bytes_in(given),
            gradients=0 if request.asked.graph_options.accumulate else bytes_in(request.trained),
        )
        if request.asked.request.offload and kinds:
            assert self._planner.link is not None, "every device profile has one"
            hosted = [sum(inputs_of.values()) for inputs_of in rehearsal.hosted]
            step = replace(step, inputs=hosted, link=self._planner.link)
        if request.given is not None:
            request.given.check_copies(step)
        for former in self._choices:
            self._dimensions |= inputs.differing(former.inputs) or frozenset()
        dimensions = self._dimensions if self._captures.hold_elsewhere else frozenset()
        untrained = frozenset(rehearsal.untrained)
        places = [tuple(inputs_of) for inputs_of in rehearsal.hosted]
        standing = request.source.standing([request.module])
        updates = None if request.ranks.groups else rehearsal.updates
        plan = PlannedStep(
            inputs, dimensions, step, step.plain, kinds, untrained, standing, inputs_of=places, updates=updates
        )
        if request.given is None and not self._chooser.fits(plan, [_keeping_least(kind) for kind in kinds]):
            for kind in dict.fromkeys(kinds):
                if kind.graphs is not None:
                    kind.take([*kind.points, *kind.graphs.lower()])
        if request.source.splits and not self._chooser.fits(plan, plan.plain):
            for kind, points in self._planner.curves_in_parts(kinds).items():
                kind.take(points)
        plan.step = replace(step, curves=[kind.points for kind in kinds])
        return plan


def _keeping_least(kind: RegionKind) -> CurvePoint:
    return min(kind.points, key=lambda point: point.kept)
