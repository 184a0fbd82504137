"""Remedies for a failing check, each tried before it is told: every figure is that of a plan that was replayed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from remat_cli.checks.project import ModelCheck
from remat_cli.config import GraphOptions
from remat_cli.errors import PlannerRefuses, RematError
from remat_cli.prepare import prepare
from remat_cli.problem import Budget, Observer, Planner, Problem
from remat_cli.solve import Solution, baseline_of, solve
from remat_cli.studies.budget_search import within_overhead
from remat_cli.units import format_bytes

# How many budgets are tried in the search for one that fits.
_TRIES = 6
_BATCH_NAMES = ("batch", "batch_size", "batchsize", "bs", "n", "b")
_SIGNIFICANT_DIGITS = 4


@dataclass(frozen=True)
class Offer:
    """A budget at which there is a plan.

    Attributes:
        budget_bytes: the budget.
        overhead: of the plan.
    """

    budget_bytes: int
    overhead: float


@dataclass(frozen=True)
class BatchOffer:
    """A batch that fits.

    Attributes:
        dim: name of the dimension.
        size: its value.
        overhead: of the plan, or of the plain run where that fits.
    """

    dim: str
    size: int
    overhead: float


def budget_offer(refusal: Solution, model: ModelCheck, observe: Observer) -> Offer:
    """Return a larger budget at which the model holds, the smallest of the few that are tried.

    Args:
        refusal: the result at the budget that is too small, without a plan that is allowed.
        model: what it is held to.
        observe: is told what is tried.
    """
    failing = refusal.problem.budget.device_bytes
    best = Offer(round_up(refusal.baseline.peak_bytes), 0.0)
    guess = refusal.working_set.bytes if refusal.closest is None else refusal.closest.peak_bytes
    planner = _in_haste(model.planner.planner())
    for _ in range(_TRIES):
        if not failing < guess < best.budget_bytes:
            guess = (failing + best.budget_bytes) // 2
        budget = round_up(guess)
        if not failing < budget < best.budget_bytes:
            break
        observe.phase(f"looking for a budget that fits: {format_bytes(budget)}")
        problem = replace(refusal.problem, budget=Budget(budget))
        tried = within_overhead(uninterrupted(solve(problem, planner, observe)), model.max_overhead)
        if tried.overhead is None:
            failing = budget
            guess = 0 if tried.closest is None else tried.closest.peak_bytes
        else:
            best = Offer(budget, tried.overhead)
            guess = 0
    return best


def batch_offer(
    model: ModelCheck, resident_bytes: int, needed_bytes: int, limit_bytes: int, observe: Observer
) -> BatchOffer | None:
    """Return a smaller batch with which the model holds; None where none is known.

    Args:
        model: what it is held to.
        resident_bytes: what does not grow with the batch.
        needed_bytes: what would fit the model as it is.
        limit_bytes: what it may need.
        observe: is told what is tried.
    """
    name = next((dim for dim in model.graph.dims if dim.lower() in _BATCH_NAMES), None)
    if name is None:
        return None
    batch = model.graph.dims[name]
    smaller = min(batch - 1, batch * (limit_bytes - resident_bytes) // max(1, needed_bytes - resident_bytes))
    if smaller < 1:
        return None
    observe.phase("looking for a batch that fits")
    dims = {**model.graph.dims, name: smaller}
    overhead = _overhead_of(replace(model.graph, dims=dims), model, limit_bytes, observe)
    return None if overhead is None else BatchOffer(name, smaller, overhead)


def _overhead_of(graph: GraphOptions, model: ModelCheck, limit_bytes: int, observe: Observer) -> float | None:
    """Return the overhead with which the model, read in this way, holds; None where it does not."""
    try:
        prepared = prepare(model.path, graph)
    except RematError:
        return None  # not every model takes every batch
    plain = baseline_of(prepared.graph)
    if plain.peak_bytes <= limit_bytes:
        return 0.0
    if model.budget is None:
        return None
    return plan_overhead(prepared.problem(limit_bytes), model, observe)


def plan_overhead(problem: Problem, model: ModelCheck, observe: Observer) -> float | None:
    """Return the overhead of a plan for `problem` that the model's planner finds in haste; None where it finds none."""
    try:
        solution = solve(problem, _in_haste(model.planner.planner()), observe)
    except PlannerRefuses:
        return None
    return within_overhead(uninterrupted(solution), model.max_overhead).overhead


def uninterrupted(solution: Solution) -> Solution:
    """Return the solution, unless the search for it was cut short: a check that judged that would not be repeatable.

    Raises:
        KeyboardInterrupt: it was.
    """
    if solution.interrupted:
        raise KeyboardInterrupt
    return solution


def _in_haste(planner: Planner) -> Planner:
    """Return the planner with limits so much lower that all tries take no longer than the check itself did."""
    limits = {name: getattr(planner, name, None) for name in ("time_limit", "work_limit", "patience")}
    return replace(planner, **{name: limit / _TRIES for name, limit in limits.items() if limit is not None})


def round_up(size: int) -> int:
    """Return the next size that can be written with four digits."""
    step = int(10 ** max(0, len(str(size)) - _SIGNIFICANT_DIGITS))
    return -(-size // step) * step
