"""Machine-readable summaries for `--json`: the same figures as the reports, bytes and times as integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from remat_cli.bounds import WorkingSet, largest_working_set
from remat_cli.formats.native import graph_sha256
from remat_cli.formats.schedule_json import link_fields, scope_columns, scope_fields
from remat_cli.graph import Phase
from remat_cli.link import Direction
from remat_cli.prepare import Prepared
from remat_cli.problem import Status
from remat_cli.reports.peak import tensors_at_peak
from remat_cli.reports.terminal.planner_cards import planner_cards
from remat_cli.reports.timeline import Run, recomputed_ops
from remat_cli.settings import Setting
from remat_cli.simulate import Trace
from remat_cli.solve import Solution, baseline_of, share_over
from remat_cli.studies.budget_search import SmallestBudget
from remat_cli.training import kept_by_module

Summary = dict[str, Any]


def plan_summary(solution: Solution, prepared: Prepared, *, planner: str, options: Mapping[str, object]) -> Summary:
    """Return the summary of `remat plan`; what there is none of is null.

    Args:
        solution: the verified result, with a plan or without.
        prepared: the graph that was planned.
        planner: name of the planner.
        options: all its options, as JSON values.
    """
    return {
        "graph": graph_summary(prepared),
        "planner": {"name": planner, "options": dict(options)},
        **solution_summary(solution),
        "notes": list(prepared.notes),
    }


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
        **_measured(trace),
        "overhead": solution.overhead,
        "bound": bounds[0] if bounds else None,
        "bounds": bounds,
        "basis": solution.basis.value if bounds or result.status is Status.INFEASIBLE else None,
        "warnings": list(solution.warnings),
        "gap": solution.gap,
        "found_by": result.found_by,
        "model_figures": [asdict(figure) for figure in result.model_figures],
        "closest_peak_bytes": None if closest is None else closest.peak_bytes,
        "working_set": _working_set(solution.working_set),
    }


def _measured(trace: Trace | None) -> Summary:
    if trace is None:
        return dict.fromkeys(("peak_bytes", "time", "idle_time", "recomputations", "recomputed_ops", "link"))
    return {
        "peak_bytes": trace.peak_bytes,
        "time": trace.time,
        "idle_time": trace.idle_time,
        "recomputations": trace.recomputations,
        "recomputed_ops": recomputed_ops(trace),
        "link": _link(trace),
    }


def _link(trace: Trace) -> Summary | None:
    """Return what moves over the link: each way, and of which tensors, the largest first; None where nothing does."""
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
    """Return what identifies a graph: name, kind, mode, size, hash, and what its times are."""
    graph = prepared.graph
    return {
        "name": graph.name,
        "kind": graph.kind.value,
        "mode": prepared.mode,
        "ops": len(graph.ops),
        "sha256": graph_sha256(graph),
        "time_unit": graph.time_unit,
        "costs": prepared.costs,
    }


def _working_set(working_set: WorkingSet) -> Summary:
    return {"bytes": working_set.bytes, "op": working_set.op, "tensors": list(working_set.tensors)}


def inspect_summary(prepared: Prepared) -> Summary:
    """Return the summary of `remat inspect`."""
    graph, kept = prepared.graph, prepared.kept
    plain, working_set = Run.plain(graph), largest_working_set(graph)
    backward = sum(1 for op in graph.ops if op.phase is Phase.BACKWARD)
    return {
        "graph": graph_summary(prepared),
        "ops": {"forward": len(graph.ops) - backward, "backward": backward},
        "types": dict(Counter(op.type for op in graph.ops)),
        "tensors": len(graph.tensors),
        "views": sum(1 for tensor in graph.tensors.values() if tensor.view_of is not None),
        "resident_bytes": graph.resident_bytes,
        "parameter_bytes": prepared.parameter_bytes,
        "optimizer": prepared.optimizer,
        "input_bytes": graph.fixed_bytes - graph.resident_bytes,
        "kept_for_backward": None
        if kept is None
        else {
            "float_bytes": kept.float_bytes,
            "integer_bytes": kept.integer_bytes,
            "by_module": [asdict(part) for part in kept_by_module(graph, kept)],
        },
        "plain": {"peak_bytes": plain.trace.peak_bytes, "time": plain.trace.time, "op_at_peak": plain.peak_op},
        "at_peak": [
            {"tensor": tensor.name, "bytes": tensor.bytes, "op": tensor.producer} for tensor in tensors_at_peak(plain)
        ],
        "working_set": _working_set(working_set),
        "notes": list(prepared.notes),
    }


def budget_summary(search: SmallestBudget, prepared: Prepared, *, planner: str) -> Summary:
    """Return the summary of `remat budget`; `found_bytes` is null where no budget gave a plan."""
    return {
        "graph": graph_summary(prepared),
        "planner": planner,
        "proven_bytes": search.proven_bytes,
        **scope_columns(search.scope),
        "found_bytes": search.found_bytes,
        "overhead": search.solution.overhead,
        "max_overhead": None if search.max_overhead is None else float(search.max_overhead),
        "interrupted": search.solution.interrupted,
        "plain_peak_bytes": baseline_of(prepared.graph).peak_bytes,
        "notes": list(prepared.notes),
    }


def verify_summary(
    prepared: Prepared, trace: Trace, *, budget_bytes: int | None = None, taken: Sequence[Setting] = ()
) -> Summary:
    """Return the summary of `remat verify` on a schedule that replays."""
    baseline = baseline_of(prepared.graph)
    return {
        "graph": graph_summary(prepared),
        "options_from_schedule": {setting.name: setting.value for setting in taken},
        "budget_bytes": budget_bytes,
        "fits": None if budget_bytes is None else trace.peak_bytes <= budget_bytes,
        "baseline": {"peak_bytes": baseline.peak_bytes, "time": baseline.time},
        **_measured(trace),
        "overhead": share_over(trace.time, baseline.time),
    }


def planners_summary() -> Summary:
    """Return the summary of `remat planners`."""
    return {
        "planners": [
            {**asdict(card), "options": [asdict(option) for option in card.options]} for card in planner_cards()
        ]
    }
