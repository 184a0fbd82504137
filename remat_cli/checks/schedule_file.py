"""Checks of a schedule file against its graph.

`verify`, `apply` and `report` begin with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from math import isclose
from pathlib import Path
from typing import Any

from remat_cli.allocation.cuda import reserved_bytes
from remat_cli.config import Document, GraphOptions, said_in, shipped_names
from remat_cli.core.arena import check_arena
from remat_cli.core.link import Link
from remat_cli.core.problem import Basis, Scope, Status
from remat_cli.core.simulate import Trace, simulate
from remat_cli.core.solve import baseline_of, bytes_of_budget, share_over
from remat_cli.errors import GraphError, InvalidSchedule, ScheduleFileError, UsageError
from remat_cli.formats import has_fixed_sizes
from remat_cli.formats.native import graph_sha256
from remat_cli.formats.schedule_json import ScheduleFile
from remat_cli.planners import PLANNERS
from remat_cli.planning.given import MAKERS
from remat_cli.prepare import Prepared, link_of, prepare
from remat_cli.settings import Said, Setting, declared, listed, over
from remat_cli.units import BudgetSpec, exact_bytes, meant_as_share

# the options of the link to the host
_OF_LINK = ("link_bandwidth", "link_duplex")


def as_planned(said: Said, file: ScheduleFile) -> GraphOptions:
    """Return the given options over those recorded in the schedule file.

    Raises:
        ScheduleFileError: the recorded options are not understood.
    """
    return with_recorded(said, file.mode, file.read_with)


def with_recorded(said: Said, mode: str | None, read_with: Mapping[str, Any] | None) -> GraphOptions:
    """Return the given options over those that a file records of its graph.

    Raises:
        ScheduleFileError: the recorded options are not understood.
    """
    return GraphOptions.of(over(_recorded(mode, read_with), said))


def _recorded(mode: str | None, read_with: Mapping[str, Any] | None) -> Said:
    document = Document({**(read_with or {}), "mode": mode}, "the schedule's graph.options")
    try:
        recorded, _ = said_in(document, GraphOptions)
    except UsageError as error:
        raise ScheduleFileError(error.message, hint=error.remedy) from None
    # The author of a schedule does not choose the files that are read here.
    files = (str(name) for name in GraphOptions.of(recorded).files)
    if any(name not in shipped_names("configs/devices") for name in files):
        raise ScheduleFileError(
            "the schedule's graph.options name a file", hint="leave it out of them, and give it as an option"
        )
    return recorded


def taken_from_file(said: Said, used: GraphOptions) -> tuple[Setting, ...]:
    """Return the options that the schedule file gave, not the user."""
    return tuple(_beyond(used, GraphOptions.of(said)))


def _beyond(options: GraphOptions, others: GraphOptions) -> Iterator[Setting]:
    """Yield the options that make another graph than `others`.

    For a mapping, these are its entries.
    """
    for item in fields(GraphOptions):
        value, other = getattr(options, item.name), getattr(others, item.name)
        if isinstance(value, Mapping):
            value = {key: size for key, size in value.items() if other.get(key) != size}
        if value and value != other and declared(item).changes_graph:
            yield Setting(item.name, value)


def replay(graph: Path, said: Said, file: ScheduleFile, schedule: Path) -> tuple[Prepared, Trace]:
    """Replay a schedule file on its graph; return graph and measurement.

    Args:
        graph: the planned file.
        said: given settings for reading the graph; the schedule file has others.
        file: content of the schedule file.
        schedule: path of the schedule file, for messages.

    Raises:
        GraphError: the graph cannot be read, or the schedule was made for another graph or link.
        InvalidSchedule: a step breaks a rule.
    """
    prepared = _read_as_planned(graph, said, file)
    trace = _replayed(prepared, file, schedule, said)
    return replace(prepared, link=trace.link), trace


def _read_as_planned(graph: Path, said: Said, file: ScheduleFile) -> Prepared:
    planned, options = as_planned(said, file), GraphOptions.of(said)
    if graph.is_file() and has_fixed_sizes(graph):
        # The output of `remat convert` is the planned graph itself: costs and devices would be applied twice.
        link = {name: getattr(planned, name) for name in _OF_LINK}
        as_it_is = prepare(graph, replace(options, mode=planned.mode, **link))
        if file.sha256 in (None, graph_sha256(as_it_is.graph)):
            return as_it_is
        # These options are recorded for files with parameters, which JSON does not have.
        planned = replace(planned, optimizer=options.optimizer, accumulate=options.accumulate)
    return prepare(graph, planned)


def replay_on(prepared: Prepared, file: ScheduleFile, schedule: Path) -> Trace:
    """Replay a schedule on a prepared graph; otherwise as `replay`."""
    return _replayed(prepared, file, schedule, prepared.options.not_default)


def _replayed(prepared: Prepared, file: ScheduleFile, schedule: Path, said: Said) -> Trace:
    if file.sha256 is not None and file.sha256 != graph_sha256(prepared.graph):
        raise _other_graph(prepared, file, schedule)
    trace = simulate(prepared.graph, file.schedule, link=_link(prepared, file, schedule, said))
    if file.arena is not None:
        check_arena(prepared.graph, file.schedule, file.arena)
    return trace


def _link(prepared: Prepared, file: ScheduleFile, schedule: Path, said: Said) -> Link | None:
    """Return the link of the schedule file, or that of the options."""
    if file.link is None or file.link == prepared.link:
        return prepared.link
    unit = prepared.graph.time_unit
    recorded = link_of(prepared.graph, GraphOptions.of(_recorded(file.mode, file.read_with)))
    if recorded is not None and recorded != file.link:
        raise InvalidSchedule(
            f"the file says that its link moves {file.link.in_words(unit)}, but by the options in it, with which it "
            f"was planned, that is {recorded.in_words(unit)}",
            hint="the link or the options were changed after it was planned; plan again",
        )
    given = [Setting(name, said[name]) for name in _OF_LINK if name in said]
    if given:
        raise GraphError(
            f"{schedule} was planned for another link than the one that is given: {file.link.in_words(unit)}",
            hint=("leave out ", *listed(given), ": the schedule says what it was planned with"),
        )
    return file.link


def _other_graph(prepared: Prepared, file: ScheduleFile, schedule: Path) -> GraphError:
    """Return the error for a schedule of another graph.

    It names the options that differ.
    """
    what = f"{schedule} was made for another graph than {prepared.graph.name!r} with these options (sha256 differs)"
    if file.read_with is None:
        return GraphError(
            what,
            hint=(
                "give the options that it was planned with (",
                *listed(Setting(item.name) for item in fields(GraphOptions) if declared(item).changes_graph),
                "), or the file that 'remat convert' wrote with them",
            ),
        )
    used, recorded = prepared.options, GraphOptions.of(_recorded(file.mode, file.read_with))
    planned_with, read_with = listed(_beyond(recorded, used)), listed(_beyond(used, recorded))
    if not planned_with and not read_with:
        return GraphError(
            what,
            hint=(
                "the options are those that it was planned with: the graph's file has changed since, or is another "
                "one, or ",
                *(Setting("device"), " or ", Setting("measurements"), " named a file"),
            ),
        )
    if planned_with:
        differs = (": it was planned with ", *planned_with, *((", not ", *read_with) if read_with else ()))
    else:
        differs = (": it was planned without ", *read_with)
    return GraphError((what, *differs), hint="leave out what differs: the schedule says what it was planned with")


def budget_bytes(spec: BudgetSpec | None, file: ScheduleFile, prepared: Prepared) -> int | None:
    """Return the given budget, or the file's, or None.

    Raises:
        UsageError: "min" was asked for.
    """
    if spec is None:
        return file.budget_bytes
    if spec.smallest:
        raise UsageError(
            ("a schedule that is there cannot be held against ", Setting("budget", "min")),
            hint="give a size, such as 8GB, 80% or 60% of activations",
        )
    return bytes_of_budget(spec, prepared.undivided)


def broken_claims(file: ScheduleFile, prepared: Prepared, trace: Trace, budget: int | None) -> InvalidSchedule | None:
    """Compare the budget and the file's own figures with the replay.

    Return the error, or None if all agree.
    """
    step, broken = None, list(_false_claims(file, prepared, trace))
    hint = "the steps, the figures or the graph were changed after it was planned; plan again"
    if budget is not None and trace.peak_bytes > budget:
        step = trace.peak_step
        meant = meant_as_share(budget, baseline_of(prepared.undivided).peak_bytes)
        hint = hint if broken else meant or "plan again with this budget"
        above = f"{exact_bytes(trace.peak_bytes)}, is above the budget of {exact_bytes(budget)}"
        broken.insert(0, f"step {step}: the peak, {above}")
    broken.extend(_other_reserved(file, prepared, budget))
    arena = _arena_above(file, prepared, budget)
    if arena is not None:
        broken.append(arena)
    if file.sha256 is None:
        here = graph_sha256(prepared.graph)
        hint = hint if broken else f'if it was made for this one, add "graph": {{"sha256": "{here}"}} to the file'
        broken.append("the file does not say what graph it was made for: graph.sha256 is missing")
    if file.budget_bytes not in (None, budget) and trace.peak_bytes > file.budget_bytes:
        broken.append(f"the file says budget_bytes {file.budget_bytes}, but its peak is {trace.peak_bytes}")
    return InvalidSchedule("\n  ".join(broken), step=step, hint=hint) if broken else None


def _arena_above(file: ScheduleFile, prepared: Prepared, budget: int | None) -> str | None:
    """Return the error for an arena above the budget, or None.

    Resident bytes count with the arena; banks have no limit here.
    """
    if file.arena is None or file.arena.banks or budget is None:
        return None
    resident, total = prepared.graph.resident_bytes, prepared.graph.resident_bytes + file.arena.bytes
    if total <= budget:
        return None
    return f"the arena of {file.arena.bytes} bytes, beside {resident} resident ones, is above the budget of {budget}"


def _other_reserved(file: ScheduleFile, prepared: Prepared, budget: int | None) -> Iterator[str]:
    """Yield faults in the reserved bytes that a schedule file claims."""
    if file.allocator is None:
        return
    reserved = reserved_bytes(prepared.graph, file.schedule, file.allocator)
    if file.reserved_bytes not in (None, reserved):
        yield f"the file says reserved.bytes {file.reserved_bytes!r}, but the replay gives {reserved}"
    if budget is not None and reserved > budget:
        yield f"the {reserved} bytes that {file.allocator} reserves are above the budget of {budget}"


def _false_claims(file: ScheduleFile, prepared: Prepared, trace: Trace) -> Iterator[str]:
    """Yield each figure in the file that the replay contradicts."""
    graph, baseline = prepared.graph, baseline_of(prepared.undivided)
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
            yield f"the file says {place} {said!r}, but the replay gives {measured[place]!r}"
    overhead = share_over(trace.time, baseline.time)
    if file.overhead is not None and not _equal(file.overhead, overhead):
        yield f"the file says overhead {file.overhead}, but the replay gives {overhead}"
    yield from _unknown_names(file)
    yield from _false_proofs(file, overhead)


def _unknown_names(file: ScheduleFile) -> Iterator[str]:
    """Yield each unknown name of a planner, scope or basis in the file."""
    scopes = tuple(dict.fromkeys(scope.written for scope in Scope))
    if file.bound_scope is not None and file.bound_scope not in scopes:
        yield f"the file says bound.scope {file.bound_scope!r}, but there are only {', '.join(scopes)}"
    if file.bound_basis is not None and file.bound_basis not in list(Basis):
        yield f"the file says bound.basis {file.bound_basis!r}, but there are only {', '.join(Basis)}"
    is_own = file.planner in (*PLANNERS, *MAKERS)
    if file.planner is not None and not is_own and file.package is None:
        yield f"the file says planner.name {file.planner!r}, which is none of those that 'remat planners' lists"


def _false_proofs(file: ScheduleFile, overhead: float) -> Iterator[str]:
    """Yield each proof in the file that its own plan contradicts."""
    if file.bound_transfers and file.bound_scope != Scope.ANY_ORDER:
        yield f"the file says bound.transfers, but bound.scope {file.bound_scope!r}: that goes with {Scope.ANY_ORDER}"
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
    """Tell whether two shares are equal, up to another program's rounding."""
    return isclose(said, measured, rel_tol=1e-9, abs_tol=1e-9)
