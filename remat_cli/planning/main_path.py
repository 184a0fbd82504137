"""The main path from a graph and a request to a `Planning`.

Command line, Python API, checks, batch, studies and PyTorch all use `plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from remat_cli.config import Request
from remat_cli.core.problem import Observer, Scope
from remat_cli.planning.one_graph import Planning, plan_graph
from remat_cli.planning.split_choice import plan_split
from remat_cli.prepare import Prepared
from remat_cli.splitting import Split


def plan(
    prepared: Prepared,
    request: Request,
    observe: Observer | None = None,
    *,
    former: Iterable[Mapping[str, Split]] = (),
) -> Planning:
    """Plan a graph for a request, and prove the plan by simulation.

    Overheads are over the plain run of the graph without parts.

    Args:
        prepared: the graph.
        request: the request with a budget; for "min", the smallest budget is searched. With split, regions of the graph
            may run in parts.
        observe: receives the planner's plans and bounds.
        former: with split, cuts of other plans of this model, which are tried first.

    Raises:
        UsageError: as `plan_graph`; or the graph cannot be split.
        PlannerRefuses: the planner cannot take this graph.
        FalseClaim: one of the planner's schedules does not run.
        KeyboardInterrupt: the planner was interrupted before it found a plan.
    """
    if not request.split:
        return plan_graph(prepared, request, observe)
    decomposes = prepared.options.is_decomposed  # parts are found among eager's ops all the same
    whole = prepared.in_parts({}) if decomposes else prepared
    planned_split = plan_split(prepared.in_parts, request, observe, prepared=whole, former=former)
    planning = planned_split.noted
    if decomposes and planning.schedule is not None and not planned_split.cuts and prepared.origin is not None:
        return plan_graph(prepared.origin.prepared, replace(request, split=False), observe)
    if planning.search is None:
        return planning
    # What no plan of one division fits, a plan of another may: all have the same bytes in memory from start to end.
    search = replace(planning.search, proven_bytes=prepared.graph.fixed_bytes, scope=Scope.ANY_PLAN)
    return replace(planning, search=search)
