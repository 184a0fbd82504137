"""Plans of one region that keep less and less between its passes: the points of a curve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from remat_cli.core.graph import BOUNDARY_TYPE, Graph, Phase
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.errors import DoesNotFit
from remat_cli.prepare import Prepared
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.plan.choice import WithinBudget
from remat_cli.pytorch.plan.region_choice import CurvePoint

# Shares of a plain region's kept memory, beyond the memory that every plan keeps.
_SHARES = (0.8, 0.6, 0.4, 0.2, 0.0)
_PLAN_SECONDS = 1.0  # for each plan of a region, by default


def curve_of(
    source: WithinBudget, prepared: Prepared, joint: Joint, given: Iterable[Schedule] | None = None
) -> list[CurvePoint]:
    """Return plans of a region that keep less and less, the plain one first.

    Args:
        source: source of plans for the region alone.
        prepared: graph of the region.
        joint: the captured region.
        given: schedules in place of new ones, if any.
    """
    outputs = sum(storage.bytes for storage in joint.returned)
    plain = CurvePoint.of(prepared.graph, plain_run(prepared.graph), outputs)
    floor = _kept_in_any_case(prepared.graph)
    if given is not None:
        return [plain, *map(plain.at, given)]
    points = [plain]
    for share in _SHARES:
        kept = floor + int(share * max(0, plain.kept - floor))
        schedule = _plan_that_keeps(source, prepared, kept + 2 * outputs, plain.planned.predicted_peak_bytes)
        if schedule is not None:
            points.append(plain.at(schedule))
    return points


def _plan_that_keeps(source: WithinBudget, prepared: Prepared, kept: int, peak: int) -> Schedule | None:
    """Return a plan of a region with a limit on kept bytes.

    `kept` bytes may stay between the passes, without memory from before.

    A planner knows one limit for all moments, so the boundary between the passes counts the rest as workspace.
    """
    graph, request = prepared.graph, source.request
    rest = peak - graph.fixed_bytes - kept
    ops = tuple(op.edited(workspace_bytes=max(0, rest)) if op.type == BOUNDARY_TYPE else op for op in graph.ops)
    chosen = request.chosen
    if chosen.has("time_limit") and "time_limit" not in chosen.options:
        request = replace(request, planner=chosen.with_options({"time_limit": _PLAN_SECONDS}))
    limited = replace(prepared, graph=graph.edited(ops=ops).checked())
    within = replace(source, request=request.at(peak))
    key = within.key(limited)
    try:
        return (within.kept(key, limited) or within.new_plan(key, limited)).schedule
    except DoesNotFit:
        return None


def _kept_in_any_case(graph: Graph) -> int:
    """Return the bytes that every plan keeps for the backward pass.

    No op may recompute these tensors.
    """
    read = {name for op in graph.ops if op.phase is Phase.BACKWARD for name in op.inputs}
    once = (op for op in graph.ops if op.phase is Phase.FORWARD and not op.recomputable and op.type != BOUNDARY_TYPE)
    return sum(graph.tensors[name].bytes for op in once for name in op.outputs if name in read)
