"""Plans with addresses: what is recomputed and where everything lies are decided together.

The bound on the sum holds for arenas, too: whatever lies apart is at least as large as its sum. So a budget that no
plan's sum fits is proven too small for any arena.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from remat_cli.allocation.of_schedule import arena_of
from remat_cli.core.problem import Budget, Observer, PassingObserver, Plan, Planner, PlanResult, Problem, Status
from remat_cli.core.schedule import Schedule
from remat_cli.core.solve import Solution, solve, with_arena
from remat_cli.planners.shared.limits import Limits
from remat_cli.units import format_bytes

# Seconds in which an arena is sought for one plan, on all cores.
_SECONDS = 15.0
# Plans that fit the sum for which an arena is sought, the fastest first, before a smaller sum is asked for.
_MOST_PLANS = 4
# Smaller sums that are asked for, and of the arena the least share by which one is smaller than the last.
_MOST_SUMS = 6
_SMALLEST_STEP = 200


class _Found(PassingObserver):
    """Keeps the plans that a planner tells of."""

    def __init__(self, observe: Observer) -> None:
        super().__init__(observe)
        self.plans: list[Plan] = []

    def found(self, plan: Plan) -> None:
        self.plans.append(plan)
        super().found(plan)


def solve_with_addresses(problem: Problem, planner: Planner, alignment: int, observe: Observer) -> Solution:
    """Search a plan whose arena, and resident bytes beside it, fit the budget.

    Where the fastest plan's sum fits and no arena for it does, the other plans that the planner found come next: their
    frees and reruns lie elsewhere. Then plans of a smaller sum are asked for.

    Raises:
        PlannerRefuses: the planner cannot take this graph.
        FalseClaim: a schedule of the planner's does not run.
        KeyboardInterrupt: interrupted before any plan was found.
    """
    capacity = problem.budget.device_bytes - problem.graph.resident_bytes
    first: Solution | None = None
    closest: int | None = None
    limit = problem.budget.device_bytes  # of the sum
    tried: set[Schedule] = set()
    for _ in range(1 + _MOST_SUMS):
        heard = _Found(observe)
        solution = solve(replace(problem, budget=Budget(limit)), planner, heard)
        first = first or solution
        if solution.trace is None or solution.result.schedule is None:
            break
        for schedule in _schedules(solution.result.schedule, heard.plans, problem.budget.device_bytes):
            if schedule in tried:
                continue
            tried.add(schedule)
            limits = Limits.of(_SECONDS, cores=0, observe=observe)
            found, arena = arena_of(
                problem.graph, schedule, limits, capacity=capacity, alignment=alignment, observe=observe
            )
            interrupted = solution.interrupted or found.interrupted
            if arena is not None:
                return replace(with_arena(first, schedule, arena), interrupted=interrupted)
            closest = found.closest_bytes if closest is None else min(closest, found.closest_bytes or closest)
            if interrupted:
                return replace(_without_arena(first, closest), interrupted=True)
        over = max((closest or capacity) - capacity, capacity // _SMALLEST_STEP, alignment)
        limit = min(limit, solution.trace.peak_bytes) - over
    assert first is not None
    return first if first.trace is None else _without_arena(first, closest)


def _schedules(best: Schedule, plans: Sequence[Plan], budget_bytes: int) -> Iterator[Schedule]:
    """Yield the schedules for which an arena is sought: the best plan's, then of others that fit, fastest first."""
    yield best
    fitting = sorted((plan for plan in plans if plan.peak_bytes <= budget_bytes), key=lambda plan: plan.time)
    for plan in fitting[: _MOST_PLANS - 1]:
        yield plan.schedule


def _without_arena(first: Solution, closest: int | None) -> Solution:
    """Return the refusal that comes of finding no arena for any plan whose sum fits."""
    said = "" if closest is None else f"; the smallest that was found takes {format_bytes(closest)}"
    reason = f"there are plans whose sum fits, but for none of them was an arena found that does{said}"
    result = PlanResult(Status.UNKNOWN, closest=first.result.schedule, reason=reason)
    return replace(first, result=result, trace=None, closest=first.trace, closest_arena_bytes=closest)


def smallest_arena(solution: Solution, alignment: int, observe: Observer) -> Solution:
    """Return a solution at the smallest budget with the smallest arena that is found for its plan.

    The bound on the budget stays: no arena is smaller than the sum.
    """
    schedule = solution.result.schedule
    if solution.trace is None or schedule is None:
        return solution
    graph = solution.problem.graph
    limits = Limits.of(_SECONDS, cores=0, observe=observe)
    found, arena = arena_of(graph, schedule, limits, alignment=alignment, observe=observe)
    assert arena is not None, "without a capacity the first greedy order is an arena"
    at_arena = replace(solution.problem, budget=Budget(graph.resident_bytes + arena.bytes))
    placed = with_arena(replace(solution, problem=at_arena), schedule, arena)
    return replace(placed, interrupted=solution.interrupted or found.interrupted)
