"""The HTML report of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from remat_cli.core.arena import Arena
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Scope
from remat_cli.core.simulate import Trace
from remat_cli.core.solve import share_over
from remat_cli.formats.schedule_json import ScheduleFile
from remat_cli.planning import Planning
from remat_cli.prepare import Prepared
from remat_cli.reports import phrasing
from remat_cli.reports.html.arena import arena_section
from remat_cli.reports.html.data import script_data
from remat_cli.reports.html.document import LONGEST_NAME, TONES, HtmlDocument, Markup, share_bar, table_of, text_in
from remat_cli.reports.html.lifetimes import Rerun, Story, reruns_by_op, reruns_by_type
from remat_cli.reports.peak import PeakTensor, count_fates, tensors_at_peak
from remat_cli.reports.safe_text import clean, shorten
from remat_cli.reports.terminal.comparison import Row, comparison_rows
from remat_cli.reports.terminal.layout import Cell
from remat_cli.reports.terminal.memory_chart import largest_per_column
from remat_cli.reports.terminal.plan import (
    claim_facts,
    graph_title,
    link_facts,
    part_rows,
    plan_facts,
    plan_rows,
    shown_run,
)
from remat_cli.reports.timeline import Lifetime, Run
from remat_cli.reports.transfers import moved_tensors
from remat_cli.units import format_bytes, format_share, format_time

_LONGEST_IN_TABLE = 36
_MOST_OPS = 15
_MOST_TYPES = 12
_MOST_TENSORS = 12
_SCRIPTS = ("format.js", "model.js", "phrasing.js", "view.js", "frame.js", "main.js")
# The size of the chart that replaces the drawn ones without script.
_COLUMNS, _HEIGHT = 480, 120


@dataclass(frozen=True)
class Page:
    """The content of a report.

    Attributes:
        title: title of the page.
        facts: labels and values on graph, planner and budget.
        verdict: the result in one sentence.
        tone: tone of the verdict: "good", "bad" or "open".
        advice: titles and sentences: reasons and remedies without a plan.
        rows: rows of the table that compares the run with the plain run.
        plain: the plain run, without parts.
        run: the run to compare with the plain run; None without one.
        name: name of `run`, for people.
        budget_bytes: budget of `run`; None without one.
        notes: remarks for the user.
        arena: the arena of `run`; None without addresses.
    """

    title: str
    facts: Sequence[tuple[str, Cell]]
    verdict: str
    tone: str
    advice: Mapping[str, Sequence[str]]
    rows: Sequence[Row]
    plain: Run
    run: Run | None
    name: str
    budget_bytes: int | None
    notes: Sequence[str]
    arena: Arena | None = None


def plan_page(planning: Planning) -> bytes:
    """Return the HTML report of `remat plan`, even without a plan."""
    solution, prepared = planning.solution, planning.prepared
    name, run = shown_run(solution)
    advice = {
        "Why": phrasing.reasons(solution),
        "What could be done": phrasing.remedies(solution, prepared.optimizer),
    }
    return html_bytes(
        Page(
            title=prepared.graph.name,
            facts=plan_facts(solution, prepared, planning.planner),
            verdict=phrasing.verdict(solution, estimated=prepared.is_estimated),
            tone=TONES[solution.status],
            advice=advice,
            rows=plan_rows(solution, estimated=prepared.is_estimated),
            plain=Run.plain(solution.plain_graph),
            run=run,
            name=name,
            budget_bytes=solution.problem.budget.device_bytes,
            notes=prepared.notes,
            arena=solution.arena,
        )
    )


def schedule_page(prepared: Prepared, file: ScheduleFile, trace: Trace, *, budget_bytes: int | None) -> bytes:
    """Return the HTML report of a valid schedule.

    The schedule may still exceed the budget.

    Args:
        prepared: the graph that the schedule is for.
        file: content of the schedule file.
        trace: the simulator's measurement.
        budget_bytes: budget of the schedule; None if unknown.
    """
    graph = prepared.graph
    plain, run = Run.plain(prepared.undivided), Run(graph, file.schedule, trace)
    facts: list[tuple[str, Cell]] = [
        ("graph", graph_title(prepared)),
        ("times", clean(prepared.costs)),
        ("schedule", f"{len(file.schedule.steps):,} steps"),
    ]
    if file.planner is not None:
        facts.append(("planner", f"{shorten(file.planner, LONGEST_NAME)}, as the file says"))
    facts += link_facts(run, taken=file.link is not None) + claim_facts(file)
    if budget_bytes is not None:
        share = phrasing.share_of_plain_peak(budget_bytes, plain.trace.peak_bytes, plain.graph)
        facts.append(("budget", f"{format_bytes(budget_bytes)} · {share}"))
    return html_bytes(
        Page(
            title=graph.name,
            facts=facts,
            verdict=phrasing.verdict_on_schedule(trace.peak_bytes, budget_bytes),
            tone="bad" if budget_bytes is not None and trace.peak_bytes > budget_bytes else "good",
            advice={},
            rows=[
                *comparison_rows(plain, run, budget_bytes),
                *_bound_rows(file, plain, run),
            ],
            plain=plain,
            run=run,
            name="schedule",
            budget_bytes=budget_bytes,
            notes=prepared.notes,
            arena=file.arena,
        )
    )


def _bound_rows(file: ScheduleFile, plain: Run, run: Run) -> list[Row]:
    """Return rows with the bound that a schedule file states, and the gap."""
    if file.bound_overhead is None:
        return []
    gap = max(0.0, share_over(run.trace.time, plain.trace.time) - file.bound_overhead)
    rows: list[Row] = [
        ["bound", "", format_share(file.bound_overhead), "no plan has less overhead, as the file says"],
        ["gap", "", format_share(gap), "the most that a better plan could save"],
    ]
    if file.bound_scope in set(Scope):
        scope = Scope(file.bound_scope)
        moves = file.link is not None and not file.bound_transfers and scope.leaves_out_transfers
        which = scope.which_plans + (phrasing.WITHOUT_TRANSFERS if moves else "")
        rows.append(["scope", "", file.bound_scope, f"holds for all plans {which}"])
    return rows


def html_bytes(page: Page) -> bytes:
    """Return a report as the bytes of its file."""
    stories = {"plain run": Story(page.plain)}
    if page.run is not None:
        stories["closest run" if page.name == "closest" else page.name] = Story(page.run)
    return HtmlDocument(
        title=page.title,
        facts=page.facts,
        verdict=page.verdict,
        tone=page.tone,
        advice=page.advice,
        comparison=table_of(["", "plain run", page.name, ""], page.rows, right=(1, 2)),
        charts="timeline.html",
        still=_still(page),
        sections=(
            arena_section(page.run, page.arena),
            _overhead(page.run),
            _parts(page.plain, page.run) + _largest(page.plain, page.run),
            _moved(page.run),
        ),
        notes=page.notes,
        data=script_data(stories, page.budget_bytes),
        scripts=_SCRIPTS,
    ).file_bytes()


def _name(name: str, op: int | None = None, output: int | None = None) -> Markup:
    """Return a name that the script links to its op's tensors."""
    to = ("" if op is None else f" data-op={op}") + ("" if output is None else f" data-output={output}")
    return Markup(f"<span class=name{to}>{text_in(shorten(name, _LONGEST_IN_TABLE))}</span>")


def _overhead(run: Run | None) -> str:
    """Return the section on reruns and their cost, by type and by op."""
    if run is None:
        return ""
    by_op, by_type = reruns_by_op(run), reruns_by_type(run)
    unit, total = run.graph.time_unit, sum(rerun.time for rerun in by_op)
    costs = f"{len(by_op):,} of {len(run.graph.ops):,} ops are run again" if by_op else "No op is run more than once"
    if total:
        costs += f", which takes {format_time(total, unit)}"
    if run.trace.idle_time:
        costs += f"; waiting for the host takes {format_time(run.trace.idle_time, unit)}"
    if not by_op:
        return f'<section class="card"><h2>Overhead by op</h2><p>{costs}.</p></section>'
    types = _reruns("type", by_type, _MOST_TYPES, run, total, with_ops=True)
    ops = _reruns("op", by_op, _MOST_OPS, run, total, with_ops=False)
    return (
        f'<section class="card" id="overhead"><h2>Overhead by op</h2><p>{costs}.</p>'
        f'<div class="pair"><div>{types}</div><div id="by-op">{ops}</div></div></section>'
    )


def _reruns(title: str, reruns: Sequence[Rerun], most: int, run: Run, total: int, *, with_ops: bool) -> str:
    unit, numbers = run.graph.time_unit, run.graph.arrays.op_index
    rows: list[list[Cell | Markup]] = [
        [
            _name(rerun.name or "without a type") if with_ops else _name(rerun.name, numbers[rerun.name]),
            f"{rerun.ops:,}" if with_ops else shorten(run.graph.op[rerun.name].type, _LONGEST_IN_TABLE),
            f"{rerun.runs:,}",
            format_time(rerun.time, unit),
            Markup(share_bar(rerun.time / total) if total else ""),
            format_bytes(rerun.bytes),
        ]
        for rerun in reruns[:most]
    ]
    headers = [title, "ops" if with_ops else "type", "extra runs", "extra time", "share", "makes again"]
    table = table_of(headers, rows, right=(1, 2, 3, 5) if with_ops else (2, 3, 5))
    rest = reruns[most:]
    if not rest:
        return table
    time, runs = sum(rerun.time for rerun in rest), sum(rerun.runs for rerun in rest)
    more = f"{len(rest):,} more: {runs:,} extra runs, {format_time(time, unit)}"
    return f"{table}<p class=more>and {more}</p>"


def _parts(plain: Run, run: Run | None) -> str:
    """Return the memory of a step with residents by part, if it is one."""
    headers, rows = part_rows([plain] if run is None else [plain, run])
    if not rows:
        return ""
    table = table_of(headers, rows, right=tuple(range(1, len(headers))))
    return f'<section class="card" id="parts"><h2>Memory by part</h2>{table}</section>'


def _largest(plain: Run, run: Run | None) -> str:
    """Return the tensors at the plain run's peak, and their fate."""
    graph, tensors = plain.graph, tensors_at_peak(plain, run)
    at = "the start" if plain.peak_op is None else f"op {shorten(plain.peak_op, LONGEST_NAME)}"
    shown, rest = tensors[:_MOST_TENSORS], tensors[_MOST_TENSORS:]
    rows: list[list[Cell | Markup]] = [
        [
            _tensor_name((run or plain).graph, tensor.name),
            format_bytes(tensor.bytes),
            format_share(tensor.bytes / plain.trace.peak_bytes),
            shorten(tensor.producer, _LONGEST_IN_TABLE),
            "" if run is None else str(tensor),
            Markup(_stays_bar(run or plain, tensor)),
        ]
        for tensor in shown
    ]
    headers = ["tensor", "size", "of the peak", "made by", "" if run is None else "in the plan", "in memory"]
    table = table_of(headers, rows, right=(1, 2))
    parts = [f"and {len(rest):,} more, {format_bytes(sum(tensor.bytes for tensor in rest))}"] if rest else []
    if graph.fixed_bytes:
        resident = phrasing.resident_in_words(graph)
        moved = run is not None and run.moved_residents
        there = "are there in the plain run" if moved else "are always there"
        parts.append(f"{format_bytes(graph.fixed_bytes)} {there} ({resident}, inputs)")
    if run is not None:
        parts.append(f"of all {len(tensors):,} tensors: {count_fates(tensors)}")
    more = f"<p class=more>{text_in('; '.join(parts))}</p>" if parts else ""
    heading = f"<h2>Largest tensors at the plain run’s peak</h2><p>At {text_in(at)}.</p>"
    return f'<section class="card" id="largest">{heading}{table}{more}</section>'


def _moved(run: Run | None) -> str:
    """Return the tensors that a run moves to the host, if any."""
    moved = [] if run is None else moved_tensors(run)
    if run is None or not moved:
        return ""
    graph = run.graph
    rows: list[list[Cell | Markup]] = [
        [
            _tensor_name(graph, tensor.name),
            format_bytes(tensor.bytes),
            f"{tensor.copies:,}",
            Markup(_spans_bar(run, tensor.away, lambda _: "host")),
        ]
        for tensor in moved[:_MOST_TENSORS]
    ]
    table = table_of(["tensor", "size", "copies", "only on the host"], rows, right=(1, 2))
    rest = moved[_MOST_TENSORS:]
    more = f"<p class=more>and {len(rest):,} more, {format_bytes(sum(tensor.bytes for tensor in rest))}</p>"
    heading = "<h2>Largest tensors moved to the host</h2>"
    return f'<section class="card" id="moved">{heading}{table}{more if rest else ""}</section>'


def _tensor_name(graph: Graph, name: str) -> Markup:
    producer = graph.producer.get(name)
    if producer is None:
        return _name(name)
    return _name(name, graph.arrays.op_index[producer.name], producer.outputs.index(name))


def _stays_bar(run: Run, tensor: PeakTensor) -> str:
    stays = run.lifetimes.get(tensor.name, ())
    return _spans_bar(run, stays, lambda number: "host" if stays[number].fetched else "again" if number else "")


def _spans_bar(run: Run, spans: Sequence[Lifetime], style: Callable[[int], str]) -> str:
    """Return a bar over the time of a run, filled in each span.

    `style` gives the style of each span by number.
    """
    begins = run.durations.cumsum().tolist()
    scale = 1000 / max(1, run.total)
    rects = "".join(
        f'<rect{f" class={style(number)}" if style(number) else ""} x="{begins[span.start] * scale:.1f}" '
        f'width="{max(2.0, (begins[span.end] - begins[span.start]) * scale):.1f}" height="10"/>'
        for number, span in enumerate(spans)
    )
    return f'<svg class=stays viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">{rects}</svg>'


def _still(page: Page) -> str:
    """Return a picture of memory over time that needs no script."""
    runs = [("plain", page.plain)] + ([("plan", page.run)] if page.run is not None else [])
    total = max(run.total for _, run in runs)
    top = max(1, *(run.trace.peak_bytes for _, run in runs))
    if page.budget_bytes is not None and page.budget_bytes <= 4 * top // 3:
        top = max(top, page.budget_bytes)

    def height(size: int) -> str:
        return f"{_HEIGHT - _HEIGHT * size / top:.1f}"

    shapes = []
    for name, run in runs:
        points = " ".join(
            f"{column},{height(size)} {column + 1},{height(size)}"
            for column, size in enumerate(largest_per_column(run, total, _COLUMNS))
        )
        shapes.append(f'<polygon class="{name}" points="0,{_HEIGHT} {points} {_COLUMNS},{_HEIGHT}"/>')
    if page.budget_bytes is not None and page.budget_bytes <= top:
        y = height(page.budget_bytes)
        shapes.append(f'<line class="budget" x1="0" x2="{_COLUMNS}" y1="{y}" y2="{y}"/>')
    return (
        f'<svg class="still" viewBox="0 0 {_COLUMNS} {_HEIGHT}" role="img" '
        f'aria-label="Memory over time: grey the plain run, blue the plan, dashed the budget">{"".join(shapes)}</svg>'
    )
