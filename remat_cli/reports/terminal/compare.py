"""The report of `remat compare`: planners side by side.

They are compared on each graph and at each budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from remat_cli.core.problem import Status
from remat_cli.planning.summary import Summary, graph_summary
from remat_cli.prepare import Prepared
from remat_cli.reports.safe_text import Report, clean
from remat_cli.reports.summary import eager_figure
from remat_cli.reports.terminal.layout import Cell, columns, facts, indented, section
from remat_cli.reports.terminal.plan import STATUS_STYLES, eager_fact, graph_title, notes_section
from remat_cli.reports.terminal.sweep import (
    csv_bytes,
    least_time,
    overhead_cell,
    point_summary,
    refusal_summary,
    refusals,
)
from remat_cli.studies.sweep import Curve, Point, Sweep
from remat_cli.units import format_bytes, format_share, format_time

_BEST = "*"


@dataclass(frozen=True)
class Contest:
    """The planners' results on one graph.

    Attributes:
        path: path of the graph as given.
        prepared: the graph.
        sweep: each planner's results; no plan is taken over from another budget.
        eager_peak_bytes: peak of a PyTorch step without a plan; None where it is not known.
    """

    path: str
    prepared: Prepared
    sweep: Sweep
    eager_peak_bytes: int | None = None


@dataclass(frozen=True)
class _Case:
    """The planners' results on one graph at one budget.

    Attributes:
        budget_bytes: the budget.
        points: result of each planner that was asked.
    """

    budget_bytes: int
    points: tuple[tuple[Curve, Point], ...]

    @property
    def status(self) -> Status:
        """Feasible with any plan; infeasible if all prove that none fits.

        Otherwise unknown.
        """
        statuses = {point.solution.status for _, point in self.points}
        if statuses & {Status.OPTIMAL, Status.FEASIBLE}:
            return Status.FEASIBLE
        return Status.INFEASIBLE if statuses == {Status.INFEASIBLE} else Status.UNKNOWN

    def is_best(self, point: Point) -> bool:
        """Tell whether no other planner has a faster plan."""
        return point.trace is not None and point.trace.time == least_time([other for _, other in self.points])


def _cases(sweep: Sweep) -> Iterator[_Case]:
    """Yield the cases of a graph, largest budget first."""
    for budget in reversed(sweep.budgets):
        points = [(curve, curve.at(budget)) for curve in sweep.curves]
        yield _Case(budget, tuple((curve, point) for curve, point in points if point is not None))


def compare_status(contests: Sequence[Contest]) -> Status:
    """Return the worst status over all graphs and budgets.

    A graph that no planner takes counts as unknown.
    """
    statuses = {case.status for contest in contests for case in _cases(contest.sweep)}
    if Status.UNKNOWN in statuses or not all(contest.sweep.points for contest in contests):
        return Status.UNKNOWN
    return Status.INFEASIBLE if Status.INFEASIBLE in statuses else Status.FEASIBLE


def compare_report(contests: Sequence[Contest], *, timing: bool = True) -> Report:
    """Return the report of `remat compare`.

    Args:
        contests: one for each graph.
        timing: whether to show the planners' times.
    """
    parts: list[RenderableType] = []
    for contest in contests:
        prepared, sweep = contest.prepared, contest.sweep
        peak = format_bytes(sweep.baseline.peak_bytes)
        time = format_time(sweep.baseline.time, prepared.graph.time_unit)
        parts.append(
            facts(
                [
                    *eager_fact(contest.eager_peak_bytes),
                    ("graph", graph_title(prepared)),
                    ("times", clean(prepared.costs)),
                    ("plain run", f"peak {peak}, time {time}"),
                ]
            )
        )
        for case in _cases(sweep):
            share = format_share(case.budget_bytes / max(1, sweep.baseline.peak_bytes))
            title = f"{format_bytes(case.budget_bytes)} · {share} of the plain peak"
            parts.append(section(title, _case_table(case, prepared.graph.time_unit, timing=timing)))
        parts += refusals(sweep.curves)
        parts += notes_section(prepared.notes)
    if sum(len(contest.sweep.budgets) for contest in contests) > 1:
        parts.append(section("In all", _summary_table(contests, timing=timing)))
    if any(contest.sweep.interrupted for contest in contests):
        parts.append(Text("Interrupted: these are the results until then.", "bold yellow"))
    parts.append(Text(f"{_BEST} the fastest plan; bound: no plan has less overhead, as far as that is proven", "dim"))
    return Report(*parts)


def _case_table(case: _Case, unit: str, *, timing: bool) -> RenderableType:
    rows: list[list[Cell]] = []
    for curve, point in case.points:
        is_best, trace, bound = case.is_best(point), point.trace, point.solution.bound_overhead
        style = "bold" if is_best else ""
        cells: list[Cell] = [
            Text(_BEST if is_best else "", "green"),
            Text(clean(curve.label), style),
            overhead_cell(point, is_best=is_best),
            "" if trace is None else Text(format_bytes(trace.peak_bytes), style),
            "" if trace is None else Text(format_time(trace.time, unit), style),
            "" if bound is None else format_share(bound),
            Text(point.solution.status.value, STATUS_STYLES[point.solution.status]),
        ]
        rows.append([*cells, _seconds(point.seconds)] if timing else cells)
    headers = ["", "planner", "overhead", "peak", "time", "bound", "status", *(["took"] if timing else [])]
    return columns(headers, rows, right=(2, 3, 4, 5, 7))


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:,.0f} s"


def _summary_table(contests: Sequence[Contest], *, timing: bool) -> RenderableType:
    cases = [case for contest in contests for case in _cases(contest.sweep)]
    rows: list[list[Cell]] = []
    for label in dict.fromkeys(curve.label for contest in contests for curve in contest.sweep.curves):
        own = [(case, point) for case in cases for curve, point in case.points if curve.label == label]
        best = sum(1 for case, point in own if case.is_best(point))
        plans = sum(1 for _, point in own if point.trace is not None)
        took = [_seconds(sum(point.seconds for _, point in own))] if timing else []
        rows.append([clean(label), f"{best} of {len(cases)}", f"{plans} of {len(cases)}", *took])
    headers = ["planner", "fastest", "has a plan", *(["took"] if timing else [])]
    return indented(columns(headers, rows, right=(1, 2, 3)))


def compare_summary(contests: Sequence[Contest], *, timing: bool = True) -> Summary:
    """Return the summary of `remat compare`."""
    return {
        "graphs": [
            {
                "file": contest.path,
                **eager_figure(contest.eager_peak_bytes),
                "graph": graph_summary(contest.prepared),
                "baseline": {
                    "peak_bytes": contest.sweep.baseline.peak_bytes,
                    "time": contest.sweep.baseline.time,
                },
                "refusals": {
                    curve.label: refusal_summary(curve) for curve in contest.sweep.curves if curve.refusal is not None
                },
                "results": [
                    _result(case, curve, point, timing=timing)
                    for case in _cases(contest.sweep)
                    for curve, point in case.points
                ],
                "interrupted": contest.sweep.interrupted,
                "notes": list(contest.prepared.notes),
            }
            for contest in contests
        ],
    }


def _result(case: _Case, curve: Curve, point: Point, *, timing: bool) -> dict[str, Any]:
    left_out = ("found_at_bytes", "searched_smallest")
    figures = {key: value for key, value in point_summary(point).items() if key not in left_out}
    seconds = {"seconds": round(point.seconds, 3)} if timing else {}
    return {"planner": curve.label, **figures, "best": case.is_best(point), **seconds}


def compare_csv(contests: Sequence[Contest], *, timing: bool = True) -> bytes:
    """Return CSV with a line for each graph, budget and planner."""
    return csv_bytes(
        [
            {
                "file": contest.path,
                **eager_figure(contest.eager_peak_bytes),
                "graph": contest.prepared.graph.name,
                "estimated": contest.prepared.is_estimated,
                **_result(case, curve, point, timing=timing),
            }
            for contest in contests
            for case in _cases(contest.sweep)
            for curve, point in case.points
        ]
    )


def compare_markdown(contests: Sequence[Contest], *, timing: bool = True) -> bytes:
    """Return a Markdown table with a line for each graph, budget and planner.

    The best ones are in bold.
    """
    headers = ["graph", "budget", "of plain", "planner", "overhead", "peak", "time", "bound", "status"]
    rows = [headers + (["took"] if timing else []), ["---"] * (len(headers) + timing)]
    for contest in contests:
        for case in _cases(contest.sweep):
            for curve, point in case.points:
                rows.append(
                    _markdown_cells(contest, case, curve, point) + ([_seconds(point.seconds)] if timing else [])
                )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).encode("utf-8", "replace")


def _markdown_cells(contest: Contest, case: _Case, curve: Curve, point: Point) -> list[str]:
    trace, bound, graph = point.trace, point.solution.bound_overhead, contest.prepared.graph
    overhead = overhead_cell(point).plain
    return [
        _escaped(graph.name),
        format_bytes(case.budget_bytes),
        format_share(case.budget_bytes / max(1, contest.sweep.baseline.peak_bytes)),
        _escaped(curve.label),
        f"**{overhead}**" if case.is_best(point) else overhead,
        "" if trace is None else format_bytes(trace.peak_bytes),
        "" if trace is None else format_time(trace.time, graph.time_unit),
        "" if bound is None else format_share(bound),
        f"{point.solution.status.value}{', estimated' if contest.prepared.is_estimated else ''}",
    ]


def _escaped(text: str) -> str:
    """Escape a name for Markdown.

    No part of it is markup, a link or the end of a cell.
    """
    return "".join(f"\\{character}" if character in "\\`*_{}[]()<>#|!~&" else character for character in clean(text))
