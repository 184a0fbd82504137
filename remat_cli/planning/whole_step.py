"""Plans of whole training steps: a composition over any planner.

The planner sees views of the step: with early updates and, where plans may use the link, with some residents on the
host. Its schedules become schedules of the step: updates go behind the last use of the old value, and the moves of
residents are woven in. Several sets of residents are tried by a quick planner, with all memory for it and with less, as
recomputing may cost more than the link or less; the planner itself is asked with the best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf

from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Graph, Residency
from remat_cli.core.link import Direction, Duplex
from remat_cli.core.problem import (
    Bound,
    Budget,
    Observer,
    PassingObserver,
    Plan,
    Planner,
    PlanResult,
    Problem,
    Scope,
    Status,
)
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import Trace, simulate
from remat_cli.errors import FalseClaim, InvalidSchedule
from remat_cli.planners.auto.planner import Auto
from remat_cli.planners.min_cut.planner import MinCut
from remat_cli.planners.shared.limits import Limits
from remat_cli.planning.asking import in_seconds
from remat_cli.planning.step_views import movable_residents, with_early_updates, with_late_updates, without_residents

# Of the time, what a quick planner may take to scout: the choice matters more than the last point of the plan.
_SCOUTING = 3 / 4
# Of the time left for scouting, what one choice may take; and of the time left then, what the planner may.
_SHARE_OF_SCOUTING = 1 / 4
_SHARE_OF_TIME = 1 / 2
# The counted work of the quick planner, where `auto` is the planner.
_QUICK_WORK = 1.0
# The number of choices, the best scouted, for which the planner is asked.
_PLANNED = 3
# Of the memory beyond the least, what is for the planner; the rest is for residents.
_SHARES = (Fraction(1, 2), Fraction(1, 4))
# Factors between shares, and parts of the residents between counts, of choices near the best.
_REFINEMENTS = ((Fraction(2), 4), (Fraction(4, 3), 16))
# How often a planner is asked again for less memory, where updates that go behind a rerun need more.
_TRIES = 3


@dataclass(frozen=True)
class WholeStep:
    """Plans a step with residents by a planner that knows nothing of them.

    Attributes:
        planner: the planner.
    """

    planner: Planner

    @property
    def time_limit(self) -> float:
        """The planner's time limit.

        Raises:
            AttributeError: it has none.
        """
        limit: float = self.planner.time_limit  # type: ignore[attr-defined]
        return limit

    @property
    def work_limit(self) -> float | None:
        """The planner's limit of work.

        Raises:
            AttributeError: it has none.
        """
        limit: float | None = self.planner.work_limit  # type: ignore[attr-defined]
        return limit

    def in_seconds(self, seconds: float) -> WholeStep:
        """Return the same with a planner that takes no more time than that."""
        return WholeStep(in_seconds(self.planner, seconds))

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: as the planner.
        """
        return _Composition(self.planner, problem, observe).result()


def for_whole_step(planner: Planner, graph: Graph) -> Planner:
    """Return the planner of a step: one that knows its residents, where the step has any."""
    return WholeStep(planner) if graph.residents else planner


@dataclass(frozen=True)
class _Found:
    """A schedule of the step with its replay, and the planner's claim that it comes from."""

    schedule: Schedule
    trace: Trace
    claim: PlanResult | None


@dataclass(frozen=True)
class _Choice:
    """What the planner is asked.

    Attributes:
        count: the number of residents on the host.
        share: of the memory beyond the least, what is for the planner.
        is_delayed: whether updates follow their gradient by the time in which their state is fetched.
    """

    count: int
    share: Fraction = Fraction(1)
    is_delayed: bool = False


class _Composition:
    """The search over sets of residents on the host."""

    def __init__(self, planner: Planner, problem: Problem, observe: Observer) -> None:
        self.problem, self.observe = problem, observe
        self._planner = planner
        self._limits = Limits.of(getattr(planner, "time_limit", inf), observe=observe)
        self._budget = problem.budget.device_bytes
        self._view = with_early_updates(problem.graph)
        self._delayed_view = with_early_updates(problem.graph, problem.link) if problem.offload else self._view
        self._movable = movable_residents(problem.graph) if problem.offload else ()
        self._states = sum(problem.graph.tensors[name].resident is Residency.STATE for name in self._movable)
        self._bound = bound_with_moves(problem, self._movable)
        self._best: _Found | None = None
        self._closest: _Found | None = None
        self._refusal: PlanResult | None = None  # the planner's, with as many residents on the host as may be

    def result(self) -> PlanResult:
        """Return the best plan of all sets."""
        if not self._movable:
            self._try(_Choice(0), self._planner)
            return self._claim()
        limits = self._limits
        times = self._scouted(limits.part(_SCOUTING))
        ranked = sorted(times, key=times.__getitem__) or [_Choice(len(self._movable))]
        for choice in ranked[:_PLANNED]:
            if self._is_best_possible or (times and limits.is_over):
                break
            planner = in_seconds(self._planner, limits.seconds * (_SHARE_OF_TIME if times else 1.0))
            self._try(choice, planner, offload=self._has_idle_link)
        return self._claim()

    @property
    def _is_best_possible(self) -> bool:
        return self._best is not None and self._best.trace.time <= self._bound.time

    @property
    def _has_idle_link(self) -> bool:
        """Whether the link has time for what the planner would move."""
        if self._best is None:
            return True
        trace = self._best.trace
        busy = Counter[Direction]()
        for transfer in trace.transfers:
            busy[transfer.direction] += transfer.end - transfer.start
        return 2 * max(busy.values(), default=0) <= trace.time

    def _scouted(self, limits: Limits) -> dict[_Choice, int]:
        """Return the choices for which a quick planner has a plan, each with its time.

        Of other shares of memory and numbers of residents, those near the best are tried.
        """
        planner = MinCut(work_limit=_QUICK_WORK) if isinstance(self._planner, Auto) else self._planner
        times: dict[_Choice, int] = {}
        asked: set[_Choice] = set()

        def scout(choices: Iterable[_Choice]) -> None:
            for choice in choices:
                if limits.is_over or self._is_best_possible:
                    return
                if choice in asked:
                    continue
                asked.add(choice)
                quick = in_seconds(planner, limits.part(_SHARE_OF_SCOUTING).seconds)
                time = self._try(choice, quick, is_quick=True)
                if time is not None:
                    times[choice] = time

        sets = self._sets()
        scout(sets)
        scout([replace(choice, share=share) for share in _SHARES for choice in sets if choice.count])
        for factor, part in _REFINEMENTS:
            tried = None
            while times and _fastest(times) != tried:
                tried = _fastest(times)
                scout(self._neighbours(tried, factor, max(1, len(self._movable) // part)))
        if times:
            scout([replace(_fastest(times), is_delayed=True)])
        return times

    def _sets(self) -> list[_Choice]:
        """Return sets of residents on the host, with all memory for the planner.

        What others do is among them: no moves, and all state moved.
        """
        last = len(self._movable)
        least = _first(last, lambda count: self._least_bytes(count) <= self._budget)
        if least is None:
            return []
        plain = self._plain_fits_with(self._view)
        counts = dict.fromkeys((last if plain is None else plain, 0, self._states, last))
        return [_Choice(count) for count in counts if count >= least]

    def _neighbours(self, choice: _Choice, factor: Fraction, step: int) -> list[_Choice]:
        """Return choices with less or more memory for the planner, and with fewer or more residents on the host."""
        shares = (choice.share / factor, min(Fraction(1), choice.share * factor)) if choice.count else ()
        counts = (max(0, choice.count - step), min(len(self._movable), choice.count + step))
        return [replace(choice, share=share) for share in shares] + [replace(choice, count=count) for count in counts]

    def _plain_fits_with(self, view: Graph) -> int | None:
        """Return the smallest number of residents on the host with which the plain run fits; None if none does."""

        def fits(count: int) -> bool:
            shown = without_residents(view, self._movable[:count])
            return simulate(shown, plain_run(shown)).peak_bytes <= self._budget

        return _first(len(self._movable), fits)

    def _least_bytes(self, count: int) -> int:
        view = without_residents(self._view, self._movable[:count])
        return largest_working_set(view, residents_stay=True).bytes

    def _try(self, choice: _Choice, planner: Planner, *, offload: bool = False, is_quick: bool = False) -> int | None:
        """Ask a planner, with less memory where its plan needs more; return the time of its plan."""
        away = self._movable[: choice.count]
        view = without_residents(self._delayed_view if choice.is_delayed else self._view, away)
        needed = largest_working_set(view, residents_stay=True).bytes
        budget = needed + int((self._budget - needed) * choice.share)
        for _ in range(_TRIES):
            if needed > budget:
                return None
            problem = replace(self.problem, graph=view, budget=Budget(budget), offload=offload)
            claim = planner.plan(problem, (_Quiet if is_quick else _Views)(self, away))
            if not is_quick and choice.count == len(self._movable) and budget == self._budget:
                self._refusal = claim
            if claim.schedule is None:
                if claim.closest is not None:
                    self.take(claim.closest, away, None)
                return None
            # What is proven with residents away, or for less memory, does not hold for the step.
            peak, time = self.take(claim.schedule, away, claim if not away and budget == self._budget else None)
            if peak <= self._budget:
                return time
            budget -= peak - self._budget
        return None

    def take(self, schedule: Schedule, away: Sequence[str], claim: PlanResult | None) -> tuple[int, int]:
        """Turn a schedule of a view into one of the step, and keep it if it is the best; return its peak and time.

        Raises:
            FalseClaim: the schedule does not run.
        """
        graph, link = self.problem.graph, self.problem.link
        late = with_late_updates(graph, schedule)
        if late is None:
            return self._budget + 1, 0
        try:
            if away and link is not None:
                light = simulate(without_residents(graph, away), late, link=link)
                if light.peak_bytes > self._budget:
                    return light.peak_bytes, light.time
                # Imported here because it needs numpy.
                from remat_cli.planning.resident_moves import with_moves

                late, trace = with_moves(graph, late, away, self._budget, link)
            else:
                trace = simulate(graph, late, link=link)
        except InvalidSchedule as error:
            raise FalseClaim(f"the planner returned a schedule that does not run: {error.message}") from error
        self._keep(_Found(late, trace, claim))
        return trace.peak_bytes, trace.time

    def _keep(self, found: _Found) -> None:
        trace = found.trace
        if trace.peak_bytes > self._budget:
            if self._closest is None or trace.peak_bytes < self._closest.trace.peak_bytes:
                self._closest = found
        elif self._best is None or trace.time < self._best.trace.time:
            self._best = found
            self.observe.found(Plan(trace.time, trace.peak_bytes, lambda: found.schedule))
        elif found.claim is not None and found.schedule == self._best.schedule:
            self._best = found

    def may_improve(self, plan: Plan) -> bool:
        """Whether a plan of a view may be one of the step that is faster than the best, and there is time to see."""
        return self._best is None or (plan.time < self._best.trace.time and not self._limits.is_over)

    def bounds_of(self, claim: PlanResult) -> tuple[Bound, ...]:
        """Return the bounds of a claim on the view without moves, as bounds on plans of the step."""
        return tuple(replace(bound, scope=_scope_in_step(bound.scope)) for bound in claim.bounds)

    def _claim(self) -> PlanResult:
        best = self._best
        if best is None:
            return self._without_plan()
        is_optimal = best.trace.time == self._bound.time
        claim = best.claim or PlanResult(Status.UNKNOWN)
        bounds = () if best.schedule.on_host or is_optimal else self.bounds_of(claim)
        return replace(
            claim,
            status=Status.OPTIMAL if is_optimal else Status.FEASIBLE,
            schedule=best.schedule,
            closest=None,
            bounds=(*bounds, self._bound),
        )

    def _without_plan(self) -> PlanResult:
        closest = None if self._closest is None else self._closest.schedule
        refusal = self._refusal
        if refusal is None or refusal.schedule is not None:
            return PlanResult(Status.UNKNOWN, closest=closest, reason="no plan was found that fits")
        scope = Scope.PLANNER if self._movable else _scope_in_step(refusal.scope)
        return replace(refusal, scope=scope, closest=closest, bounds=())


def _first(last: int, holds: Callable[[int], bool]) -> int | None:
    """Return the first number up to `last` for which a condition holds that holds for all after it; None without."""
    if not holds(last):
        return None
    low, high = 0, last
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _scope_in_step(scope: Scope) -> Scope:
    """Return the plans of the step that a proof on its view without moves covers.

    The view has another order, and residents that stay.
    """
    return {Scope.ANY_PLAN: Scope.ANY_ORDER, Scope.FIXED_ORDER: Scope.PLANNER}.get(scope, scope)


def _fastest(times: Mapping[_Choice, int]) -> _Choice:
    return min(times, key=times.__getitem__)


class _Views(PassingObserver):
    """Receives a planner's reports on a view, and passes them on as those on the step."""

    def __init__(self, composition: _Composition, away: Sequence[str]) -> None:
        super().__init__(composition.observe)
        self._composition, self._away = composition, away

    def found(self, plan: Plan) -> None:
        if self._composition.may_improve(plan):
            self._composition.take(plan.schedule, self._away, None)

    def bound(self, bound: Bound) -> None:
        if not self._away:
            super().bound(replace(bound, scope=_scope_in_step(bound.scope)))


class _Quiet(PassingObserver):
    """Keeps a quick planner's reports from the step's observer."""

    def __init__(self, composition: _Composition, away: Sequence[str]) -> None:
        super().__init__(composition.observe)

    def found(self, plan: Plan) -> None:
        pass

    def bound(self, bound: Bound) -> None:
        pass


def bound_with_moves(problem: Problem, movable: Sequence[str]) -> Bound:
    """Return a lower bound on the time of any plan: every op runs once, and what does not fit passes the link.

    While the op with the largest working set runs, the bytes beyond the budget are not on the device. Each resident
    among them is fetched in the step, as some op reads it or it ends where it started. One that is written, or that
    starts on the device, is sent back, too.
    """
    graph, link = problem.graph, problem.link
    time = graph.total_time
    if movable and link is not None:
        written = {name for op in graph.ops for name in op.writes}
        sizes = {name: graph.tensors[name].bytes for name in movable}
        unread = sum(size for name, size in sizes.items() if not graph.consumers[name])
        frozen = sum(size for name, size in sizes.items() if name not in written)
        beyond = largest_working_set(graph, residents_stay=True).bytes - problem.budget.device_bytes
        fetched, sent = max(0, beyond - unread), max(0, beyond - frozen)
        moved = fetched + sent if link.duplex is Duplex.HALF else max(fetched, sent)
        time = max(time, link.transfer_time(moved))
    return Bound(time, Scope.ANY_PLAN)
