"""The choice of plans of blocks together with the optimizer's updates, and the state on the host between them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from remat_cli.errors import DoesNotFit
from remat_cli.pytorch.plan.block_step import BlockStep
from remat_cli.pytorch.plan.plan_chooser import PlanChooser
from remat_cli.pytorch.plan.planned_step import PlannedStep
from remat_cli.pytorch.plan.state_levels import StateLevel, candidates, moving_time, state_levels
from remat_cli.pytorch.plan.updating_source import UpdatingSource, too_small
from remat_cli.pytorch.update.updates import Updates


def choose_with_updates(
    chooser: PlanChooser, plan: PlannedStep, asked: UpdatingSource, gradient_bytes: int, *, is_first: bool
) -> None:
    """Choose plans of blocks, and the least state on the host that makes the fastest step found.

    Args:
        chooser: chooses plans of blocks.
        plan: the step; takes the choice.
        asked: source of plans as requested.
        gradient_bytes: bytes of all gradients.
        is_first: whether no other step has been planned.

    Raises:
        RematError: no choice fits.
    """
    choice = _Choice(chooser, plan, asked, gradient_bytes)
    at_step = replace(choice, in_backward=False)
    has_backward = plan.updates is not None and asked.updates is not None and asked.updates.in_backward
    if has_backward and (asked.insists_on_backward or asked.is_smallest or not at_step.fits_as_it_is()):
        replace(choice, in_backward=True).choose(is_first=is_first)
        return
    try:
        at_step.choose(is_first=is_first)
    except DoesNotFit:
        if plan.updates is None or not asked.may_update_in_backward():
            raise
        replace(choice, in_backward=True).choose(is_first=is_first)


@dataclass
class _Choice:
    """A choice for a step with updates in the backward pass, or at the optimizer's step.

    Attributes:
        chooser: chooses plans of blocks.
        plan: the step.
        asked: source of plans as requested.
        gradient_bytes: bytes of all gradients.
        in_backward: updates run in the backward pass.
    """

    chooser: PlanChooser
    plan: PlannedStep
    asked: UpdatingSource
    gradient_bytes: int
    in_backward: bool = False
    free: int = field(init=False)
    updates: Updates = field(init=False)
    whole: BlockStep = field(init=False)
    levels: list[StateLevel] = field(init=False)
    budget: int = 0

    def __post_init__(self) -> None:
        assert self.asked.updates is not None
        plan, self.updates, self.free = self.plan, self.asked.updates, self.asked.free_bytes
        plan.whole_step = plan.whole_step or plan.step
        self.whole = plan.step = replace(plan.whole_step, curves=plan.step.curves)
        self.levels = state_levels(self.updates, moves=self.asked.moves_state)
        if not self.budget and not self.asked.is_smallest:
            self.budget = self.chooser.budget_bytes(plan, self.asked.reserve_bytes)

    @property
    def at_end(self) -> int:
        """Memory at the end of the backward pass with all gradients, and all state on the device."""
        return self.whole.always + self.gradient_bytes + self.free

    def update_peak(self, level: StateLevel) -> int:
        """Return the peak of updates at the optimizer's step; 0 if they run before."""
        return 0 if self.in_backward else level.peak(self.at_end)

    def plain_peak(self, level: StateLevel) -> int:
        """Return the peak of both passes without recomputation."""
        return self.step_at(level).judged(self.plan.plain, self.free).peak_bytes

    def step_at(self, level: StateLevel) -> BlockStep:
        """Return facts about the step with some state on the host."""
        moments = self.whole.moments
        if self.in_backward:
            assert self.plan.updates is not None
            moments = self.plan.updates.levels_with(lambda each: self.updates.needed_bytes(each, level.hosted))
        return replace(self.whole, always=self.whole.always - level.bytes, moments=moments)

    def fits_as_it_is(self) -> bool:
        """Return whether the step fits without recomputation, and without more state on the host."""
        level = self.levels[0]
        return max(self.update_peak(level), self.plain_peak(level)) <= self.budget

    def choose(self, *, is_first: bool) -> None:
        """Choose plans, and let the state go where they have it.

        Raises:
            RematError: no choice fits.
        """
        plan = self.plan
        if self.asked.is_smallest:
            plan.step = self.step_at(self.levels[-1])
            self.budget = max(self.chooser.budget_bytes(plan, self.free), min(map(self.update_peak, self.levels)))
        link = self.whole.link or self.asked.link_of_state(plan.plain[0].planned.graph if plan.plain else None)
        plain_time = sum(point.time for point in plan.plain)
        times: dict[StateLevel, float] = {}
        refusal: DoesNotFit | None = None
        last = None
        for level in candidates(self.levels, self.budget, self.update_peak, self.plain_peak):
            plan.step, last = self.step_at(level), level
            try:
                self.chooser.choose(plan, is_first=True, budget=self.budget)
            except DoesNotFit as error:
                refusal = error.with_traceback(None)
                continue
            times[level] = plan.overhead * plain_time + moving_time(level, link)
            if plan.overhead <= 0:
                break
        if not times and (is_first or refusal is None):
            raise refusal or too_small(
                min(map(self.update_peak, self.levels)), self.budget, moves=self.asked.moves_state
            )
        level = min(times, key=times.__getitem__, default=self.levels[-1])
        if level is not last or not times:
            plan.step = self.step_at(level)
            self.chooser.choose(plan, is_first=is_first, budget=self.budget)
        plan.peak = max(plan.peak, self.update_peak(level))
        plan.overhead += moving_time(level, link) / max(1, plain_time)
        plan.other_bytes -= level.bytes
        plan.update = level.in_words("in the backward pass" if self.in_backward else "at optimizer.step()")
        room = max(0, self.budget - self.at_end + level.bytes)
        self.updates.settle(level.hosted, room, by_hooks=self.in_backward)
