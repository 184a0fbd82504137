"""The best plan so far, and what is proven: every planner keeps one, and returns its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from remat_cli.core.problem import Basis, Bound, ModelFigure, Observer, Plan, PlanResult, Problem, Scope, Status
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import simulate
from remat_cli.planners.shared.sequence import RematSequence

_NO_PLAN = "no plan was found within the limits; that is no proof that there is none"


class SequencePlan(Plan):
    """A plan with its runs: searches go on from these; the schedule, with the names of ops, is made on request.

    Attributes:
        sequence: the runs.
    """

    def __init__(
        self,
        sequence: RematSequence,
        time: int,
        peak_bytes: int,
        make_schedule: Callable[[], Schedule],
        figures: tuple[ModelFigure, ...] = (),
    ) -> None:
        super().__init__(time, peak_bytes, make_schedule, figures)
        self.sequence = sequence


class Incumbent:
    """The best plan so far, and what is proven, of one run of a planner; the searches of a portfolio share one.

    Whatever plan is offered is measured once, kept if it is the best that fits or the closest to fitting, and told to
    the observer if it is the best.

    Attributes:
        problem: the problem to plan.
        observe: is told of better plans and bounds.
        finder: of a portfolio: the planner whose plans are offered now.
        best: the plan of the least time that fits, and of those the one of the least peak; None before one was found.
        closest: of the plans that do not fit, the one of the smallest peak; None before there was one.
    """

    def __init__(self, problem: Problem, observe: Observer, searches: Scope = Scope.PLANNER) -> None:
        """Begin with nothing.

        Args:
            problem: the problem to plan.
            observe: is told of better plans and bounds.
            searches: the smallest scope that contains all plans of the planner. Bounds of smaller scopes need not hold
                for its plans.
        """
        self.problem = problem
        self.observe = observe
        self.finder: str | None = None
        self.best: Plan | None = None
        self.closest: Plan | None = None
        self._searches = searches
        self._bounds = {Scope.ANY_PLAN: Bound(problem.graph.total_time, Scope.ANY_PLAN)}
        self._impossible: PlanResult | None = None

    # Plans

    def offer(self, plan: RematSequence | Schedule, figures: tuple[ModelFigure, ...] = ()) -> Plan:
        """Measure a plan, keep it if it is the best, and return it with its costs.

        Args:
            plan: a valid sequence; or a schedule, where a sequence does not say everything.
            figures: what the method's own model says of it.
        """
        measured = self._measured(plan, figures)
        self.take(measured)
        return measured

    def _measured(self, plan: RematSequence | Schedule, figures: tuple[ModelFigure, ...]) -> Plan:
        if isinstance(plan, RematSequence):
            return SequencePlan(plan, plan.time, plan.peak, plan.schedule, figures)
        trace = simulate(self.problem.graph, plan, link=self.problem.link)
        return Plan(trace.time, trace.peak_bytes, lambda: plan, figures)

    def take(self, plan: Plan) -> bool:
        """Keep a measured plan if it is the best; tell whether it is, and fits."""
        plan.found_by = plan.found_by or self.finder
        if not self.fits(plan):
            if self.closest is None or self.merit(plan) < self.merit(self.closest):
                self.closest = plan
            return False
        if self.best is not None and self.merit(plan) >= self.merit(self.best):
            return False
        self.best = plan
        self.observe.found(plan)
        return True

    @property
    def best_sequence(self) -> RematSequence | None:
        """The runs of the best plan; None where there is none, or only a schedule."""
        return self.best.sequence if isinstance(self.best, SequencePlan) else None

    def fits(self, plan: Plan) -> bool:
        """Tell whether a plan fits the budget."""
        return plan.peak_bytes <= self.problem.budget.device_bytes

    def merit(self, plan: Plan) -> tuple[int, int, int]:
        """Rank plans, the best first: plans that fit, by time; then the others, by peak."""
        return (0, plan.time, plan.peak_bytes) if self.fits(plan) else (1, plan.peak_bytes, plan.time)

    # Proofs

    def prove(self, time: int, scope: Scope, basis: Basis = Basis.COUNTED) -> None:
        """Note that no plan in scope takes less time; or that a known bound now rests on more than one solver."""
        known = self._bounds.get(scope)
        if known is not None and time == known.time:
            says_more = known.basis is Basis.ONE_SOLVER and basis is not Basis.ONE_SOLVER
        else:
            says_more = known is None or time > known.time
        if says_more:
            self._bounds[scope] = bound = Bound(time, scope, basis)
            self.observe.bound(bound)

    def prove_that_none_fits(self, scope: Scope, why: str, basis: Basis = Basis.COUNTED) -> None:
        """Note that no plan in scope fits, and why, for people.

        This settles the search if all plans of the planner are in that scope.
        """
        if scope in _at_least_as_wide(self._searches):
            self._impossible = PlanResult(Status.INFEASIBLE, scope=scope, basis=basis, reason=why)

    @property
    def nothing_fits(self) -> bool:
        """Whether it is proven that no plan fits."""
        return self._impossible is not None

    @property
    def bound(self) -> Bound:
        """The largest bound that holds for all plans of the planner; of equal ones that of the widest scope."""
        return self.bound_on(self._searches)

    def bound_on(self, scope: Scope) -> Bound:
        """Return the largest bound that holds for all plans in a scope; of equal ones that of the widest scope."""
        known = (self._bounds[each] for each in _at_least_as_wide(scope) if each in self._bounds)
        return max(known, key=lambda bound: bound.time)

    @property
    def gap(self) -> float:
        """Time of the best plan beyond the bound, as a share of the plain run's; infinite without a plan."""
        if self.best is None:
            return float("inf")
        return (self.best.time - self.bound.time) / max(self.problem.graph.total_time, 1)

    @property
    def is_settled(self) -> bool:
        """Whether the best plan is proven optimal, or it is proven that none fits."""
        return self.nothing_fits or self.gap <= 0

    def result(self, reason: str = _NO_PLAN, stats: Mapping[str, int] | None = None) -> PlanResult:
        """Return what was found and proven.

        Args:
            reason: why there is no plan, for people, where nothing is proven.
            stats: counted work.
        """
        stats = stats or {}
        if self._impossible is not None:
            return replace(self._impossible, closest=_schedule_of(self.closest), stats=stats)
        foremost = self.bound
        least = self.problem.graph.total_time
        others = (bound for bound in self._bounds.values() if bound is not foremost and bound.time > least)
        bounds = (foremost, *others)
        if self.best is None:
            figures = () if self.closest is None else self.closest.figures
            return PlanResult(
                Status.UNKNOWN,
                bounds=bounds if foremost.time > least else (),
                closest=_schedule_of(self.closest),
                reason=reason,
                stats=stats,
                model_figures=figures,
            )
        return PlanResult(
            Status.OPTIMAL if self.best.time <= foremost.time else Status.FEASIBLE,
            self.best.schedule,
            bounds,
            stats=stats,
            model_figures=self.best.figures,
            found_by=self.best.found_by,
        )


def _at_least_as_wide(scope: Scope) -> list[Scope]:
    scopes = list(Scope)
    return scopes[: scopes.index(scope) + 1]


def _schedule_of(plan: Plan | None) -> Schedule | None:
    return None if plan is None else plan.schedule
