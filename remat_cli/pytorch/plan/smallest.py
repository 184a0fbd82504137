"""The smallest budget of a captured step, the same on an idle and on a busy machine."""

from __future__ import annotations

from dataclasses import replace

from remat_cli.core.graph import Graph
from remat_cli.planning import AnyPlan, Planning, Request, plan, plan_again
from remat_cli.prepare import Prepared

# Limit of work of each turn of a planner in a try, in about seconds, for graphs of up to so many ops; more for larger
# ones. On steps of 49 to 251 ops, three times as much found nothing smaller.
_WORK, _OPS = 0.3, 500
# Seconds after which a try ends in any case.
_SAFETY = 120.0


def plan_smallest(prepared: Prepared, request: Request, *, counts_work: bool) -> Planning:
    """Search for the smallest budget, and plan at it.

    Two things would lead to another budget each time: a clock that ends tries on a busy machine, and measured times of
    kernels, which decide where planners look. So the limit of a try is work, and ops count the bytes that they read and
    write for their time. The plan at the smallest budget is then made with the measured times.

    Args:
        prepared: the step with its measured kernels.
        request: the request for the smallest budget, with the time limit of one plan.
        counts_work: tries end by counted work, where their planner counts it in about seconds.
    """
    by_bytes = replace(prepared, graph=_timed_by_bytes(prepared.graph))
    search = plan(by_bytes, _by_work(prepared, request) if counts_work else request, AnyPlan())
    if search.schedule is None:
        return search
    known = plan_again(replace(search, request=request), prepared, search.schedule)
    planning = plan(prepared, request.at(search.budget_bytes))
    assert known.trace is not None
    is_better = planning.trace is not None and planning.trace.time <= known.trace.time
    return replace(known, solution=planning.solution) if is_better else known


def _by_work(prepared: Prepared, request: Request) -> Request:
    """Return the request with limits of work, where its planner counts about seconds."""
    chosen = request.chosen
    if not chosen.has("patience"):
        return request
    work = _WORK * max(1.0, len(prepared.graph.ops) / _OPS)
    limits = {"work_limit": work, "time_limit": max(_SAFETY, chosen.all_options()["time_limit"])}
    return replace(request, planner=chosen.with_options(limits))


def _timed_by_bytes(graph: Graph) -> Graph:
    """Return a graph whose ops take the bytes that they read and write for their time."""
    size = {name: tensor.bytes for name, tensor in graph.tensors.items()}
    ops = (op.edited(time=1 + sum(size[name] for name in (*op.inputs, *op.outputs))) for op in graph.ops)
    return graph.edited(ops=tuple(ops)).checked()
