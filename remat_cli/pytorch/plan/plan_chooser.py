"""The choice of plans for a step within the budget, by the memory of compiled kernels if they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from remat_cli.core.simulate import Trace
from remat_cli.errors import DoesNotFit, InvalidSchedule, RematError
from remat_cli.pytorch.plan.block_step import BlockStep, ChosenPlans, CurvePoint
from remat_cli.pytorch.plan.budget_keeper import BudgetKeeper
from remat_cli.pytorch.plan.given_blocks import GivenBlocks
from remat_cli.pytorch.plan.planned_step import PlannedStep
from remat_cli.pytorch.plan.refusals import larger_share, with_trial
from remat_cli.pytorch.plan.region_kinds import RegionKind
from remat_cli.pytorch.plan.region_request import RegionRequest
from remat_cli.pytorch.plan.waiting import COMPILING
from remat_cli.units import counted, format_bytes, format_time


class PlanChooser:
    """Chooses a plan for each region of a step.

    Attributes:
        kernels: the compiled kernels, in words; empty if eager's kernels run.
    """

    def __init__(self, request: RegionRequest, keeper: BudgetKeeper) -> None:
        self._request, self._keeper = request, keeper
        self._compiled = 0  # number of compiled plans of regions
        self.kernels = ""

    def choose(self, plan: PlannedStep, *, is_first: bool, budget: int | None = None) -> None:
        """Choose a plan for each region.

        If possible, memory that earlier steps used beyond their plan is left free.

        Args:
            plan: the step, with the plans of its regions; takes the choice.
            is_first: whether no other step has been planned.
            budget: budget in bytes; None for that of the request.

        Raises:
            RematError: no choice fits the budget with the user's reserve.
        """
        if self._request.given is not None:
            self._choose_given(plan, self._request.given)
            return
        reserved = self._request.source.reserve_bytes
        (free,) = self._request.ranks.most(reserved + self._request.source.own.missed_bytes)
        budget = self.budget_bytes(plan, reserved) if budget is None else budget
        if plan.is_common:
            budget = -self._request.ranks.most(-budget)[0]  # the smallest of all ranks

        def choose(step: BlockStep) -> ChosenPlans | None:
            choice = step.within(budget, free)
            if choice is None and free > reserved and (plan.chosen or step.within(budget, reserved) is not None):
                return step.tightest(free)
            if choice is None and not is_first and not self._request.source.strict:
                return step.tightest(free)
            return choice

        choice, refusal = self._compiled_choice(plan, choose, free)
        step = plan.step
        if refusal is None and choice is None:
            least, other_bytes = step.least(free), step.always + free
            share = larger_share(least, other_bytes, step.judged(plan.plain, free).peak_bytes - other_bytes)
            refusal = DoesNotFit(
                f"no plans of the regions fit a budget of {format_bytes(budget)} together: the least peak of the step "
                f"that was found is {format_bytes(least)}",
                hint=f'give a larger budget ({share}budget="min" takes the smallest that is found), or more regions',
            )
        self._request.ranks.all_or_none(refusal)
        assert choice is not None
        trace = step.replay(choice, free)
        is_above = trace.peak_bytes > budget
        may_be_above = free > reserved or (not is_first and not self._request.source.strict)
        if is_above and (not may_be_above or step.within(budget, free) is not None):
            refusal = InvalidSchedule(
                f"the plans that were chosen peak at {format_bytes(trace.peak_bytes)}, above the budget of "
                f"{format_bytes(budget)}",
                hint="please report it, with the model",
            )
        self._request.ranks.all_or_none(refusal)
        if is_above and free > reserved:
            self._keeper.warn_of_tightest(trace.peak_bytes, budget, free - reserved)
        elif is_above:
            self._keeper.tell_of_least(trace.peak_bytes, budget)
        self._use(plan, choice, trace, budget, free)

    def fits(self, plan: PlannedStep, points: Sequence[CurvePoint]) -> bool:
        """Return whether a step fits the budget by these plans of its regions; nothing fits the smallest for sure."""
        source = self._request.source
        if source.is_smallest:
            return False
        peak = plan.step.judged(points, source.free_bytes).peak_bytes
        return peak <= self.budget_bytes(plan, source.reserve_bytes)

    def explained(self, refusal: DoesNotFit, plan: PlannedStep, curves: Sequence[Sequence[CurvePoint]]) -> DoesNotFit:
        """Return a refusal with the effect of regions in parts.

        Args:
            refusal: the refusal.
            plan: the step.
            curves: plans of each region, whole and in parts.
        """
        source = self._request.source
        peak = replace(plan.step, curves=curves).least(source.free_bytes)
        fits = peak <= self.budget_bytes(plan, source.reserve_bytes)
        effect = f"split=True {'fits' if fits else 'would not help'}: in parts, the least peak of the step that was "
        return with_trial(refusal, f"{effect}found is {format_bytes(peak)}", fits=fits)

    def _choose_given(self, plan: PlannedStep, given: GivenBlocks) -> None:
        """Take the plans of a file.

        Raises:
            RematError: they cannot be compiled.
        """
        free = self._request.source.reserve_bytes
        choice, refusal = self._compiled_choice(plan, given.choice, free)
        self._request.ranks.all_or_none(refusal)
        assert choice is not None
        trace = plan.step.replay(choice, free)
        given.warn_if_above(trace.peak_bytes)
        self._use(plan, choice, trace, given.file.budget_bytes, free)

    def _use(self, plan: PlannedStep, choice: ChosenPlans, trace: Trace, budget: int, free: int) -> None:
        """Note a choice as the step's.

        Args:
            plan: the step.
            choice: the choice.
            trace: the judge's replay.
            budget: budget in bytes.
            free: bytes that are left free.
        """
        step, (places, least, away, saved_away) = plan.step, choice
        plain = sum(point.time for point in plan.plain)
        plan.peak, plan.budget = trace.peak_bytes, budget
        plan.other_bytes = self._request.state_bytes() + free
        plan.overhead = trace.time / plain - 1 if plain else 0.0
        plan.least_overhead = max(0.0, least / plain - 1) if plain else 0.0
        chosen = list(zip(plan.kinds, places, strict=True))
        plan.chosen = dict(zip(step.paths, chosen, strict=True))
        plan.away = frozenset(step.paths[place] for place in away)
        plan.saved_away = frozenset(step.paths[place] for place in saved_away)

    def _compiled_choice(
        self, plan: PlannedStep, choose: Callable[[BlockStep], ChosenPlans | None], free: int
    ) -> tuple[ChosenPlans | None, RematError | None]:
        """Choose a compiled plan for each region.

        Chosen plans are compiled, and the choice is repeated with their compiled peaks.

        Args:
            plan: the plan with the regions' plans.
            choose: function that chooses; without a choice, the plans of the least peak are compiled.
            free: bytes to leave free.

        Returns:
            The choice, and the error if it cannot be compiled here.
        """
        refusal: RematError | None = None
        while True:
            choice = choose(plan.step)
            if plan.is_common:  # as the first rank has chosen
                choice = self._request.ranks.all(choice)[0]
            new: set[tuple[RegionKind, int]] = set()
            if self._request.source.fused:
                places = (plan.step.smallest(free) if choice is None else choice).places
                new = {(kind, place) for kind, place in zip(plan.kinds, places, strict=True) if not kind.has(place)}
                if choice is None and not new:  # kernels of another plan may take less than the plan tells
                    new = {(kind, at) for kind in plan.kinds for at in range(len(kind.points)) if not kind.has(at)}
            try:
                for kind, plan_index in new if refusal is None else ():
                    self._compile(kind, plan_index)
            except RematError as error:
                refusal = error.with_traceback(None)
            if not self._request.ranks.most(bool(new) and refusal is None)[0]:
                return choice, refusal
            plan.step = replace(plan.step, curves=[kind.points for kind in plan.kinds])

    def _compile(self, kind: RegionKind, plan_index: int) -> None:
        """Compile one of the plans of a region."""
        with self._request.source.waiting.phase(COMPILING):
            self._compiled += kind.compile(plan_index)
        spent = self._request.source.waiting.spent_ns[COMPILING]
        times = f"{counted(self._compiled, 'plan')} compiled"
        self.kernels = f"with fused kernels ({times} in {format_time(spent, 'ns')})"

    def budget_bytes(self, plan: PlannedStep, free: int) -> int:
        """Return the budget of a step.

        Args:
            plan: the step.
            free: bytes to leave free.
        """
        asked, step = self._request.source.request.budget, plan.step
        assert asked is not None
        if asked.device_bytes is not None:
            return asked.device_bytes
        if asked.share is None:
            if self._request.source.fused:
                _, refusal = self._compiled_choice(plan, lambda step: step.smallest(free), free)
                self._request.ranks.all_or_none(refusal)
            return plan.step.least(free)
        plain = step.judged(plan.plain, free).peak_bytes
        share = asked.share * (plain - step.always) + step.always if asked.of_activations else asked.share * plain
        self._request.source.own.granted = max(self._request.source.own.granted, int(share))
        return self._request.source.own.granted
