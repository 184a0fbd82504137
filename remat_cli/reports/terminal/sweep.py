"""The report of `remat sweep`: overhead against budget.

It has forms for people, programs and spreadsheets.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any
from unicodedata import normalize

from rich.console import RenderableType
from rich.text import Text

from remat_cli.core.bounds import largest_working_set
from remat_cli.core.problem import Status
from remat_cli.formats.schedule_json import scope_columns
from remat_cli.planning.summary import Summary, graph_summary
from remat_cli.prepare import Prepared
from remat_cli.reports.safe_text import Report, clean
from remat_cli.reports.summary import eager_figure
from remat_cli.reports.terminal.curve_chart import CurveChart
from remat_cli.reports.terminal.layout import Cell, bullets, columns, facts, indented, section
from remat_cli.reports.terminal.plan import STATUS_STYLES, eager_fact, graph_title, notes_section
from remat_cli.studies.sweep import Curve, Point, Sweep
from remat_cli.units import counted, format_bytes, format_share

# A table with a column for each planner is cut to fit 80 columns: this is its width without those columns and the last.
_WIDTH, _FIRST_COLUMNS = 80, 24
_CARRIED = "<"
_BEGIN_FORMULAS = ("=", "+", "-", "@")
_KNEE = (
    "The knee is the point farthest below the straight line between both ends of its curve: from there on, less memory "
    "costs more and more time."
)
NO_PLAN = {Status.INFEASIBLE: "infeasible", Status.UNKNOWN: "none found"}


def sweep_report(sweep: Sweep, prepared: Prepared, eager_peak_bytes: int | None = None) -> Report:
    """Return the report of `remat sweep`: table, chart, ends and knees."""
    curves = [curve for curve in sweep.curves if curve.points]
    labels = [clean(curve.label) for curve in sweep.curves]
    listed = ("; " if any("," in label for label in labels) else ", ").join(labels)
    title = facts(
        [
            *eager_fact(eager_peak_bytes),
            ("graph", graph_title(prepared)),
            ("times", clean(prepared.costs)),
            ("planner" if len(sweep.curves) == 1 else "planners", listed),
        ]
    )
    parts: list[RenderableType] = [title, Text(_verdict(sweep), f"bold {STATUS_STYLES[sweep.status]}")]
    if len(curves) == 1:
        parts.append(indented(_table_of_one(sweep, curves[0])))
    else:
        parts += [indented(_table_of_several(sweep, curves, shown)) for shown in _side_by_side(curves)]
    has_chart = any(point.trace is not None for point in sweep.points) and len(sweep.budgets) > 1
    if has_chart:
        least = largest_working_set(prepared.graph).bytes
        chart = CurveChart(sweep.baseline, curves, least)
        parts.append(section("Overhead against budget", chart.legend(), chart))
        parts.append(section("Where the curves begin and bend", _ends(sweep, curves)))
    parts += refusals(sweep.curves)
    remarks = _remarks(sweep) if has_chart else []
    if remarks:
        parts.append(section("Reading it", bullets(remarks)))
    return Report(*parts, *notes_section(prepared.notes))


def _verdict(sweep: Sweep) -> str:
    budgets = len(sweep.budgets)
    asked = counted(budgets, "budget")
    planned = {point.budget_bytes for point in sweep.points if point.trace is not None and not point.asked_for_smallest}
    begun = "Interrupted. " if sweep.interrupted else ""
    if not any(point.trace is not None for point in sweep.points):
        return f"{begun}No plan was found at any of {asked}."
    return f"{begun}Plans at {len(planned)} of {asked}."


def _table_of_one(sweep: Sweep, curve: Curve) -> RenderableType:
    rows: list[list[Cell]] = []
    with_arenas = any(point.solution.arena is not None for point in curve.points)
    for point in curve.points:
        trace, arena = point.trace, point.solution.arena
        arena_cells = ["" if arena is None else format_bytes(arena.bytes)] if with_arenas else []
        rows.append(
            [
                *_budget_cells(sweep, point.budget_bytes),
                overhead_cell(point),
                "" if trace is None else format_bytes(trace.peak_bytes),
                *arena_cells,
                "" if trace is None else f"{trace.recomputations:,}",
                Text(point.solution.status.value, STATUS_STYLES[point.solution.status]),
                _remark(curve, point),
            ]
        )
    headers = ["budget", "of plain", "overhead", "peak", *(["arena"] if with_arenas else []), "reruns", "status", ""]
    return columns(headers, rows, right=range(headers.index("status")))


def _side_by_side(curves: Sequence[Curve]) -> list[list[Curve]]:
    """Split the curves into groups whose columns fit side by side."""
    left = _WIDTH - _FIRST_COLUMNS - max((len(curve.label) for curve in curves), default=0)
    groups: list[list[Curve]] = [[]]
    used = 0
    for curve in curves:
        width = 2 + max(len(curve.label), *map(len, NO_PLAN.values()))
        if groups[-1] and used + width > left:
            groups.append([])
            used = 0
        groups[-1].append(curve)
        used += width
    return groups


def _table_of_several(sweep: Sweep, curves: Sequence[Curve], shown: Sequence[Curve]) -> RenderableType:
    rows: list[list[Cell]] = []
    for budget in sweep.budgets:
        points = [curve.at(budget) for curve in curves]
        best = least_time([point for point in points if point is not None])
        cells: list[Cell] = []
        for curve in shown:
            point = curve.at(budget)
            is_best = point is not None and point.trace is not None and point.trace.time == best
            cells.append("" if point is None else overhead_cell(point, is_best=is_best))
        winners = [
            clean(curve.label)
            for curve, point in zip(curves, points, strict=True)
            if point is not None and point.trace is not None and point.trace.time == best
        ]
        fastest = winners[0] if len(winners) == 1 else f"{len(winners)} alike" if winners else ""
        rows.append([*_budget_cells(sweep, budget), *cells, fastest])
    headers = ["budget", "of plain", *(clean(curve.label) for curve in shown), "fastest"]
    return columns(headers, rows, right=range(len(shown) + 2))


def least_time(points: Sequence[Point]) -> int | None:
    """Return the time of the fastest plan; None without a plan."""
    return min((point.trace.time for point in points if point.trace is not None), default=None)


def _budget_cells(sweep: Sweep, budget_bytes: int) -> list[Cell]:
    return [format_bytes(budget_bytes), format_share(budget_bytes / max(1, sweep.baseline.peak_bytes))]


def overhead_cell(point: Point, *, is_best: bool = False) -> Text:
    """Return the overhead of a point's plan, or that there is no plan.

    A plan from another budget is marked.
    """
    if point.solution.overhead is None:
        return Text(NO_PLAN[point.solution.status], STATUS_STYLES[point.solution.status])
    mark = f" {_CARRIED}" if point.found_at is not None else ""
    return Text(format_share(point.solution.overhead) + mark, "bold" if is_best else "")


def _remark(curve: Curve, point: Point) -> str:
    said = []
    if point is curve.smallest:
        said.append("smallest")
    if point is curve.knee:
        said.append("knee")
    if point.found_at is not None:
        said.append(f"from {format_bytes(point.found_at)}")
    return ", ".join(said)


def _ends(sweep: Sweep, curves: Sequence[Curve]) -> RenderableType:
    rows = [
        [clean(curve.label), *_place_cells(sweep, curve.smallest), *_place_cells(sweep, curve.knee)]
        for curve in curves
        if curve.smallest is not None
    ]
    headers = ["planner", "smallest", "of plain", "overhead", "knee", "of plain", "overhead"]
    return columns(headers, rows, right=range(1, 7))


def _place_cells(sweep: Sweep, point: Point | None) -> list[Cell]:
    if point is None or point.solution.overhead is None:
        return ["", "", ""]
    return [*_budget_cells(sweep, point.budget_bytes), format_share(point.solution.overhead)]


def refusals(curves: Sequence[Curve]) -> list[RenderableType]:
    """Return a section on planners that refuse the graph, if any."""
    refused = [f"{clean(curve.label)}: {clean(curve.refusal.message)}" for curve in curves if curve.refusal is not None]
    return [section("Planners that cannot take this graph", bullets(refused))] if refused else []


def _remarks(sweep: Sweep) -> list[str]:
    said = []
    if any(curve.knee is not None for curve in sweep.curves):
        said.append(_KNEE)
    if any(point.found_at is not None for point in sweep.points):
        said.append(
            f"{_CARRIED} marks a plan that the planner found at another budget, and that fits here too: no curve gets "
            "worse with more memory."
        )
    if not any(point.asked_for_smallest for point in sweep.points):
        said.append("The smallest budget is that of this list; with min in it (--budgets min,...) it is searched.")
    return said


def point_summary(point: Point) -> dict[str, Any]:
    """Return the figures of one point, without seconds."""
    solution, trace = point.solution, point.trace
    return {
        "budget_bytes": point.budget_bytes,
        "budget_share": point.budget_bytes / max(1, solution.baseline.peak_bytes),
        "status": solution.status.value,
        **scope_columns(solution.scope),
        "overhead": solution.overhead,
        "bound_overhead": solution.bound_overhead,
        "peak_bytes": None if trace is None else trace.peak_bytes,
        "arena_bytes": None if solution.arena is None else solution.arena.bytes,
        "time": None if trace is None else trace.time,
        "recomputations": None if trace is None else trace.recomputations,
        "found_at_bytes": point.found_at,
        "searched_smallest": point.asked_for_smallest,
        "reason": "" if trace is not None else solution.result.reason,
    }


def refusal_summary(curve: Curve) -> Summary | None:
    """Return the planner's refusal of the graph, or None."""
    return None if curve.refusal is None else {"message": curve.refusal.message, "hint": curve.refusal.hint}


def sweep_summary(sweep: Sweep, prepared: Prepared, eager_peak_bytes: int | None = None) -> Summary:
    """Return the summary of `remat sweep`."""

    def budget(point: Point | None) -> int | None:
        return None if point is None else point.budget_bytes

    return {
        **eager_figure(eager_peak_bytes),
        "graph": graph_summary(prepared),
        "baseline": {"peak_bytes": sweep.baseline.peak_bytes, "time": sweep.baseline.time},
        "working_set_bytes": largest_working_set(prepared.graph).bytes,
        "interrupted": sweep.interrupted,
        "curves": [
            {
                "planner": curve.label,
                "refusal": refusal_summary(curve),
                "smallest_budget_bytes": budget(curve.smallest),
                "knee_budget_bytes": budget(curve.knee),
                "points": [point_summary(point) for point in curve.points],
            }
            for curve in sweep.curves
        ],
        "notes": list(prepared.notes),
    }


def sweep_csv(sweep: Sweep, prepared: Prepared) -> bytes:
    """Return CSV with a line for each planner and budget.

    The same sweep gives the same bytes.
    """
    records = [
        {
            "planner": curve.label,
            **point_summary(point),
            "smallest": point is curve.smallest,
            "knee": point is curve.knee,
            "estimated": prepared.is_estimated,
        }
        for curve in sweep.curves
        for point in curve.points
    ]
    return csv_bytes(records)


def csv_bytes(records: Sequence[dict[str, Any]]) -> bytes:
    """Write records of the same keys as CSV in UTF-8.

    Booleans are true and false, a missing value is empty. Text that a spreadsheet would take for a formula gets a
    leading apostrophe, which marks text there.
    """
    text = io.StringIO()
    if records:
        writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _csv_value(value) for key, value in record.items()} for record in records)
    return text.getvalue().encode("utf-8", "replace")


def _csv_value(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    text = clean(value)
    # Some spreadsheets treat the wide forms of these signs alike.
    return f"'{text}" if normalize("NFKC", text.lstrip()[:1]) in _BEGIN_FORMULAS else text
