"""Plans with addresses: recomputation and placement decided together.

The bound on the sum of bytes holds for arenas, too: tensors that do not overlap take at least the sum of their bytes.
So a budget that no plan's sum fits is proven too small for any arena.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remat_cli.allocation.of_schedule import arena_in_banks, arena_of
from remat_cli.allocation.reordering import reordered
from remat_cli.core.arena import Arena, Bank
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Observer, Plan, Planner, PlanResult, Problem, Status
from remat_cli.core.schedule import Schedule
from remat_cli.core.solve import Solution, with_arena
from remat_cli.planners.shared.limits import Limits
from remat_cli.planning.asking import fastest_within, solve_within
from remat_cli.units import format_bytes

# The seconds for the whole search if the planner has no time limit.
_SECONDS = 60.0
# The shares of the remaining seconds for the planner: at the first request, and at requests for a smaller sum.
_FOR_FIRST_PLAN = 1 / 2
_FOR_NEXT_PLAN = 1 / 3
# The work of all searches for arenas, and the shares of the remaining work and seconds of one of them: for the fastest
# plan, and for another. A usual core does that work in as many seconds; mostly the clock does not change the result.
_WORK = 30.0
_FOR_FIRST_ARENA = 0.25
_FOR_NEXT_ARENA = 0.15
# The number of plans whose sum fits to search an arena for, fastest first, before the next smaller sum.
_MOST_PLANS = 3
# The number of smaller sums to ask for, and the arena's part by which each is at least smaller than the last.
_MOST_SUMS = 6
_SMALLEST_STEP = 200


def solve_with_addresses(
    problem: Problem, planner: Planner, alignment: int, observe: Observer, banks: Sequence[Bank] = ()
) -> Solution:
    """Search for a plan whose arena and resident bytes fit the budget.

    With banks the plan's sum of bytes fits the budget, and every tensor has an address in one of the banks.

    If the fastest plan's sum fits but none of its arenas does, the search tries another order of its runs and frees,
    then the planner's other plans, then plans of a smaller sum. The planner's time limit, or a minute without one,
    covers all of this.

    Raises:
        PlannerRefuses: the planner cannot take this graph.
        FalseClaim: one of the planner's schedules does not run.
        KeyboardInterrupt: the search was interrupted before it found a plan.
    """
    return _AddressSearch(problem, planner, alignment, observe, banks).run()


class _AddressSearch:
    """The state of one search with addresses.

    Attributes:
        closest: bytes of the smallest arena so far that exceeds the capacity; None without one.
        found: the schedule with an arena that fits.
        interrupted: whether the user stopped the search.
    """

    def __init__(
        self, problem: Problem, planner: Planner, alignment: int, observe: Observer, banks: Sequence[Bank]
    ) -> None:
        self.closest: int | None = None
        self.found: tuple[Schedule, Arena] | None = None
        self.interrupted = False
        self._problem = problem
        self._planner = planner
        self._alignment = alignment
        self._observe = observe
        self._banks = banks
        room = problem.budget.device_bytes - problem.graph.resident_bytes
        self._capacity = min(room, sum(bank.bytes for bank in banks)) if banks else room
        self._limits = _limits(planner, observe)
        self._tried: set[Schedule] = set()

    def run(self) -> Solution:
        """Return the first plan with an arena, or the refusal."""
        first, plans = self._ask(self._problem.budget.device_bytes, _FOR_FIRST_PLAN)
        if first.trace is None or first.result.schedule is None:
            return first
        self.interrupted = first.interrupted
        try:
            self._try_all(first.result.schedule, plans, first.trace.peak_bytes)
        except KeyboardInterrupt:
            self.interrupted = True
        if self.found is None:
            return replace(_without_arena(first, self.closest), interrupted=self.interrupted)
        return replace(with_arena(first, *self.found), interrupted=self.interrupted)

    def _ask(self, limit: int, share: float) -> tuple[Solution, Sequence[Plan]]:
        """Ask for a plan whose sum is within a limit.

        Also return the planner's other plans.
        """
        return solve_within(self._problem, limit, self._planner, share * self._limits.seconds, self._observe)

    def _try_all(self, best: Schedule, plans: Sequence[Plan], peak: int) -> None:
        limit, share = self._problem.budget.device_bytes, _FOR_FIRST_ARENA
        for sums in range(1 + _MOST_SUMS):
            if self._try_orders(best, share):
                return
            share = _FOR_NEXT_ARENA
            others = fastest_within(plans, self._problem.budget.device_bytes, _MOST_PLANS - 1)
            if any(self._try(schedule, share) for schedule in others):
                return
            if sums == _MOST_SUMS or self._limits.is_over:
                return
            over = max((self.closest or self._capacity) - self._capacity, self._capacity // _SMALLEST_STEP)
            limit = min(limit, peak) - max(over, self._alignment)
            solution, plans = self._ask(limit, _FOR_NEXT_PLAN)
            self.interrupted = solution.interrupted
            if solution.trace is None or solution.result.schedule is None:
                return
            best, peak = solution.result.schedule, solution.trace.peak_bytes

    def _try_orders(self, schedule: Schedule, share: float) -> bool:
        """Search an arena for a schedule, then for another order of its runs.

        Tells whether the search is over.
        """
        if self._try(schedule, share):
            return True
        self._observe.phase("trying other orders of the plan's runs")
        graph = self._problem.graph
        other = reordered(graph, schedule, self._capacity, self._alignment, lambda: self._limits.is_over)
        return other is not None and self._try(other, _FOR_NEXT_ARENA)

    def _try(self, schedule: Schedule, share: float) -> bool:
        """Search an arena for a schedule; tell whether the search is over."""
        if schedule in self._tried:
            return False
        self._tried.add(schedule)
        limits = self._limits.part(share, share * self._limits.work)
        before = limits.work
        arena = self._in_banks(schedule, limits) if self._banks else self._in_block(schedule, limits)
        self._limits.spend(before - limits.work)
        if arena is not None:
            self.found = schedule, arena
        return arena is not None or self.interrupted

    def _in_block(self, schedule: Schedule, limits: Limits) -> Arena | None:
        alignment, observe = self._alignment, self._observe
        graph, capacity = self._problem.graph, self._capacity
        allocation, arena = arena_of(graph, schedule, limits, capacity=capacity, alignment=alignment, observe=observe)
        if arena is None and allocation.closest_bytes is not None:
            self.closest = min(allocation.closest_bytes, self.closest or allocation.closest_bytes)
        self.interrupted |= allocation.interrupted
        return arena

    def _in_banks(self, schedule: Schedule, limits: Limits) -> Arena | None:
        alignment, observe = self._alignment, self._observe
        allocation, arena = arena_in_banks(
            self._problem.graph, schedule, self._banks, limits, alignment=alignment, observe=observe
        )
        self.interrupted |= allocation.interrupted
        return arena


def _limits(planner: Planner, observe: Observer) -> Limits:
    """Return the limits of a whole search from the planner's time limit.

    Only searches for arenas count as work.
    """
    seconds = getattr(planner, "time_limit", _SECONDS)
    return Limits.of(seconds, min(_WORK, seconds / 2), cores=0, observe=observe)


def _without_arena(first: Solution, closest: int | None) -> Solution:
    """Return the refusal if no plan whose sum fits has an arena."""
    said = "" if closest is None else f"; the smallest that was found takes {format_bytes(closest)}"
    reason = f"there are plans whose sum fits, but for none of them was an arena found that does{said}"
    result = PlanResult(Status.UNKNOWN, closest=first.result.schedule, reason=reason)
    return replace(first, result=result, trace=None, closest=first.trace, closest_arena_bytes=closest)


def smallest_arena(solution: Solution, proven_bytes: int, alignment: int, observe: Observer) -> Solution:
    """Return a solution with the smallest arena found for its plan.

    The solution is at the smallest budget. If its arena is above the sum, other orders of the plan's runs are tried.

    Args:
        solution: the solution at the smallest budget.
        proven_bytes: budget below which no plan fits; this still holds, because no arena is smaller than the sum.
        alignment: alignment of addresses.
        observe: receives the phases.
    """
    schedule = solution.result.schedule
    if solution.trace is None or schedule is None:
        return solution
    graph = solution.problem.graph
    limits = Limits.of(_SECONDS, _WORK, cores=0, observe=observe)
    allocation, arena = arena_of(graph, schedule, limits.part(0.5, _WORK / 2), alignment=alignment, observe=observe)
    assert arena is not None, "without a capacity the first greedy order is an arena"
    interrupted = solution.interrupted or allocation.interrupted
    if not interrupted and allocation.status is not Status.OPTIMAL:
        try:
            least = proven_bytes - graph.resident_bytes
            schedule, arena = _in_another_order(graph, schedule, arena, least, limits.part(work=_WORK / 2), observe)
        except KeyboardInterrupt:
            interrupted = True
    at_arena = replace(solution.problem, budget=Budget(graph.resident_bytes + arena.bytes))
    return replace(with_arena(replace(solution, problem=at_arena), schedule, arena), interrupted=interrupted)


def _in_another_order(
    graph: Graph, schedule: Schedule, arena: Arena, least: int, limits: Limits, observe: Observer
) -> tuple[Schedule, Arena]:
    """Return another order of a schedule's runs with a smaller arena.

    Without one, return the given schedule and arena. The proven bound may hold for the given order only. If another
    order goes below that bound, its arena is enlarged to the bound.
    """
    observe.phase("trying other orders of the plan's runs")
    other = reordered(graph, schedule, least, arena.alignment, lambda: limits.is_over)
    if other is None:
        return schedule, arena
    _, smaller = arena_of(graph, other, limits, alignment=arena.alignment, observe=observe)
    if smaller is None:
        return schedule, arena
    enough = max(smaller.bytes, -(-least // arena.alignment) * arena.alignment)
    return (other, replace(smaller, bytes=enough)) if enough < arena.bytes else (schedule, arena)
