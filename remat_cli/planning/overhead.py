"""Comparison of overheads with a limit, in exact fractions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from remat_cli.core.problem import PlanResult, Scope, Status
from remat_cli.core.solve import Solution
from remat_cli.units import format_share


def within_overhead(solution: Solution, max_overhead: Fraction | None) -> Solution:
    """Return the solution, or a refusal if its overhead is above the limit.

    A solution without a plan is returned as it is.
    """
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
    return replace(solution, result=result, trace=None, closest=solution.trace, arena=None, sum_time=None)


def exact_overhead(time: int, plain_time: int) -> Fraction:
    """Return the overhead as an exact fraction.

    So 10 % is not above a limit of 10 %.
    """
    return Fraction(time, plain_time) - 1 if plain_time else Fraction(0)
