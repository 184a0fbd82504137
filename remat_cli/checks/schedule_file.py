"""A schedule file held against the graph that it was made for: what `verify`, `apply` and `report` begin with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isclose
from pathlib import Path

from remat_cli.config import GraphOptions
from remat_cli.errors import GraphError, InvalidSchedule, UsageError
from remat_cli.formats.native import graph_sha256
from remat_cli.formats.schedule_json import ScheduleFile
from remat_cli.prepare import Prepared, prepare
from remat_cli.problem import Scope, Status
from remat_cli.simulate import Trace, simulate
from remat_cli.solve import baseline_of, share_over
from remat_cli.units import BudgetSpec, format_bytes


def with_mode(options: GraphOptions, mode: str | None) -> GraphOptions:
    """Return the options with this mode where none was given."""
    return replace(options, mode=mode) if options.mode is None else options


def replay(graph: Path, options: GraphOptions, file: ScheduleFile, schedule: Path) -> tuple[Prepared, Trace]:
    """Return the graph, and what the simulator measured of the schedule on it.

    Args:
        graph: the file that was planned.
        options: how it is read.
        file: what the schedule file says.
        schedule: its path, for messages.

    Raises:
        GraphError: the graph cannot be read, or is another one than the schedule was made for.
        InvalidSchedule: a step breaks a rule.
    """
    prepared = prepare(graph, options)
    return prepared, replay_on(prepared, file, schedule)


def replay_on(prepared: Prepared, file: ScheduleFile, schedule: Path) -> Trace:
    """Return what the simulator measured of a schedule on a graph that has been read; otherwise as `replay`."""
    if file.sha256 is not None and file.sha256 != graph_sha256(prepared.graph):
        raise GraphError(
            f"{schedule} was made for another graph than {prepared.graph.name!r} with these options (sha256 differs)",
            hint="give the options that it was planned with (--dim, --mode, --optimizer, --cost-model, --device, ...), "
            "or the file that 'remat convert' wrote with them",
        )
    return simulate(prepared.graph, file.schedule, bytes_per_time=prepared.bytes_per_time)


def budget_bytes(spec: BudgetSpec | None, file: ScheduleFile, prepared: Prepared) -> int | None:
    """Return what the peak is held against: what was asked for or else what the file names; None without either.

    Raises:
        UsageError: "min" was asked for.
    """
    if spec is None:
        return file.budget_bytes
    if spec.smallest:
        raise UsageError(
            "a schedule that is there cannot be held against --budget min", hint="give a size, such as 8GB or 80%"
        )
    return spec.bytes_of(baseline_of(prepared.graph).peak_bytes)


def broken_claims(file: ScheduleFile, prepared: Prepared, trace: Trace, budget: int | None) -> InvalidSchedule | None:
    """Hold what the file says of itself, and the budget, against the replay; None where all of it is so."""
    step, broken = None, list(_false_claims(file, prepared, trace))
    hint = "the steps, the figures or the graph were changed after it was planned; plan again"
    if budget is not None and trace.peak_bytes > budget:
        step = trace.peak_step
        hint = hint if broken else "plan again with this budget"
        above = f"{format_bytes(trace.peak_bytes)} ({trace.peak_bytes} bytes), is above the budget of"
        broken.insert(0, f"step {step}: the peak, {above} {format_bytes(budget)} ({budget} bytes)")
    if file.sha256 is None:
        here = graph_sha256(prepared.graph)
        hint = hint if broken else f'if it was made for this one, add "graph": {{"sha256": "{here}"}} to the file'
        broken.append("the file does not say what graph it was made for: graph.sha256 is missing")
    if file.budget_bytes not in (None, budget) and trace.peak_bytes > file.budget_bytes:
        broken.append(f"the file says budget_bytes {file.budget_bytes}, but its peak is {trace.peak_bytes}")
    return InvalidSchedule("\n  ".join(broken), step=step, hint=hint) if broken else None


def _false_claims(file: ScheduleFile, prepared: Prepared, trace: Trace) -> Iterator[str]:
    """Yield what the file says of graph and plan, and what is so instead."""
    graph, baseline = prepared.graph, baseline_of(prepared.graph)
    measured: dict[str, int | str] = {
        "graph.name": graph.name,
        "graph.kind": str(graph.kind),
        "graph.ops": len(graph.ops),
        "baseline.peak_bytes": baseline.peak_bytes,
        "baseline.time": baseline.time,
        "peak_bytes": trace.peak_bytes,
        "time": trace.time,
    }
    for place, said in file.figures.items():
        if said != measured[place]:
            yield f"the file says {place} {said!r}, but the replay comes to {measured[place]!r}"
    overhead = share_over(trace.time, baseline.time)
    if file.overhead is not None and not _equal(file.overhead, overhead):
        yield f"the file says overhead {file.overhead}, but the replay comes to {overhead}"
    yield from _false_proofs(file, overhead)


def _false_proofs(file: ScheduleFile, overhead: float) -> Iterator[str]:
    """Yield what the file says to be proven, and what its own plan shows instead."""
    if file.bound_scope is not None and file.bound_scope not in list(Scope):
        yield f"the file says bound.scope {file.bound_scope!r}, but there are only {', '.join(Scope)}"
    bound = file.bound_overhead
    if bound is not None and bound > overhead and not _equal(bound, overhead):
        yield f"the file says that no plan has less overhead than {bound}, but its own has {overhead}"
    # Every plan takes at least as long as the plain run.
    proven = max(0.0, bound or 0.0)
    if file.status == Status.OPTIMAL and proven < overhead and not _equal(proven, overhead):
        yield f"the file says status {file.status}, but its overhead, {overhead}, is above its bound, {bound}"
    if file.status not in (None, Status.OPTIMAL, Status.FEASIBLE):
        endings = f"{Status.OPTIMAL} or {Status.FEASIBLE}"
        yield f"the file says status {file.status!r}, but there is a plan, which makes it {endings}"


def _equal(said: float, measured: float) -> bool:
    """Tell whether two shares are the same but for how another program rounds in the last digits."""
    return isclose(said, measured, rel_tol=1e-9, abs_tol=1e-9)
