"""The best plan so far and the proven bounds of a planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from remat_cli.core.problem import Basis, Bound, ModelFigure, Observer, Plan, PlanResult, Problem, Scope, Status
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import simulate
from remat_cli.planners.shared.sequence import RematSequence

_NO_PLAN = "no plan was found within the limits; that is no proof that there is none"


class SequencePlan(Plan):
    """A plan with its sequence of runs, from which searches continue.

    The schedule, with the names of ops, is built on request.

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
    """Keeps the best plan and the bounds of one run of a planner.

    The searches of a portfolio share one. It measures each offered plan once, keeps the best that fits and the closest
    to fitting, and reports each new best to the observer.

    Attributes:
        problem: the problem to plan.
        observe: receives better plans and bounds.
        finder: in a portfolio, the planner that offers plans now.
        best: the fastest plan that fits, and of equally fast plans the one of least peak; None before there is one.
        closest: of the plans that do not fit, the one of smallest peak; None before there is one.
    """

    def __init__(self, problem: Problem, observe: Observer, searches: Scope = Scope.PLANNER) -> None:
        """Begin without a plan.

        Args:
            problem: the problem to plan.
            observe: receives better plans and bounds.
            searches: the smallest scope that contains all plans of the planner. Bounds of smaller scopes need not hold
                for the planner's plans.
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
        """Measure a plan, and keep it if it is the best.

        Returns the plan with its costs.

        Args:
            plan: a valid sequence; or a schedule, if a sequence does not determine the plan.
            figures: figures from the planner's own model.
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
        """Keep a measured plan if it is the best; tell whether it was kept as the best."""
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
        """The runs of the best plan; None without one, or for a schedule."""
        return self.best.sequence if isinstance(self.best, SequencePlan) else None

    def fits(self, plan: Plan) -> bool:
        """Tell whether a plan fits the budget."""
        return plan.peak_bytes <= self.problem.budget.device_bytes

    def merit(self, plan: Plan) -> tuple[int, int, int]:
        """Rank plans: first those that fit, by time; then the rest, by peak."""
        return (0, plan.time, plan.peak_bytes) if self.fits(plan) else (1, plan.peak_bytes, plan.time)

    # Proofs

    def prove(self, time: int, scope: Scope, basis: Basis = Basis.COUNTED) -> None:
        """Record a bound on the time of plans in a scope.

        A known bound may also get better evidence than one solver.
        """
        known = self._bounds.get(scope)
        if known is not None and time == known.time:
            says_more = known.basis is Basis.ONE_SOLVER and basis is not Basis.ONE_SOLVER
        else:
            says_more = known is None or time > known.time
        if says_more:
            self._bounds[scope] = bound = Bound(time, scope, basis)
            self.observe.bound(bound)

    def prove_that_none_fits(self, scope: Scope, why: str, basis: Basis = Basis.COUNTED) -> None:
        """Record that no plan in a scope fits, with the reason.

        The reason is for people. The proof settles the search if all plans of the planner are in that scope.
        """
        if scope in _at_least_as_wide(self._searches):
            self._impossible = PlanResult(Status.INFEASIBLE, scope=scope, basis=basis, reason=why)

    @property
    def nothing_fits(self) -> bool:
        """Whether a proof shows that no plan fits."""
        return self._impossible is not None

    @property
    def bound(self) -> Bound:
        """The largest bound on all plans of the planner.

        Of equal bounds, the one of widest scope.
        """
        return self.bound_on(self._searches)

    def bound_on(self, scope: Scope) -> Bound:
        """Return the largest bound on all plans in a scope.

        Of equal bounds, the one of widest scope.
        """
        known = (self._bounds[each] for each in _at_least_as_wide(scope) if each in self._bounds)
        return max(known, key=lambda bound: bound.time)

    @property
    def gap(self) -> float:
        """Overhead of the best plan beyond the bound; infinite without a plan.

        It is a share of the plain run's time.
        """
        if self.best is None:
            return float("inf")
        return (self.best.time - self.bound.time) / max(self.problem.graph.total_time, 1)

    @property
    def is_settled(self) -> bool:
        """Whether the best plan is optimal, or provably none fits."""
        return self.nothing_fits or self.gap <= 0

    def result(self, reason: str = _NO_PLAN, stats: Mapping[str, int] | None = None, note: str = "") -> PlanResult:
        """Return the plans and bounds found.

        Args:
            reason: for people, why there is no plan, if there is no proof either.
            stats: counts of work.
            note: for people, which part of the search was left out, or slow.
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
                note=note,
            )
        return PlanResult(
            Status.OPTIMAL if self.best.time <= foremost.time else Status.FEASIBLE,
            self.best.schedule,
            bounds,
            stats=stats,
            model_figures=self.best.figures,
            found_by=self.best.found_by,
            note=note,
        )


def _at_least_as_wide(scope: Scope) -> list[Scope]:
    scopes = list(Scope)
    return scopes[: scopes.index(scope) + 1]


def _schedule_of(plan: Plan | None) -> Schedule | None:
    return None if plan is None else plan.schedule
