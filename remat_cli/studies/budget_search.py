"""The smallest budget: what is proven (no plan below) and what was found (a plan there), by bisection over `solve`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from remat_cli.bounds import largest_working_set
from remat_cli.graph import Graph
from remat_cli.link import Link
from remat_cli.problem import Budget, Observer, Plan, Planner, PlanResult, Problem, Scope, Status
from remat_cli.solve import Solution, baseline_of, solve
from remat_cli.units import BudgetSpec, format_bytes, format_share

# A planner that proves nothing is not asked for budgets closer to the smallest found than this share of it.
_TOLERANCE = 1 / 1000


@dataclass(frozen=True)
class SmallestBudget:
    """What a search for the smallest budget came to.

    Attributes:
        proven_bytes: no plan fits less, over the plans in `scope`.
        scope: the plans over which that was proven.
        solution: the plan at the smallest budget that was found; where no budget gave one, the last refusal.
        max_overhead: plans of more overhead were not taken; None where any was.
    """

    proven_bytes: int
    scope: Scope
    solution: Solution
    max_overhead: Fraction | None = None

    @property
    def leaves_out_transfers(self) -> bool:
        """Whether what is proven says nothing of plans that move tensors to the host, though such plans can be."""
        return self.solution.problem.link is not None and self.scope.leaves_out_transfers

    @property
    def found_bytes(self) -> int | None:
        """The smallest budget at which a plan was found; None where none was."""
        return None if self.solution.trace is None else self.solution.problem.budget.device_bytes


def smallest_budget(
    graph: Graph,
    planner: Planner,
    observe: Observer | None = None,
    *,
    link: Link | None = None,
    offload: bool = False,
    max_overhead: Fraction | None = None,
) -> SmallestBudget:
    """Search the smallest budget at which `planner` has a plan, to the byte where it proves what it refuses.

    Planners without proofs are not monotone in the budget, so theirs is the smallest budget *found*. A refusal that
    proves nothing moves the search up, never the proof.

    Args:
        graph: what is planned.
        planner: asked for ever smaller budgets.
        observe: is told how far the search is.
        link: to the host; None where it is not known.
        offload: plans may use it.
        max_overhead: take only plans of at most this overhead, as a share of the plain run's time.

    Raises:
        PlannerRefuses: the planner cannot take this graph.
        KeyboardInterrupt: interrupted before any plan was found.
    """
    plain = Problem(graph, Budget(baseline_of(graph).peak_bytes), link, offload)
    search = _Search(plain, planner, observe or Observer(), max_overhead)
    try:
        search.run()
    except KeyboardInterrupt:
        if search.found is None:
            raise
        search.found = replace(search.found, interrupted=True)
    return SmallestBudget(search.proven, search.scope, search.found or search.refusal, max_overhead)


def plan_at(
    graph: Graph,
    budget: BudgetSpec,
    planner: Planner,
    observe: Observer | None = None,
    *,
    link: Link | None = None,
    offload: bool = False,
    max_overhead: Fraction | None = None,
) -> Solution:
    """Plan at the budget that was asked for; where that is the smallest, search it.

    Args:
        graph: what is planned.
        budget: as asked for.
        planner: is asked.
        observe: is told what the planner finds.
        link: to the host; None where it is not known.
        offload: plans may use it.
        max_overhead: take only plans of at most this overhead, as a share of the plain run's time.

    Raises:
        PlannerRefuses: the planner cannot take this graph.
        KeyboardInterrupt: interrupted before any plan was found.
    """
    if budget.smallest:
        found = smallest_budget(graph, planner, observe, link=link, offload=offload, max_overhead=max_overhead)
        return found.solution
    size = budget.bytes_of(baseline_of(graph).peak_bytes, graph.fixed_bytes)
    return within_overhead(solve(Problem(graph, Budget(size), link, offload), planner, observe), max_overhead)


def at_budget(solution: Solution, budget_bytes: int) -> Solution:
    """Return the same result as if it had been asked for at another budget that it fits."""
    return replace(solution, problem=replace(solution.problem, budget=Budget(budget_bytes)))


def within_overhead(solution: Solution, max_overhead: Fraction | None) -> Solution:
    """Return the solution if its overhead is allowed, or has no plan; else the refusal that it is then."""
    if max_overhead is None or solution.trace is None or solution.overhead is None:
        return solution
    plain, bound = solution.baseline.time, solution.result.time_bound
    if exact_overhead(solution.trace.time, plain) <= max_overhead:
        return solution
    proven = bound is not None and exact_overhead(bound, plain) > max_overhead
    result = PlanResult(
        Status.INFEASIBLE if proven else Status.UNKNOWN,
        scope=solution.scope if proven else Scope.PLANNER,
        basis=solution.basis,
        closest=solution.result.schedule,
        reason=f"the plan found takes {format_share(solution.overhead)} more time than the plain run, above "
        f"the {format_share(max_overhead)} allowed",
    )
    return replace(solution, result=result, trace=None, closest=solution.trace)


def exact_overhead(time: int, plain_time: int) -> Fraction:
    """Return the time beyond the plain run's as a share of that, to be held against a limit: 10 % is not above 10 %."""
    return Fraction(time, plain_time) - 1 if plain_time else Fraction(0)


class _FirstPlan(Observer):
    """Passes on what a planner starts, and has enough as soon as there is a plan of little enough overhead."""

    def __init__(self, plain_time: int, observe: Observer, max_overhead: Fraction | None) -> None:
        self._plain_time = plain_time
        self._observe = observe
        self._max_overhead = max_overhead
        self._has_plan = False

    @property
    def has_enough(self) -> bool:
        return self._has_plan or self._observe.has_enough

    def phase(self, text: str) -> None:
        self._observe.phase(text)

    def asks(self, planner: str) -> None:
        self._observe.asks(planner)

    def found(self, plan: Plan) -> None:
        self._has_plan |= self._is_allowed(plan.time)

    def _is_allowed(self, time: int) -> bool:
        return self._max_overhead is None or exact_overhead(time, self._plain_time) <= self._max_overhead


class _Search:
    """Keeps apart where the search has been (`floor`) and what is proven (`proven`)."""

    def __init__(
        self,
        plain: Problem,
        planner: Planner,
        observe: Observer,
        max_overhead: Fraction | None,
    ) -> None:
        self.plain = plain  # at the budget of the plain run
        self.planner = planner
        self.observe = observe
        self.max_overhead = max_overhead
        self.proven = largest_working_set(plain.graph).bytes
        self.scope = Scope.ANY_PLAN
        self.floor = self.proven
        self.found: Solution | None = None
        self.ended_early = False  # the planner that found it could have run on
        self.refusal: Solution

    def run(self) -> None:
        self.bisect()
        if self.found is not None and self.ended_early:
            self.found = self.best_at(self.found)

    def best_at(self, found: Solution) -> Solution:
        """Return what the planner comes to at the smallest budget if it is let run on, or the plan that is known."""
        solution = within_overhead(solve(found.problem, self.planner, self.observe), self.max_overhead)
        is_better = solution.trace is not None and found.trace is not None and solution.trace.time <= found.trace.time
        return solution if is_better else replace(found, interrupted=solution.interrupted)

    def bisect(self) -> None:
        # Asked for too little, a planner says what came closest to fitting: a better start than halving from above.
        closest = self.ask(self.proven)
        for budget in (closest, self.plain.budget.device_bytes):
            if self.found is None and budget is not None:
                self.ask(budget)
        while self.found is not None and self.floor < self.found_bytes - self.near_enough():
            peak = self.found_peak()
            below = peak if self.floor <= peak < self.found_bytes else (self.floor + self.found_bytes - 1) // 2
            self.ask(below)
            if below == peak and self.found_bytes != peak and self.refusal.status is Status.UNKNOWN:
                # The planner does not find its own plan again, but there it is.
                self.found = at_budget(self.found, peak)

    @property
    def found_bytes(self) -> int:
        assert self.found is not None
        return self.found.problem.budget.device_bytes

    def found_peak(self) -> int:
        assert self.found is not None
        assert self.found.trace is not None
        return self.found.trace.peak_bytes

    def near_enough(self) -> int:
        return 0 if self.floor == self.proven else int(self.found_bytes * _TOLERANCE)

    def ask(self, budget: int) -> int | None:
        """Ask for a plan at `budget`; without one, return the smallest peak that the planner came to, if it says."""
        self.observe.phase(f"trying {format_bytes(budget)}")
        observe = _FirstPlan(baseline_of(self.plain.graph).time, self.observe, self.max_overhead)
        solution = solve(replace(self.plain, budget=Budget(budget)), self.planner, observe)
        taken = within_overhead(solution, self.max_overhead)
        if taken.trace is not None:
            self.found, self.ended_early = taken, observe.has_enough
        if solution.interrupted:
            # The planner was stopped with a plan in hand; the user meant the whole search.
            raise KeyboardInterrupt
        if taken.trace is not None:
            return taken.trace.peak_bytes
        self.floor = max(self.floor, budget + 1)
        self.refusal = taken
        if self.refusal.status is Status.INFEASIBLE:
            self.proven, self.scope = self.floor, self.refusal.scope
        return None if solution.closest is None else solution.closest.peak_bytes
