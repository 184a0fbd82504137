"""Reports of plans, schedules, graphs and planners.

The functions return rich renderables, and print nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from remat_cli.config import PlannerChoice, ReportOptions
from remat_cli.core.bounds import WorkingSet, largest_working_set
from remat_cli.core.graph import BOUNDARY_TYPE, Graph, Phase
from remat_cli.core.problem import Planner, Status
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import Trace
from remat_cli.core.solve import Solution
from remat_cli.formats.schedule_json import ScheduleFile
from remat_cli.planners import PLANNERS
from remat_cli.planning import Planning
from remat_cli.planning.parts import PARTS, memory_parts
from remat_cli.prepare import Prepared
from remat_cli.reports import phrasing
from remat_cli.reports.safe_text import Name, Report, clean, shorten, shorten_path
from remat_cli.reports.terminal.comparison import Row, comparison_rows, plain_rows
from remat_cli.reports.terminal.layout import QUIET_STYLE, Cell, bullets, columns, facts, indented, section
from remat_cli.reports.terminal.memory_chart import MemoryTimeline, StaysBar
from remat_cli.reports.terminal.peak_table import PeakTable
from remat_cli.reports.terminal.planner_cards import PlannerCard, planner_cards
from remat_cli.reports.timeline import Run
from remat_cli.reports.transfers import moved_tensors
from remat_cli.settings import Setting, on_command_line
from remat_cli.studies.eager import EagerReplay
from remat_cli.training import KeptOfModule, kept_by_module
from remat_cli.units import format_bytes, format_share, format_time

_LONGEST_NAME = 40
_LONGEST_IN_HEADING = 32
_LONGEST_TYPE = 20
_LONGEST_MODULE = 24
_LONGEST_PLACE = 22
_MOST_TYPES = 8
_MOST_MOVED = 5
STATUS_STYLES = {
    Status.OPTIMAL: "green",
    Status.FEASIBLE: "green",
    Status.INFEASIBLE: "red",
    Status.UNKNOWN: "yellow",
}


def plan_report(
    planning: Planning,
    *,
    shown: ReportOptions | None = None,
    next_steps: Sequence[str] = (),
    seconds: Mapping[str, float] | None = None,
    eager_peak_bytes: int | None = None,
) -> Report:
    """Return the report of `remat plan`.

    Args:
        planning: the verified result, with a plan or without.
        shown: parts to show; by default all.
        next_steps: uses of the plan.
        seconds: times of the call's stages, shown for a long call.
        eager_peak_bytes: peak of a PyTorch step without a plan; None where it is not known.
    """
    solution, prepared = planning.solution, planning.prepared
    title = facts([*eager_fact(eager_peak_bytes), *plan_facts(solution, prepared, planning.planner)])
    verdict = Text(
        phrasing.verdict(solution, estimated=prepared.is_estimated), f"bold {STATUS_STYLES[solution.status]}"
    )
    why = why_there_is_no_plan(solution, prepared.optimizer)
    findings = _findings(solution, shown or ReportOptions(), estimated=prepared.is_estimated)
    steps = [section("Next", bullets(next_steps))] if next_steps else []
    spent = _spent(phrasing.time_spent(seconds or {}))
    return Report(title, verdict, *why, *findings, *spent, *notes_section(prepared.notes), *steps)


def _spent(said: str) -> list[RenderableType]:
    return [Text(said, "dim")] if said else []


def eager_fact(peak_bytes: int | None) -> list[tuple[str, Cell]]:
    """Return the row on eager's peak; none where it is not known."""
    if peak_bytes is None:
        return []
    said = "without a plan; 'plain' below is the captured step's run"
    return [("eager", _titled(format_bytes(peak_bytes), said))]


def plan_facts(solution: Solution, prepared: Prepared, planner: PlannerChoice) -> list[tuple[str, Cell]]:
    """Return rows on graph, planner and budget."""
    budget = solution.problem.budget.device_bytes
    share = phrasing.share_of_plain_peak(budget, solution.baseline.peak_bytes, solution.problem.graph)
    if solution.uncounted_bytes:
        sizes = map(format_bytes, (budget - solution.uncounted_bytes, solution.uncounted_bytes))
        share = "{} for the arena, {} of resident bytes beside it".format(*sizes)
    return [*_subject(prepared, planner), ("budget", _titled(format_bytes(budget), share))]


def _subject(prepared: Prepared, planner: PlannerChoice) -> list[tuple[str, Cell]]:
    """Return rows on graph and planner."""
    chosen = ", ".join(f"{key} {shorten(str(value), _LONGEST_NAME)}" for key, value in planner.options.items())
    return [
        ("graph", graph_title(prepared)),
        ("times", clean(prepared.costs)),
        ("planner", _titled(clean(planner.name), chosen)),
    ]


def graph_title(prepared: Prepared) -> Text:
    """Return name, kind and size of a graph, and that sizes in it are estimated."""
    return _titled(shorten(prepared.graph.name, _LONGEST_NAME), phrasing.kind_and_size(prepared))


def _titled(name: str, more: str) -> Text:
    return Text.assemble((name, "bold"), f" · {more}" if more else "")


def why_there_is_no_plan(solution: Solution, optimizer: str | None) -> list[RenderableType]:
    """Return sections with reasons and remedies; none with a plan."""
    said = {"Why": phrasing.reasons(solution), "What could be done": phrasing.remedies(solution, optimizer)}
    return [section(title, bullets(sentences)) for title, sentences in said.items() if sentences]


def _findings(solution: Solution, shown: ReportOptions, *, estimated: bool) -> list[RenderableType]:
    """Return table, chart and tensors of the plan or the closest run."""
    plain, (name, run) = Run.plain(solution.plain_graph), shown_run(solution)
    budget = solution.problem.budget.device_bytes
    parts: list[RenderableType] = [_comparison(name, plan_rows(solution, estimated=estimated))]
    if shown.timeline and run is None:
        parts.append(_chart(MemoryTimeline(plain, budget_bytes=budget), "plain run"))
    elif shown.timeline and run is not None:
        parts.append(_chart(MemoryTimeline(run, behind=plain, budget_bytes=budget), name, "plain run"))
    if shown.largest and run is not None:
        parts += [*_by_part([plain, run]), _peak(plain, run, shown.largest), *_moved(run)]
    return parts


def _by_part(runs: Sequence[Run]) -> list[RenderableType]:
    headers, rows = part_rows(runs)
    return [section("Memory by part", columns(headers, rows, right=tuple(range(1, len(headers)))))] if rows else []


def part_rows(runs: Sequence[Run]) -> tuple[Sequence[str], list[Row]]:
    """Return parameters, gradients, optimizer state and activations of runs, as a table; no rows without residents."""
    parts = [memory_parts(run.graph, run.schedule, run.trace) for run in runs]
    if not all(parts):
        return (), []
    of_runs = ["at the peak", "at most"] if len(runs) == 1 else ["plain peak", "at most", "the plan's peak", "at most"]
    rows: list[Row] = []
    for part in PARTS:
        sizes = [
            size
            for run, of_run in zip(runs, parts, strict=True)
            for size in (of_run[part][run.trace.peak_step + 1], max(of_run[part]))
        ]
        rows.append([part, *map(format_bytes, sizes)])
    return ["", *of_runs], rows


def _comparison(name: str, rows: Sequence[Row]) -> RenderableType:
    return indented(columns(["", "plain run", name, ""], rows, right=(1, 2)))


def plan_rows(solution: Solution, *, estimated: bool = False) -> list[Row]:
    """Return the rows of the table of `remat plan`.

    They are those of `comparison_rows`, then the planner's own model, then the proof.
    """
    plain, (_, run) = Run.plain(solution.plain_graph), shown_run(solution)
    budget = solution.problem.budget.device_bytes
    rows = plain_rows(plain, budget) if run is None else comparison_rows(plain, run, budget)
    return (
        rows
        + _reserved_rows(solution)
        + _arena_rows(solution)
        + _model_rows(solution)
        + _proof_rows(solution, estimated=estimated)
    )


def _reserved_rows(solution: Solution) -> list[Row]:
    """Return the rows for reserved bytes and their cost; none without an allocator."""
    reserved = solution.reserved
    if reserved is None:
        return []
    sizes = map(format_bytes, (reserved.plain_bytes, reserved.bytes))
    rows: list[Row] = [["reserved", *sizes, f"by {reserved.allocator}, as its rules have it; untried on a GPU"]]
    if solution.fragmentation_overhead:
        share = format_share(solution.fragmentation_overhead)
        rows.append(["", "", share, "more time than the fastest plan found whose peak fits"])
    return rows


def _arena_rows(solution: Solution) -> list[Row]:
    """Return rows on the arena and fragmentation; none without addresses."""
    if solution.arena is None or solution.fragmentation_bytes is None:
        return []
    said = (
        "in the banks; resident bytes lie beside them"
        if solution.arena.banks
        else "one block; resident bytes lie beside it"
    )
    rows: list[Row] = [["arena", "", format_bytes(solution.arena.bytes), said]]
    for bank in solution.arena.banks:
        rows.append([f"  {clean(bank.name)}", "", format_bytes(bank.bytes), f"speed {float(bank.speed):g}"])
    beyond = format_bytes(solution.fragmentation_bytes)
    rows.append(["fragmentation", "", beyond, "of the arena, beyond the most that lies in it at once"])
    if solution.fragmentation_overhead:
        share = format_share(solution.fragmentation_overhead)
        rows.append(["", "", share, "more time than the fastest plan found whose sum fits"])
    return rows


def shown_run(solution: Solution) -> tuple[str, Run | None]:
    """Return the plan, or the closest run found, with its name.

    A report shows it beside the plain run.
    """
    graph, result = solution.problem.graph, solution.result
    if result.schedule is not None and solution.trace is not None:
        return "plan", Run(graph, result.schedule, solution.trace)
    if result.closest is not None and solution.closest is not None:
        return "closest", Run(graph, result.closest, solution.closest)
    return "", None


def _model_rows(solution: Solution) -> list[Row]:
    """Return rows on figures of the planner's own model."""
    unit = solution.problem.graph.time_unit
    return [
        [
            figure.name,
            "",
            format_bytes(figure.value) if figure.unit == "bytes" else format_time(figure.value, unit),
            "by the method's own model",
        ]
        for figure in solution.result.model_figures
    ]


def _proof_rows(solution: Solution, *, estimated: bool) -> list[Row]:
    """Return rows on the proof: bound, gap, scope and status."""
    rows: list[Row] = []
    of_sizes = ", of estimated sizes" if estimated else ""
    scope, overhead = solution.scope, solution.bound_overhead
    if overhead is not None:
        rows.append(["bound", "", format_share(overhead), "no plan has less overhead"])
    if solution.gap is not None:
        rows.append(["gap", "", format_share(solution.gap), "the most that a better plan could save"])
    if overhead is not None or solution.status is Status.INFEASIBLE:
        rows.append(["scope", "", scope.written, f"holds for all plans {phrasing.which_plans(solution)}"])
        basis = solution.basis
        rows.append(["proof", "", basis.value.replace("-", " "), phrasing.BASES[basis] + of_sizes])
    for bound in solution.result.bounds[1:]:
        share = format_share(solution.overhead_of(bound))
        rows.append(["also proven", "", share, phrasing.also_proven(solution, bound)])
    if solution.trace is None:
        least = format_bytes(solution.working_set.bytes)
        rows.append(["hard limit", "", least, "no plan in any order needs less"])
    if solution.result.found_by is not None:
        rows.append(["found by", "", clean(solution.result.found_by), "the planner whose plan is the best"])
    status = Text(solution.status.value, STATUS_STYLES[solution.status])
    proven = of_sizes if solution.status in (Status.OPTIMAL, Status.INFEASIBLE) else ""
    return [*rows, ["status", "", status, phrasing.status_in_words(solution) + proven]]


def _chart(chart: MemoryTimeline, run: str, behind: str = "") -> RenderableType:
    heading = Text.assemble(("Memory over time", "bold"), "   ", chart.legend(run, behind))
    return Group(heading, indented(chart))


def _peak(plain: Run, plan: Run | None, largest: int, whose: str = "the plain run's") -> RenderableType:
    at = "the start" if plain.peak_op is None else f"op {shorten(plain.peak_op, _LONGEST_IN_HEADING)}"
    return section(f"Largest tensors at {whose} peak ({at})", PeakTable(plain, plan, largest))


def _moved(run: Run) -> list[RenderableType]:
    """Return a section on the largest tensors moved to the host.

    There is none without transfers.
    """
    moved = moved_tensors(run)
    if not moved:
        return []
    rows: list[Row] = [
        [Name(tensor.name), format_bytes(tensor.bytes), f"{tensor.copies:,}", StaysBar(run, tensor.away)]
        for tensor in moved[:_MOST_MOVED]
    ]
    if rest := moved[_MOST_MOVED:]:
        size, copies = sum(tensor.bytes for tensor in rest), sum(tensor.copies for tensor in rest)
        rows.append([f"and {len(rest):,} more", format_bytes(size), f"{copies:,}", ""])
    table = columns(["tensor", "size", "copies", "only on the host"], rows, right=(1, 2))
    return [section("Largest tensors moved to the host", table)]


def notes_section(notes: Sequence[str]) -> list[RenderableType]:
    """Return a section with notes, if any."""
    return [section("Notes", bullets([clean(note) for note in notes]))] if notes else []


def eager_report(eager: EagerReplay, *, shown: ReportOptions | None = None) -> Report:
    """Return the first part of the report of `remat inspect` on a PyTorch step: what it takes without a plan."""
    shown = shown or ReportOptions()
    run = Run(eager.graph, eager.schedule, eager.trace)
    parts: list[RenderableType] = [
        facts([("step", graph_title(eager.prepared)), *_counts(eager.graph), ("times", clean(eager.prepared.costs))]),
        section("Eager: without a plan", columns(["", "", ""], _eager_rows(eager, run), right=(1,))),
    ]
    if shown.timeline:
        parts.append(_chart(MemoryTimeline(run), "eager"))
    if shown.largest:
        parts += [_peak(run, None, shown.largest, "eager's"), *_kept_by_module(eager.kept_by_module, shown.largest)]
    return Report(*parts)


def _eager_rows(eager: EagerReplay, run: Run) -> list[Row]:
    rows: list[Row] = [["peak", format_bytes(eager.peak_bytes), _at(run)]]
    fixed = eager.graph.fixed_bytes
    what = "parameters, gradients from before, inputs" if eager.prepared.options.accumulate else "parameters, inputs"
    optimizer = f", state of optimizer {clean(eager.prepared.optimizer)}" if eager.prepared.optimizer else ""
    return [*rows, ["there before", format_bytes(fixed), what + optimizer]]


def inspect_report(
    prepared: Prepared,
    *,
    eager: EagerReplay | None = None,
    shown: ReportOptions | None = None,
    seconds: Mapping[str, float] | None = None,
) -> Report:
    """Return the report of `remat inspect`.

    Args:
        prepared: the prepared graph.
        eager: eager's run of a PyTorch step, reported before; the graph is the captured step.
        shown: parts to show; by default all.
        seconds: times of the call's stages, shown for a long call.
    """
    shown = shown or ReportOptions()
    graph = prepared.graph
    plain, working_set = Run.plain(graph), largest_working_set(graph)
    room = [
        phrasing.working_set_in_words(graph, working_set),
        phrasing.room_in_words(plain.trace.peak_bytes, working_set),
    ]
    parts: list[RenderableType] = [
        facts(
            [
                ("graph", graph_title(prepared)),
                *_counts(graph),
                ("times", clean(prepared.costs)),
            ]
        ),
        section("Bytes", columns(["", "", ""], _sizes(prepared), right=(1,))),
        section(
            "The plain run" if eager is None else "The captured step's plain run: what a plan at 100 % takes",
            columns(["", "", ""], _limits(plain, working_set), right=(1,)),
            *([Text(prepared.session, "dim")] if prepared.session else []),
        ),
    ]
    if shown.timeline and eager is None:
        parts.append(_chart(MemoryTimeline(plain), "plain run"))
    if shown.largest and eager is None:
        kept = () if prepared.kept is None else kept_by_module(graph, prepared.kept)
        parts += [*_by_part([plain]), _peak(plain, None, shown.largest), *_kept_by_module(kept, shown.largest)]
    spent = _spent(phrasing.time_spent(seconds or {}, phrasing.LONG_LOOK_SECONDS))
    return Report(*parts, section("Room for a plan", bullets(room)), *spent, *notes_section(prepared.notes))


def _counts(graph: Graph) -> list[tuple[str, Cell]]:
    counts = Counter(op.phase for op in graph.ops)
    passes = [f"{counts[phase]:,} {phase}" for phase in Phase if counts[phase]]
    views = sum(1 for tensor in graph.tensors.values() if tensor.view_of is not None)
    types = Counter(op.type or "without a type" for op in graph.ops)
    common = [f"{shorten(type_, _LONGEST_TYPE)} {count:,}" for type_, count in types.most_common(_MOST_TYPES)]
    if len(types) > _MOST_TYPES:
        common.append(f"{len(types) - _MOST_TYPES:,} more types")
    return [
        ("ops", ", ".join(passes) if counts[Phase.BACKWARD] else f"{len(graph.ops):,}"),
        ("types", ", ".join(common)),
        ("tensors", f"{len(graph.tensors):,}" + (f", {views:,} of them views" if views else "")),
    ]


def _sizes(prepared: Prepared) -> list[Row]:
    graph, kept = prepared.graph, prepared.kept
    written = dict.fromkeys(Phase, 0)
    for name, op in graph.producer.items():
        written[op.phase] += graph.tensors[name].bytes
    state = sum(graph.tensors[name].bytes for name in graph.residents)
    rows: list[Row] = [
        ["resident", format_bytes(graph.resident_bytes), _resident(prepared)],
        *_resident_rows(state),
        ["graph inputs", format_bytes(graph.fixed_bytes - graph.resident_bytes - state), _inputs(prepared)],
        ["activations", format_bytes(written[Phase.FORWARD]), "all that forward ops make"],
    ]
    if written[Phase.BACKWARD]:
        rows.append(["gradients", format_bytes(written[Phase.BACKWARD]), "all that backward ops make"])
    if kept is not None:
        parts = f"floats {format_bytes(kept.float_bytes)}, indices and masks {format_bytes(kept.integer_bytes)}"
        rows.append(["kept for backward", format_bytes(kept.float_bytes + kept.integer_bytes), parts])
    return rows


def _resident_rows(size: int) -> list[Row]:
    what = "parameters and optimizer state, which may wait on the host"
    return [["residents", format_bytes(size), what]] if size else []


def _kept_by_module(parts: Sequence[KeptOfModule], most: int) -> list[RenderableType]:
    """Return a section on the saved tensors of each module.

    There is none if modules are unknown.
    """
    if not parts:
        return []
    whole = max(1, sum(part.bytes for part in parts))

    def row(name: str, size: int, tensors: int, source: str) -> Row:
        return [name, format_bytes(size), format_share(size / whole), f"{tensors:,}", source]

    rows = [
        row(
            shorten_path(part.module or "(none)", _LONGEST_MODULE),
            part.bytes,
            part.tensors,
            shorten_path(part.source or "", _LONGEST_PLACE),
        )
        for part in parts[:most]
    ]
    if rest := parts[most:]:
        size, tensors = sum(part.bytes for part in rest), sum(part.tensors for part in rest)
        rows.append(row(f"and {len(rest):,} more", size, tensors, ""))
    table = columns(["module", "size", "of all", "tensors", "largest made at"], rows, right=(1, 2, 3))
    return [section("Kept for the backward pass, by module", table)]


def _resident(prepared: Prepared) -> str:
    """Return the content of resident bytes, as far as known."""
    if not prepared.parameter_bytes:
        return phrasing.resident_in_words(prepared.graph)
    if _is_captured(prepared.graph) and prepared.graph.residents:
        return "unread parameters"
    if _is_captured(prepared.graph):
        return f"state of optimizer {clean(prepared.optimizer or '')}, unread parameters"
    if prepared.options.ranks is not None:
        return f"optimizer {clean(prepared.optimizer or '')} of this rank's shards, constants"
    if prepared.graph.residents:
        return "constants"
    parameters = f"parameters {format_bytes(prepared.parameter_bytes)}"
    if prepared.optimizer is None:
        return f"{parameters}, constants"
    return f"{parameters}, as much for gradients; optimizer {clean(prepared.optimizer)}"


def _inputs(prepared: Prepared) -> str:
    if prepared.parameter_bytes and _is_captured(prepared.graph) and not prepared.graph.residents:
        return f"always in memory; trained parameters {format_bytes(prepared.parameter_bytes)}"
    return "in memory from start to end"


def _is_captured(graph: Graph) -> bool:
    """Tell whether the graph is a captured training step.

    It has its parameters as inputs.
    """
    return any(op.type == BOUNDARY_TYPE for op in graph.ops)


def _at(run: Run) -> str:
    return "at the start" if run.peak_op is None else f"at op {shorten(run.peak_op, _LONGEST_NAME)}"


def _limits(plain: Run, working_set: WorkingSet) -> list[Row]:
    trace = plain.trace
    return [
        ["peak", format_bytes(trace.peak_bytes), _at(plain)],
        ["time", format_time(trace.time, plain.graph.time_unit), "every op once in the input order"],
        ["hard limit", format_bytes(working_set.bytes), "no plan in any order needs less"],
    ]


def budget_report(planning: Planning) -> Report:
    """Return the report of `remat budget`."""
    search, prepared = planning.search, planning.prepared
    assert search is not None, "planned at a budget that was named"
    plain_peak = search.solution.baseline.peak_bytes

    only = phrasing.WITHOUT_TRANSFERS if search.leaves_out_transfers else ""

    def row(label: str, size: int, remark: str) -> Row:
        return [label, format_bytes(size), f"{size:,}", format_share(size / max(1, plain_peak)), remark]

    rows = [
        row("plain run", plain_peak, "recomputes nothing"),
        row("proven", search.proven_bytes, f"none {search.scope.which_plans}{only} fits less"),
    ]
    if search.found_bytes is not None:
        overhead = format_share(search.solution.overhead or 0.0)
        rows.append(row("found", search.found_bytes, f"{overhead} time overhead"))
    table = columns(["", "budget", "bytes", "of plain", ""], rows, right=(1, 2, 3))
    verdict = Text(phrasing.smallest_budget(search), f"bold {STATUS_STYLES[search.solution.status]}")
    why = why_there_is_no_plan(search.solution, prepared.optimizer)
    subject = facts(_subject(prepared, planning.planner))
    return Report(subject, verdict, *why, indented(table), *notes_section(prepared.notes))


def verify_report(
    prepared: Prepared,
    schedule: Schedule,
    trace: Trace,
    *,
    budget_bytes: int | None = None,
    taken: Sequence[Setting] = (),
    link_taken: bool = False,
    file: ScheduleFile | None = None,
) -> Report:
    """Return the report of `remat verify` on a valid schedule.

    The schedule may still exceed the budget.

    Args:
        prepared: the graph that the schedule is for.
        schedule: the replayed schedule.
        trace: the simulator's measurement.
        budget_bytes: budget of the schedule; None if unknown.
        taken: options that the schedule gave.
        link_taken: whether the schedule gave the link, too.
        file: content of the schedule file; None if there is no file.
    """
    plain, run = Run.plain(prepared.undivided), Run(prepared.graph, schedule, trace)
    style = "red" if budget_bytes is not None and trace.peak_bytes > budget_bytes else "green"
    return Report(
        facts(
            [
                ("graph", graph_title(prepared)),
                ("schedule", f"{len(schedule.steps):,} steps"),
                *taken_facts(taken),
                *link_facts(run, taken=link_taken),
                *claim_facts(file),
            ]
        ),
        Text(phrasing.verdict_on_schedule(trace.peak_bytes, budget_bytes), f"bold {style}"),
        _comparison("schedule", comparison_rows(plain, run, budget_bytes)),
        _chart(MemoryTimeline(run, behind=plain, budget_bytes=budget_bytes), "schedule", "plain run"),
        *notes_section(prepared.notes),
    )


def claim_facts(file: ScheduleFile | None) -> list[tuple[str, Cell]]:
    """Return rows with the reserved bytes and the bound that a schedule file claims, if any."""
    rows: list[tuple[str, Cell]] = []
    if file is not None and file.allocator is not None and file.reserved_bytes is not None:
        rows.append(("reserved", f"{format_bytes(file.reserved_bytes)} by {file.allocator} · untried on a GPU"))
    if file is not None and file.bound_overhead is not None:
        over = f" · {file.bound_scope}" if file.bound_scope is not None else ""
        said = f"{format_share(file.bound_overhead)}{clean(over)} · the bound is the file's own word"
        rows.append(("bound", said))
    return rows


def taken_facts(taken: Sequence[Setting]) -> list[tuple[str, Cell]]:
    """Return a row with the options from a schedule, if any."""
    if not taken:
        return []
    return [("options", f"{clean(' '.join(map(on_command_line, taken)))} (from the schedule)")]


def link_facts(run: Run, *, taken: bool) -> list[tuple[str, Cell]]:
    """Return a row with the link of the replayed transfers, if any.

    It says whether the schedule gave the link.
    """
    link = run.trace.link
    if not run.trace.transfers or link is None:
        return []
    return [("link", link.in_words(run.graph.time_unit) + (" (from the schedule)" if taken else ""))]


def planners_report(planners: Mapping[str, type[Planner]] = PLANNERS) -> Report:
    """Return the report of `remat planners`: what each takes and searches, its source, its options and defaults."""
    return cards_report(planner_cards(planners))


def cards_report(cards: Sequence[PlannerCard]) -> Report:
    """Return a report with a section for each card."""
    return Report(*(_card_section(card) for card in cards))


def _card_section(card: PlannerCard) -> RenderableType:
    options = [[option.name, option.default, option.meaning] for option in card.options]
    labelled = [*([("package", card.package)] if card.package else []), *card.facts.items()]
    return section(
        card.name,
        Text(card.summary),
        facts([(label.lower(), text) for label, text in labelled]),
        columns(["option", "default", ""], options) if options else Text("no options", QUIET_STYLE),
    )
