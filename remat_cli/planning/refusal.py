"""Refusals that name a budget that would work."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Observer, Problem
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import Trace
from remat_cli.core.solve import Solution, solve
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.shared.limits import Limits
from remat_cli.planning.whole_step import for_whole_step

_TRIES = 8


def with_closest(solution: Solution, observe: Observer, seconds: float) -> Solution:
    """Add a small peak that is found quickly to a refusal.

    This is for budgets below the largest working set, for which no planner was asked: most shares of the plain peak are
    if weights fill that peak. Other solutions are returned unchanged.

    Args:
        solution: a refusal, or a plan.
        observe: receives the phase.
        seconds: limit in seconds; less time finds larger peaks.
    """
    needed = solution.working_set.bytes
    if solution.closest is not None or solution.problem.budget.device_bytes >= needed:
        return solution
    observe.phase("looking for a budget that fits")
    run = None
    with suppress(KeyboardInterrupt):  # the answer to the request, that no plan fits, is known
        run = _run_within_reach(solution.problem, needed, Limits.of(seconds))
    schedule, trace = run or (plain_run(solution.problem.graph), solution.baseline)
    return replace(solution, closest=trace, result=replace(solution.result, closest=schedule))


def quick_peak(graph: Graph, budget_bytes: int, seconds: float) -> int:
    """Return the peak of a run that recomputes, found in moments: within a budget, or as close as it comes.

    Args:
        graph: the graph.
        budget_bytes: the budget.
        seconds: limit in seconds.
    """
    tried = solve(Problem(graph, Budget(budget_bytes)), for_whole_step(DTR(time_limit=seconds), graph))
    return (tried.trace or tried.closest or tried.baseline).peak_bytes


def _run_within_reach(problem: Problem, budget_bytes: int, limits: Limits) -> tuple[Schedule, Trace] | None:
    """Return a run at whose peak a planner finds a plan, or None.

    The planner is dtr, which plans graphs of any size in moments. It need not find the closest schedule of one budget
    again at another, so it is asked at that schedule's peak. When the time is up, the closest run so far is returned.
    """
    run = None
    for _ in range(_TRIES):
        if limits.is_over:
            return run
        planner = for_whole_step(DTR(time_limit=limits.seconds), problem.graph)
        tried = solve(replace(problem, budget=Budget(budget_bytes)), planner)
        if tried.result.schedule is not None and tried.trace is not None:
            return run or (tried.result.schedule, tried.trace)
        if tried.result.closest is None or tried.closest is None:
            return None
        if not budget_bytes < tried.closest.peak_bytes < tried.baseline.peak_bytes:
            return None
        run = tried.result.closest, tried.closest
        budget_bytes = tried.closest.peak_bytes
    return None
