"""Summaries for `--json`, except those of plans.

`planning/summary.py` makes the latter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Phase
from remat_cli.core.problem import Planner
from remat_cli.core.simulate import Trace
from remat_cli.core.solve import baseline_of, share_over
from remat_cli.formats.schedule_json import ScheduleFile, scope_columns
from remat_cli.planners import PLANNERS
from remat_cli.planning import Planning
from remat_cli.planning.parts import parts_summary
from remat_cli.planning.summary import Summary, graph_summary, trace_summary, working_set_summary
from remat_cli.prepare import Prepared
from remat_cli.reports.peak import tensors_at_peak
from remat_cli.reports.terminal.planner_cards import planner_cards
from remat_cli.reports.timeline import Run
from remat_cli.settings import Setting
from remat_cli.studies.eager import EagerReplay
from remat_cli.training import kept_by_module


def inspect_summary(prepared: Prepared) -> Summary:
    """Return the summary of `remat inspect`."""
    graph, kept = prepared.graph, prepared.kept
    plain, working_set = Run.plain(graph), largest_working_set(graph)
    counts = Counter(op.phase for op in graph.ops)
    updates = {"update": counts[Phase.UPDATE]} if counts[Phase.UPDATE] else {}
    return {
        "graph": graph_summary(prepared),
        "ops": {"forward": counts[Phase.FORWARD], "backward": counts[Phase.BACKWARD], **updates},
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
        **parts_summary(graph, plain.schedule, plain.trace),
        "at_peak": _at_peak(plain),
        "working_set": working_set_summary(working_set),
        "session": prepared.session or None,
        "notes": list(prepared.notes),
    }


def eager_figure(peak_bytes: int | None) -> Summary:
    """Return eager's peak for a summary; nothing where it is not known."""
    return {} if peak_bytes is None else {"eager_peak_bytes": peak_bytes}


def eager_summary(eager: EagerReplay) -> Summary:
    """Return the figures of a PyTorch step without a plan."""
    run = Run(eager.graph, eager.schedule, eager.trace)
    return {
        "peak_bytes": eager.peak_bytes,
        "peak_bytes_without_outputs": eager.let_go_bytes,
        "fixed_bytes": eager.graph.fixed_bytes,
        "time": eager.trace.time,
        "op_at_peak": run.peak_op,
        "at_peak": _at_peak(run),
        "kept_by_module": [asdict(part) for part in eager.kept_by_module],
    }


def _at_peak(run: Run) -> list[Summary]:
    return [{"tensor": tensor.name, "bytes": tensor.bytes, "op": tensor.producer} for tensor in tensors_at_peak(run)]


def budget_summary(planning: Planning) -> Summary:
    """Return the summary of `remat budget`.

    `found_bytes` is null if no budget gave a plan.
    """
    search = planning.search
    assert search is not None, "planned at a budget that was named"
    return {
        "graph": graph_summary(planning.prepared),
        "planner": planning.planner.name,
        "proven_bytes": search.proven_bytes,
        **scope_columns(search.scope),
        "found_bytes": search.found_bytes,
        "overhead": search.solution.overhead,
        "max_overhead": None if search.max_overhead is None else float(search.max_overhead),
        "interrupted": search.solution.interrupted,
        "plain_peak_bytes": search.solution.baseline.peak_bytes,
        "notes": list(planning.prepared.notes),
    }


def verify_summary(
    prepared: Prepared,
    trace: Trace,
    *,
    budget_bytes: int | None = None,
    taken: Sequence[Setting] = (),
    file: ScheduleFile | None = None,
) -> Summary:
    """Return the summary of `remat verify` on a schedule that replays.

    Args:
        prepared: the graph that the schedule is for.
        trace: the simulator's measurement.
        budget_bytes: budget of the schedule; None if unknown.
        taken: options that the schedule gave.
        file: content of the schedule file; its bound is passed on unchecked.
    """
    baseline = baseline_of(prepared.undivided)
    return {
        "graph": graph_summary(prepared),
        "options_from_schedule": {setting.name: setting.value for setting in taken},
        "budget_bytes": budget_bytes,
        "fits": None if budget_bytes is None else trace.peak_bytes <= budget_bytes,
        "baseline": {"peak_bytes": baseline.peak_bytes, "time": baseline.time},
        **trace_summary(trace),
        "overhead": share_over(trace.time, baseline.time),
        "unchecked_bound": None if file is None else _claimed_bound(file),
    }


def _claimed_bound(file: ScheduleFile) -> Summary | None:
    """Return the bound that a schedule file claims, or None.

    No replay can check this bound.
    """
    if file.bound_overhead is None:
        return None
    return {"overhead": file.bound_overhead, "scope": file.bound_scope, "basis": file.bound_basis}


def planners_summary(planners: Mapping[str, type[Planner]] = PLANNERS) -> Summary:
    """Return the summary of `remat planners`."""
    cards = planner_cards(planners)
    return {"planners": [{**asdict(card), "options": [asdict(option) for option in card.options]} for card in cards]}
