"""Refusals that name a budget which would work."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from remat_cli.core.problem import Budget, Observer, Problem
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import Trace
from remat_cli.core.solve import Solution, solve
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.shared.limits import Limits

_TRIES = 8


def with_closest(solution: Solution, observe: Observer, seconds: float) -> Solution:
    """Return a solution with the smallest peak that is quickly found, where no planner was asked for one.

    That is so where the budget is below the largest working set, as most shares of the plain peak are where weights
    fill it. Of a solution that has more to say, nothing is changed.

    Args:
        solution: a refusal, or a plan.
        observe: is told what goes on.
        seconds: that this may take; less time finds larger peaks.
    """
    needed = solution.working_set.bytes
    if solution.closest is not None or solution.problem.budget.device_bytes >= needed:
        return solution
    observe.phase("looking for a budget that fits")
    run = None
    with suppress(KeyboardInterrupt):  # that no plan fits is known, and all that was asked
        run = _run_within_reach(solution.problem, needed, Limits.of(seconds))
    schedule, trace = run or (plain_run(solution.problem.graph), solution.baseline)
    return replace(solution, closest=trace, result=replace(solution.result, closest=schedule))


def _run_within_reach(problem: Problem, budget_bytes: int, limits: Limits) -> tuple[Schedule, Trace] | None:
    """Return a run at whose peak a plan is found; None where there is none.

    dtr is asked, which plans graphs of any size in moments. The closest schedule at one budget need not be found again
    at another, so it is asked at that peak. When the time is up, the closest run so far is returned.
    """
    run = None
    for _ in range(_TRIES):
        if limits.is_over:
            return run
        tried = solve(replace(problem, budget=Budget(budget_bytes)), DTR(time_limit=limits.seconds))
        if tried.result.schedule is not None and tried.trace is not None:
            return run or (tried.result.schedule, tried.trace)
        if tried.result.closest is None or tried.closest is None:
            return None
        if not budget_bytes < tried.closest.peak_bytes < tried.baseline.peak_bytes:
            return None
        run = tried.result.closest, tried.closest
        budget_bytes = tried.closest.peak_bytes
    return None
