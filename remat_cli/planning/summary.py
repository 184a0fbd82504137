"""A verified result as JSON values.

The figures are those of the reports, with bytes and times as integers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from remat_cli.core.bounds import WorkingSet
from remat_cli.core.link import Direction
from remat_cli.core.problem import Status
from remat_cli.core.simulate import Trace
from remat_cli.core.solve import Solution
from remat_cli.formats.native import graph_sha256
from remat_cli.formats.schedule_json import link_fields, scope_columns, scope_fields
from remat_cli.prepare import Prepared

Summary = dict[str, Any]


def solution_summary(solution: Solution) -> Summary:
    """Return status, figures and proof of a verified result."""
    trace, result, closest = solution.trace, solution.result, solution.closest
    bounds = [
        {"overhead": solution.overhead_of(bound), **scope_fields(bound.scope), "basis": bound.basis.value}
        for bound in result.bounds
    ]
    return {
        "status": result.status.value,
        **scope_columns(solution.scope),
        "interrupted": solution.interrupted,
        "reason": result.reason,
        "budget_bytes": solution.problem.budget.device_bytes,
        "fixed_bytes": solution.problem.graph.fixed_bytes,
        "baseline": {"peak_bytes": solution.baseline.peak_bytes, "time": solution.baseline.time},
        **trace_summary(trace),
        "overhead": solution.overhead,
        "bound": bounds[0] if bounds else None,
        "bounds": bounds,
        "basis": solution.basis.value if bounds or result.status is Status.INFEASIBLE else None,
        "warnings": list(solution.warnings),
        "gap": solution.gap,
        "arena": arena_summary(solution),
        "reserved": reserved_summary(solution),
        "found_by": result.found_by,
        "model_figures": [asdict(figure) for figure in result.model_figures],
        "closest_peak_bytes": None if closest is None else closest.peak_bytes,
        "working_set": working_set_summary(solution.working_set),
    }


def arena_summary(solution: Solution) -> Summary | None:
    """Return the arena and the cost of fragmentation; None without addresses."""
    if solution.arena is None:
        return None
    return {
        "bytes": solution.arena.bytes,
        "alignment": solution.arena.alignment,
        "fragmentation_bytes": solution.fragmentation_bytes,
        "fragmentation_overhead": solution.fragmentation_overhead,
        "banks": [
            {"name": bank.name, "bytes": bank.bytes, "speed": float(bank.speed)} for bank in solution.arena.banks
        ],
    }


def reserved_summary(solution: Solution) -> Summary | None:
    """Return the reserved bytes of plan and plain run, or None."""
    if solution.reserved is None:
        return None
    return {
        "allocator": str(solution.reserved.allocator),
        "bytes": solution.reserved.bytes,
        "plain_bytes": solution.reserved.plain_bytes,
    }


def trace_summary(trace: Trace | None) -> Summary:
    """Return the measured costs of a schedule.

    Without a plan, the same keys have null.
    """
    if trace is None:
        return dict.fromkeys(("peak_bytes", "time", "idle_time", "recomputations", "recomputed_ops", "link"))
    return {
        "peak_bytes": trace.peak_bytes,
        "time": trace.time,
        "idle_time": trace.idle_time,
        "recomputations": trace.recomputations,
        "recomputed_ops": trace.recomputed_ops,
        "link": _link(trace),
    }


def _link(trace: Trace) -> Summary | None:
    """Return the transfers of a schedule; None without transfers.

    They are bytes in each direction, and the tensors, largest first.
    """
    if not trace.transfers or trace.link is None:
        return None
    ways = {
        direction.value.replace("-", "_"): {
            "transfers": sum(1 for transfer in trace.transfers if transfer.direction is direction),
            "bytes": trace.moved_bytes(direction),
            "busy_time": trace.busy_time(direction),
        }
        for direction in Direction
    }
    copies = Counter((transfer.bytes, transfer.tensor) for transfer in trace.transfers)
    largest_first = sorted(copies, key=lambda moved: (-moved[0], moved[1]))
    tensors = [{"tensor": name, "bytes": size, "copies": copies[(size, name)]} for size, name in largest_first]
    return {**link_fields(trace.link), **ways, "tensors": tensors}


def graph_summary(prepared: Prepared) -> Summary:
    """Return the identity of a graph: name, kind, mode, size, hash, times."""
    graph = prepared.graph
    return {
        "name": graph.name,
        "kind": graph.kind.value,
        "mode": prepared.mode,
        "ops": len(graph.ops),
        "sha256": graph_sha256(graph),
        "time_unit": graph.time_unit,
        "costs": prepared.costs,
        "estimated": prepared.is_estimated,
    }


def working_set_summary(working_set: WorkingSet) -> Summary:
    """Return the largest working set: bytes, op and tensors.

    No plan needs less memory.
    """
    return {"bytes": working_set.bytes, "op": working_set.op, "tensors": list(working_set.tensors)}
