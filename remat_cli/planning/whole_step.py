"""Plans of whole training steps: a composition over any planner.

The planner sees views of the step: with early updates and, where plans may use the link, with some residents on the
host. Its schedules become schedules of the step: updates go behind the last use of the old value, and the moves of
residents are woven in. Several sets of residents are tried, from those that the budget needs to none, as recomputing
may cost more than the link or less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Graph, Residency
from remat_cli.core.link import Duplex
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
from remat_cli.planners.shared.limits import Limits
from remat_cli.planning.asking import in_seconds
from remat_cli.planning.step_views import movable_residents, with_early_updates, with_late_updates, without_residents

# Of the planner's time left, what each choice of residents but the first may take.
_SHARE_OF_TIME = 1 / 4
# The number of sets tried between the smallest that fits and the one with which the plain run fits, and of budgets for
# the planner with all on the host.
_BETWEEN = 3
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


@dataclass(frozen=True)
class _Found:
    """A schedule of the step with its replay, and the planner's claim that it comes from."""

    schedule: Schedule
    trace: Trace
    claim: PlanResult | None


class _Composition:
    """The search over sets of residents on the host."""

    def __init__(self, planner: Planner, problem: Problem, observe: Observer) -> None:
        self.problem, self.observe = problem, observe
        self._planner = planner
        self._budget = problem.budget.device_bytes
        self._view = with_early_updates(problem.graph)
        self._movable = movable_residents(problem.graph) if problem.offload else ()
        self._states = sum(problem.graph.tensors[name].resident is Residency.STATE for name in self._movable)
        self._bound = bound_with_moves(problem, self._movable)
        self._best: _Found | None = None
        self._closest: _Found | None = None
        self._refusal: PlanResult | None = None  # the planner's, with as many residents on the host as may be

    def result(self) -> PlanResult:
        """Return the best plan of all sets."""
        limits = Limits.of(getattr(self._planner, "time_limit", inf), observe=self.observe)
        for number, (view, count, budget) in enumerate(self._choices()):
            if number and (limits.is_over or self._is_best_possible):
                break
            share = limits.seconds * (_SHARE_OF_TIME if number else 1.0)
            planner = in_seconds(self._planner, share) if self._movable else self._planner
            self._try(without_residents(view, self._movable[:count]), self._movable[:count], planner, budget)
        return self._claim()

    @property
    def _is_best_possible(self) -> bool:
        return self._best is not None and self._best.trace.time <= self._bound.time

    def _choices(self) -> Iterator[tuple[Graph, int, int]]:
        """Yield views, numbers of residents on the host, and budgets for the planner, the most promising first.

        With less memory for the planner, more is left in which residents may stay.
        """
        view, budget, last = self._view, self._budget, len(self._movable)
        least = _first(last, lambda count: self._least_bytes(count) <= budget)
        plain = self._plain_fits_with(view)
        most = last if plain is None else plain
        yield view, most, budget
        if most == 0 or least is None:
            return
        later = with_early_updates(self.problem.graph, self.problem.link)
        yield later, self._plain_fits_with(later) or last, budget
        if least <= self._states < most:
            yield view, self._states, budget
        if least < most:
            yield view, least, budget
        needed = self._least_bytes(last)
        for part in range(_BETWEEN, 0, -1):
            yield view, last, needed + (budget - needed) * part // (_BETWEEN + 1)
        for part in range(1, _BETWEEN + 1):
            yield view, least + (most - least) * part // (_BETWEEN + 1), budget

    def _plain_fits_with(self, view: Graph) -> int | None:
        """Return the smallest number of residents on the host with which the plain run fits; None if none does."""

        def fits(count: int) -> bool:
            shown = without_residents(view, self._movable[:count])
            return simulate(shown, plain_run(shown)).peak_bytes <= self._budget

        return _first(len(self._movable), fits)

    def _least_bytes(self, count: int) -> int:
        view = without_residents(self._view, self._movable[:count])
        return largest_working_set(view, residents_stay=True).bytes

    def _try(self, view: Graph, away: Sequence[str], planner: Planner, budget: int) -> None:
        """Ask the planner with these residents on the host; with less memory where its plan needs more."""
        for _ in range(_TRIES):
            if largest_working_set(view, residents_stay=True).bytes > budget:
                return
            # Where all state passes the link, it has no time for what the planner would move.
            offload = self.problem.offload and len(away) != self._states
            problem = replace(self.problem, graph=view, budget=Budget(budget), offload=offload)
            claim = planner.plan(problem, _Views(self, away))
            if len(away) == len(self._movable) and budget == self._budget:
                self._refusal = claim
            if claim.schedule is None:
                if claim.closest is not None:
                    self.take(claim.closest, away, None)
                return
            peak = self.take(claim.schedule, away, claim)
            if peak <= self._budget:
                return
            budget -= peak - self._budget

    def take(self, schedule: Schedule, away: Sequence[str], claim: PlanResult | None) -> int:
        """Turn a schedule of a view into one of the step, and keep it if it is the best; return its peak.

        Raises:
            FalseClaim: the schedule does not run.
        """
        graph, link = self.problem.graph, self.problem.link
        late = with_late_updates(graph, schedule)
        if late is None:
            return self._budget + 1
        try:
            if away and link is not None:
                light = simulate(without_residents(graph, away), late, link=link)
                if light.peak_bytes > self._budget:
                    return light.peak_bytes
                # Imported here because it needs numpy.
                from remat_cli.planning.resident_moves import with_moves

                late, trace = with_moves(graph, late, away, self._budget, link)
            else:
                trace = simulate(graph, late, link=link)
        except InvalidSchedule as error:
            raise FalseClaim(f"the planner returned a schedule that does not run: {error.message}") from error
        self._keep(_Found(late, trace, claim))
        return trace.peak_bytes

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


class _Views(PassingObserver):
    """Receives a planner's reports on a view, and passes them on as those on the step."""

    def __init__(self, composition: _Composition, away: Sequence[str]) -> None:
        super().__init__(composition.observe)
        self._composition, self._away = composition, away

    def found(self, plan: Plan) -> None:
        self._composition.take(plan.schedule, self._away, None)

    def bound(self, bound: Bound) -> None:
        if not self._away:
            super().bound(replace(bound, scope=_scope_in_step(bound.scope)))


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
