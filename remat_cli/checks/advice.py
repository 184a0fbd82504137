"""Remedies for a failing check.

Each is tried before it is suggested: every figure is that of a replayed plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from remat_cli.checks.project import ModelCheck
from remat_cli.config import GraphOptions, PlannerChoice
from remat_cli.core.problem import Observer
from remat_cli.core.solve import Solution, baseline_of
from remat_cli.errors import PlannerRefuses, RematError
from remat_cli.planning import Planning, Request, plan
from remat_cli.prepare import Prepared, prepare
from remat_cli.studies.eager import EagerReplay, eager_run
from remat_cli.units import BudgetSpec, format_bytes

# The number of budgets to try in the search for one that fits.
_TRIES = 6
# The same number with arenas: each try may take as long as the check itself.
_TRIES_WITH_ARENAS = 2
_BATCH_NAMES = ("batch", "batch_size", "batchsize", "bs", "n", "b")
_SIGNIFICANT_DIGITS = 4


@dataclass(frozen=True)
class Offer:
    """A budget with a plan.

    Attributes:
        budget_bytes: the budget; without resident bytes for an arena.
        overhead: overhead of the plan.
    """

    budget_bytes: int
    overhead: float


@dataclass(frozen=True)
class BatchOffer:
    """A batch size that fits.

    Attributes:
        dim: name of the dimension.
        size: its value.
        overhead: overhead of the plan, or of the plain run if that fits.
    """

    dim: str
    size: int
    overhead: float


def budget_offer(prepared: Prepared, refusal: Solution, request: Request, observe: Observer) -> Offer:
    """Return the smallest of a few larger budgets at which the model holds.

    Args:
        prepared: the graph.
        refusal: the result at the budget that is too small.
        request: the request for plans.
        observe: receives each try.
    """
    outside_bytes = request.outside_arena(prepared.graph)
    failing = refusal.problem.budget.device_bytes - outside_bytes
    best = Offer(round_up(plain_need(prepared, request, observe)), 0.0)
    guess = _closest(refusal, outside_bytes) or refusal.working_set.bytes - outside_bytes
    hurried = _in_haste(request)
    for _ in range(_TRIES_WITH_ARENAS if request.holds_more_than_peak else _TRIES):
        if not failing < guess < best.budget_bytes:
            guess = (failing + best.budget_bytes) // 2
        budget = round_up(guess)
        if not failing < budget < best.budget_bytes:
            break
        observe.phase(f"looking for a budget that fits: {format_bytes(budget)}")
        tried = uninterrupted(plan(prepared, hurried.at(budget), observe))
        if tried.overhead is None:
            failing = budget
            guess = _closest(tried.solution, outside_bytes)
        else:
            best = Offer(budget, tried.overhead)
            guess = 0
    return best


def _closest(refusal: Solution, uncounted_bytes: int) -> int:
    """Return the smallest known budget of a run, or 0.

    Bytes beside an arena are left out.
    """
    if refusal.closest_arena_bytes is not None:
        return refusal.closest_arena_bytes
    if refusal.closest_reserved_bytes is not None:
        return refusal.closest_reserved_bytes
    return 0 if refusal.closest is None else refusal.closest.peak_bytes - uncounted_bytes


def plain_need(prepared: Prepared, request: Request, observe: Observer) -> int:
    """Return the budget of the plain run, in bytes.

    For an arena, this is the smallest one found.
    """
    needed = baseline_of(prepared.graph).peak_bytes
    if request.holds_more_than_peak:
        smallest = replace(request, budget=BudgetSpec(smallest=True))
        needed = plain_planning(prepared, smallest, observe).solution.needed_bytes or needed
    return needed - request.outside_arena(prepared.graph)


def plain_planning(prepared: Prepared, request: Request, observe: Observer) -> Planning:
    """Return the plain run as the plan, or the refusal if it does not fit."""
    request = replace(request, planner=PlannerChoice("keep_all"), max_overhead=None, split=False)
    return uninterrupted(plan(prepared, request, observe))


def batch_offer(
    model: ModelCheck, resident_bytes: int, needed_bytes: int, limit_bytes: int, observe: Observer
) -> BatchOffer | None:
    """Return a smaller batch with which the model holds, or None.

    Args:
        model: the model and its limits.
        resident_bytes: the part of the next two figures that does not depend on the batch.
        needed_bytes: bytes that the model needs now.
        limit_bytes: bytes that the model may need.
        observe: receives each try.
    """
    smaller = _smaller_batch(model, resident_bytes, needed_bytes, limit_bytes)
    if smaller is None:
        return None
    name, graph = smaller
    observe.phase("looking for a batch that fits")
    overhead = _overhead_of(graph, model, limit_bytes, observe)
    return None if overhead is None else BatchOffer(name, graph.dims[name], overhead)


def eager_batch_offer(model: ModelCheck, eager: EagerReplay, limit_bytes: int, observe: Observer) -> BatchOffer | None:
    """Return a smaller batch with which a PyTorch step fits without a plan, or None."""
    resident_bytes = eager.graph.resident_bytes + eager.prepared.parameter_bytes
    smaller = _smaller_batch(model, resident_bytes, eager.peak_bytes, limit_bytes)
    if smaller is None:
        return None
    name, graph = smaller
    observe.phase("looking for a batch that fits")
    try:
        tried = eager_run(model.path, graph)
    except RematError:
        return None  # not every model takes every batch
    return BatchOffer(name, graph.dims[name], 0.0) if tried is not None and tried.peak_bytes <= limit_bytes else None


def _smaller_batch(
    model: ModelCheck, resident_bytes: int, needed_bytes: int, limit_bytes: int
) -> tuple[str, GraphOptions] | None:
    """Return the batch's dim, and the options with a smaller batch that may fit; None without either."""
    name = next((dim for dim in model.graph.dims if dim.lower() in _BATCH_NAMES), None)
    if name is None:
        return None
    batch = model.graph.dims[name]
    smaller = min(batch - 1, batch * (limit_bytes - resident_bytes) // max(1, needed_bytes - resident_bytes))
    return None if smaller < 1 else (name, replace(model.graph, dims={**model.graph.dims, name: smaller}))


def _overhead_of(graph: GraphOptions, model: ModelCheck, limit_bytes: int, observe: Observer) -> float | None:
    """Return the overhead with which the model holds at this batch.

    None if the model does not hold.
    """
    try:
        prepared = prepare(model.path, graph)
    except RematError:
        return None  # not every model takes every batch
    if plain_planning(prepared, model.request.at(limit_bytes), observe).trace is not None:
        return 0.0
    if model.request.budget is None:
        return None
    return plan_overhead(prepared, model.request.at(limit_bytes), observe)


def plan_overhead(prepared: Prepared, request: Request, observe: Observer) -> float | None:
    """Return the overhead of a plan from a short search, or None."""
    try:
        return uninterrupted(plan(prepared, _in_haste(request), observe)).overhead
    except PlannerRefuses:
        return None


def uninterrupted(planning: Planning) -> Planning:
    """Return the planning if its search ran to the end.

    A check of an interrupted search would not be repeatable.

    Raises:
        KeyboardInterrupt: the search was interrupted.
    """
    if planning.solution.interrupted:
        raise KeyboardInterrupt
    return planning


def _in_haste(request: Request) -> Request:
    """Return the request with lower limits.

    All tries together take no longer than the check itself.
    """
    options = request.chosen.all_options()
    limits = {name: options.get(name) for name in ("time_limit", "work_limit", "patience")}
    lower = {name: limit / _TRIES for name, limit in limits.items() if limit is not None}
    return replace(request, planner=request.chosen.with_options(lower))


def round_up(size: int) -> int:
    """Round a size up to four significant digits."""
    step = int(10 ** max(0, len(str(size)) - _SIGNIFICANT_DIGITS))
    return -(-size // step) * step


def written(size: int) -> str:
    """Write a size for a project file, rounded up."""
    number, unit = format_bytes(round_up(size)).split()
    return (number.rstrip("0").rstrip(".") if "." in number else number) + unit
