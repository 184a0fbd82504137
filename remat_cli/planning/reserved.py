"""Plans for a caching allocator: what it reserves is held against the budget, too.

An allocator never reserves less than the peak. So a budget that no plan's peak fits is proven too small for any plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remat_cli.allocation.cuda import reserved_bytes
from remat_cli.core.allocator import CudaAllocator, Reserved
from remat_cli.core.problem import Budget, Observer, Plan, Planner, PlanResult, Problem, Status
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.solve import Solution, solve, with_reserved
from remat_cli.planners.shared.limits import Limits
from remat_cli.planning.asking import fastest_within, solve_within
from remat_cli.planning.given import Given
from remat_cli.units import format_bytes

# Seconds for everything together, where the planner has no time limit that says so.
_SECONDS = 60.0
# Of the seconds left: for the planner when it is asked first, and when it is asked for a smaller peak.
_FOR_FIRST_PLAN = 1 / 2
_FOR_NEXT_PLAN = 1 / 3
# Other plans that the planner found at one peak, and smaller peaks that are asked for; the least share of the budget
# by which one is smaller than the last.
_MOST_PLANS = 3
_MOST_PEAKS = 12
_SMALLEST_STEP = 200
# A larger peak takes less time. Of peaks between one that held and one that did not, so many are asked for.
_MOST_LARGER_PEAKS = 4


def solve_with_allocator(problem: Problem, planner: Planner, allocator: CudaAllocator, observe: Observer) -> Solution:
    """Search a plan for which an allocator reserves no more than the budget.

    Where it reserves more for the fastest plan whose peak fits, the other plans that the planner found come next, and
    then plans of a smaller peak. The planner's time limit, a minute where it has none, is one for all of that.

    Raises:
        PlannerRefuses: the planner cannot take this graph.
        FalseClaim: a schedule of the planner's does not run.
        KeyboardInterrupt: interrupted before any plan was found.
    """
    return _ReservedSearch(problem, planner, allocator, observe).run()


def reserved_for_smallest(solution: Solution, allocator: CudaAllocator) -> Solution:
    """Return a solution at the smallest budget with the budget that the allocator reserves for its plan.

    What was proven at the smallest peak says nothing of that budget. Where the plain run fits it, that is the plan.
    """
    schedule = solution.result.schedule
    if solution.trace is None or schedule is None:
        return solution
    problem, found_by = solution.problem, solution.result.found_by
    taken = _reserved(problem, schedule, allocator)
    if taken.plain_bytes <= taken.bytes:
        schedule, taken = plain_run(problem.graph), replace(taken, bytes=taken.plain_bytes)
    again = solve(replace(problem, budget=Budget(taken.bytes)), Given(schedule, found_by))
    return with_reserved(replace(again, interrupted=solution.interrupted), schedule, taken)


def _reserved(problem: Problem, schedule: Schedule, allocator: CudaAllocator) -> Reserved:
    plain = reserved_bytes(problem.graph, plain_run(problem.graph), allocator)
    taken = plain if schedule is plain_run(problem.graph) else reserved_bytes(problem.graph, schedule, allocator)
    return Reserved(allocator, taken, plain)


class _ReservedSearch:
    """One search.

    Attributes:
        closest: the least that the allocator reserved for a plan so far, where that is above the budget.
    """

    def __init__(self, problem: Problem, planner: Planner, allocator: CudaAllocator, observe: Observer) -> None:
        self.closest: int | None = None
        self._problem = problem
        self._planner = planner
        self._allocator = allocator
        self._observe = observe
        self._budget = problem.budget.device_bytes
        self._limits = Limits.of(getattr(planner, "time_limit", _SECONDS), cores=0, observe=observe)
        self._tried: set[Schedule] = set()
        self._interrupted = False

    def run(self) -> Solution:
        """Return the first plan for which the allocator reserves little enough, or the refusal."""
        first, plans = self._ask(self._budget, _FOR_FIRST_PLAN)
        if first.trace is None or first.result.schedule is None:
            return first
        self._interrupted = first.interrupted
        best: tuple[Schedule, Reserved] | None = None
        try:
            best = self._found(first, plans)
        except KeyboardInterrupt:
            self._interrupted = True
        solution = self._refusal(first) if best is None else with_reserved(first, *best)
        return replace(solution, interrupted=self._interrupted)

    def _ask(self, limit: int, share: float) -> tuple[Solution, Sequence[Plan]]:
        """Ask for a plan with a limited peak; return all plans found."""
        return solve_within(self._problem, limit, self._planner, share * self._limits.seconds, self._observe)

    def _found(self, first: Solution, plans: Sequence[Plan]) -> tuple[Schedule, Reserved] | None:
        """Return the fastest plan within the budget, searched at smaller peaks."""
        best = self._held(first, plans, self._budget)
        if best is not None:
            return best
        assert first.trace is not None
        low, failing = first.working_set.bytes, first.trace.peak_bytes
        for _ in range(_MOST_PEAKS):
            if self._is_over or low >= failing:
                break
            step = max((self.closest or self._budget) - self._budget, self._budget // _SMALLEST_STEP, 1)
            limit = max(failing - step, (failing + low) // 2)
            solution, plans = self._ask(limit, _FOR_NEXT_PLAN)
            self._interrupted = solution.interrupted
            if solution.trace is None:
                low = limit + 1
                continue
            best = self._held(solution, plans, limit)
            if best is not None:
                return self._faster(best, solution, failing)
            failing = solution.trace.peak_bytes
        return None

    def _faster(self, best: tuple[Schedule, Reserved], solution: Solution, failing: int) -> tuple[Schedule, Reserved]:
        """Return a faster plan with a larger peak, or the given plan."""
        assert solution.trace is not None
        holding = solution.trace.peak_bytes
        for _ in range(_MOST_LARGER_PEAKS):
            middle = (holding + failing) // 2
            if self._is_over or not holding < middle < failing:
                break
            solution, plans = self._ask(middle, _FOR_NEXT_PLAN)
            self._interrupted = solution.interrupted
            better = None if solution.trace is None else self._held(solution, plans, middle)
            best, holding, failing = (best, holding, middle) if better is None else (better, middle, failing)
        return best

    @property
    def _is_over(self) -> bool:
        return self._interrupted or self._limits.is_over

    def _held(self, solution: Solution, plans: Sequence[Plan], limit: int) -> tuple[Schedule, Reserved] | None:
        """Return the fastest of the plans that were found at one peak for which little enough is reserved."""
        assert solution.result.schedule is not None
        self._observe.phase("replaying the plan's allocations")
        for schedule in (solution.result.schedule, *fastest_within(plans, limit, _MOST_PLANS)):
            taken = self._try(schedule)
            if taken is not None:
                return schedule, taken
        return None

    def _try(self, schedule: Schedule) -> Reserved | None:
        """Return the reserved bytes of a new schedule within the budget, or None."""
        if schedule in self._tried:
            return None
        self._tried.add(schedule)
        taken = _reserved(self._problem, schedule, self._allocator)
        if taken.bytes <= self._budget:
            return taken
        self.closest = min(taken.bytes, self.closest or taken.bytes)
        return None

    def _refusal(self, first: Solution) -> Solution:
        """Return the refusal that comes of reserving too much for every plan that was tried."""
        assert self.closest is not None, "the first plan was tried"
        reason = (
            f"there are plans whose peak fits, but for each that was tried PyTorch's allocator reserves more; "
            f"the least that it was found to reserve is {format_bytes(self.closest)}"
        )
        result = PlanResult(Status.UNKNOWN, closest=first.result.schedule, reason=reason)
        return replace(first, result=result, trace=None, closest=first.trace, closest_reserved_bytes=self.closest)
