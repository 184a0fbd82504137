"""Reports of sweeps, comparisons and fits, as a pipe gets them."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from remat_cli.config import PlannerChoice, Request
from remat_cli.core.problem import Budget, Problem
from remat_cli.core.simulate import Trace
from remat_cli.core.solve import solve
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.keep_all import KeepAll
from remat_cli.planning import at_budget
from remat_cli.reports.terminal.compare import (
    Contest,
    compare_csv,
    compare_markdown,
    compare_report,
    compare_status,
    compare_summary,
)
from remat_cli.reports.terminal.curve_chart import MARKS, CurveChart
from remat_cli.reports.terminal.fit import fit_report, fit_summary
from remat_cli.reports.terminal.sweep import csv_bytes, sweep_csv, sweep_report, sweep_summary
from remat_cli.studies.fit import Fit, Question, fit
from remat_cli.studies.sweep import Curve, Point, Sweep, sweep
from remat_cli.units import parse_budgets
from tests.graphs import training_chain
from tests.plans import asking, prepared
from tests.unit.reports.rendering import rendered

HOSTILE = "\x1b[31mred\x1b[0m [bold]x[/bold] \N{RIGHT-TO-LEFT OVERRIDE}|`a`"
GRAPH = training_chain(16, size=1_000_000)
READY = prepared(GRAPH)
MB = 1_000_000


@pytest.fixture(scope="module")
def swept() -> Sweep:
    return sweep(READY, {"dtr": asking(DTR()), "keep_all": asking(KeepAll())}, parse_budgets("10%,30%..100%:8"))


def largest_batch(budget_bytes: int, dim: str = "batch") -> Fit:
    """What dtr comes to on a chain whose tensors have as many bytes as the batch."""
    request = Request(planner=PlannerChoice("dtr")).at(budget_bytes)
    return fit(Question(dim, request, at_most=100), lambda value: prepared(training_chain(8, size=value)))


def one(result: Sweep, number: int = 0) -> Sweep:
    return replace(result, curves=(result.curves[number],))


def at(point: Point, *, peak: int, time: int, budget: int) -> Point:
    """The same point as if its plan had this peak and time, and were for this budget."""
    trace = Trace((peak,), (time,), 0, {})
    return replace(point, solution=replace(point.solution, trace=trace, problem=Problem(GRAPH, Budget(budget))))


def drawn(places: dict[str, list[tuple[int, int]]], width: int = 60) -> str:
    """Draw curves given as overheads in percent by budget in MB."""
    solution = solve(Problem(GRAPH, Budget(100 * MB)), KeepAll())
    baseline = replace(solution.baseline, times=(100,))

    def point(budget: int, overhead: int) -> Point:
        fits = Point(replace(solution, baseline=baseline))
        return at(fits, peak=budget * MB, time=100 + overhead, budget=budget * MB)

    curves = [Curve(label, tuple(point(*place) for place in points)) for label, points in places.items()]
    return rendered(CurveChart(baseline, curves, 0), width)


def test_the_chart_has_each_point_at_its_place() -> None:
    lines = drawn({"a": [(1, 12), (7, 6), (13, 0)]}).splitlines()
    left = lines[0].index("┤") + 1
    places = {(row, line.index("●") - left) for row, line in enumerate(lines) if "●" in line}
    width = len(lines[-2]) - left
    assert places == {(0, 0), (6, (width - 1) // 2), (12, width - 1)}
    assert lines[0].startswith("12.00 % ┤●")
    assert lines[12].lstrip().startswith("0 % ┤")
    assert lines[-1].split() == ["1.000", "MB", "(5.88", "%)", "13.00", "MB", "(76.47", "%)"]


def test_curves_have_marks_of_their_own_and_share_one_where_they_meet() -> None:
    chart = drawn({"a": [(1, 12), (13, 0)], "b": [(1, 6), (13, 0)]})
    assert [chart.count(mark) for mark in (*MARKS[:3], "×")] == [1, 1, 0, 1]


@pytest.mark.parametrize("places", [[(1, 0), (5, 0)], [(3, 7)], [(1, 5), (1, 5)]])
def test_the_chart_takes_curves_without_any_extent(places: list[tuple[int, int]]) -> None:
    assert "●" in drawn({"a": places})


def test_the_table_of_one_planner_shows_every_point(swept: Sweep) -> None:
    report = rendered(sweep_report(one(swept), READY))
    curve = swept.curves[0]
    rows = [line.split() for line in report.splitlines() if {"infeasible", "feasible", "optimal"} & {*line.split()}]
    assert len(rows) == len(curve.points)
    assert rows[0] == ["1.700", "MB", "10.00", "%", "infeasible", "infeasible"]
    assert rows[1] == ["5.100", "MB", "30.00", "%", "38.78", "%", "5.000", "MB", "19", "feasible", "smallest"]
    assert rows[3][-1] == "knee"
    assert "The knee is the point farthest below" in report
    assert "planner  dtr" in report


def test_the_table_of_several_planners_names_the_fastest(swept: Sweep) -> None:
    report = rendered(sweep_report(swept, READY))
    half = next(line for line in report.splitlines() if "50.00 %" in line and "fastest" not in line)
    assert half.split()[-1] == "dtr"
    assert half.split()[-2] == "infeasible"
    whole = next(line for line in report.splitlines() if line.strip().startswith("17.00 MB"))
    assert whole.endswith("2 alike")


def test_a_plan_that_was_taken_over_is_marked(swept: Sweep) -> None:
    curve = swept.curves[0]
    carried = replace(curve.points[-1], found_at=12_000_000)
    changed = replace(swept, curves=(replace(curve, points=(*curve.points[:-1], carried)),))
    report = rendered(sweep_report(changed, READY))
    assert "0 % <" in report
    assert "from 12.00 MB" in report
    assert "< marks a plan" in report
    assert "< marks a plan" not in rendered(sweep_report(one(swept), READY))


def test_planners_that_do_not_fit_side_by_side_get_tables_of_their_own(swept: Sweep) -> None:
    curves = tuple(replace(swept.curves[0], label=f"planner_number_{number}") for number in range(5))
    report = rendered(sweep_report(replace(swept, curves=curves), READY))
    assert report.count("fastest") == 3
    assert all(cell_len(line) <= 80 for line in report.splitlines())
    assert "none foun " not in report


def test_a_refusal_is_shown_with_its_reason(swept: Sweep) -> None:
    refused = Curve("rotor", (), PlannerRefuses("it is no chain", hint="use dtr"))
    changed = replace(swept, curves=(*swept.curves, refused))
    assert "rotor: it is no chain" in rendered(sweep_report(changed, READY))
    assert sweep_summary(changed, READY)["curves"][-1]["refusal"] == {"message": "it is no chain", "hint": "use dtr"}


def test_json_and_csv_say_the_same(swept: Sweep) -> None:
    summary = json.loads(json.dumps(sweep_summary(swept, READY)))
    records = list(csv.DictReader(io.StringIO(sweep_csv(swept, READY).decode())))
    points = [(curve, point) for curve in summary["curves"] for point in curve["points"]]
    assert len(records) == len(points) == 18
    for record, (curve, point) in zip(records, points, strict=True):
        assert record["planner"] == curve["planner"]
        assert record["overhead"] == ("" if point["overhead"] is None else str(point["overhead"]))
        assert int(record["budget_bytes"]) == point["budget_bytes"]
        assert record["knee"] == str(point["budget_bytes"] == curve["knee_budget_bytes"]).lower()
        assert record["smallest"] == str(point["budget_bytes"] == curve["smallest_budget_bytes"]).lower()


def test_a_sweep_without_any_plan_has_no_chart() -> None:
    found = sweep(READY, {"keep_all": asking(KeepAll())}, parse_budgets("50%,60%"))
    report = rendered(sweep_report(found, READY))
    assert "No plan was found at any of 2 budgets." in report
    assert "Overhead against budget" not in report


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_from_files_stay_harmless(swept: Sweep, width: int, encoding: str) -> None:
    ready = prepared(replace(GRAPH, name=HOSTILE), notes=(HOSTILE,))
    curves = tuple(replace(curve, label=HOSTILE + str(number)) for number, curve in enumerate(swept.curves))
    changed = replace(swept, curves=curves)
    contest = Contest(HOSTILE, ready, changed)
    for report in (sweep_report(changed, ready), compare_report([contest])):
        output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        Console(width=width, file=output, force_terminal=False).print(report)
        output.seek(0)
        text = output.read()
        assert "\x1b" not in text
        assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
    for data in (sweep_csv(changed, ready), compare_csv([contest]), compare_markdown([contest])):
        assert b"\x1b" not in data


@pytest.fixture
def two(swept: Sweep) -> Sweep:
    """`lean` keeps to its plan for 30 % whatever the budget; `dtr` has a faster one from 40 % on."""
    curve = swept.curves[0]
    lean = [replace(point, solution=at_budget(curve.points[1].solution, point.budget_bytes)) for point in curve.points]
    return replace(swept, curves=(replace(curve, points=curve.points[1:]), Curve("lean", tuple(lean[1:]))))


def bold(report: RenderableType) -> str:
    """What of a report a terminal shows bold, a bar between the pieces."""
    output = io.StringIO()
    console = Console(width=80, file=output, force_terminal=True, color_system="standard", _environ={})
    console.print(report)
    return "|".join(re.findall(r"\x1b\[1m(.*?)\x1b\[0m", output.getvalue()))


def test_the_best_plan_is_bold_and_marked_and_no_other_is(two: Sweep) -> None:
    report = rendered(compare_report([contest(two)]))
    marked = [line.split()[1] for line in report.splitlines() if line.strip().startswith("* ") and "%" in line]
    assert marked == ["dtr"] * 7 + ["dtr", "lean"]
    assert bold(compare_report([contest(two)])).count("lean") == 1
    # 38.78 % is the overhead of `lean`, which is the best at 30 % alone.
    assert bold(compare_report([contest(two)])).count("38.78 %") == 2
    assert bold(sweep_report(two, READY)).count("38.78 %") == 2
    assert compare_markdown([contest(two)]).decode().count("**38.78 %**") == 2


def contest(swept: Sweep) -> Contest:
    return Contest("chain.json", READY, swept)


def test_a_comparison_marks_the_best_plan_of_each_budget(swept: Sweep) -> None:
    report = rendered(compare_report([contest(swept)]))
    assert "17.00 MB · 100.0 % of the plain peak" in report
    best = [line.split()[1] for line in report.splitlines() if line.strip().startswith("* ") and "%" in line]
    budgets_with_a_plan = sum(1 for point in swept.curves[0].points if point.trace is not None)
    assert best.count("dtr") == budgets_with_a_plan
    assert best.count("keep_all") == 1


def test_a_comparison_counts_who_was_best(swept: Sweep) -> None:
    report = rendered(compare_report([contest(swept)]))
    in_all = [line.split() for line in report.partition("In all")[2].splitlines()]
    assert [row[:7] for row in in_all if row[:1] == ["keep_all"]] == [["keep_all", "1", "of", "9", "1", "of", "9"]]


def test_seconds_are_left_out_on_request(swept: Sweep) -> None:
    assert "took" in rendered(compare_report([contest(swept)]))
    assert "took" not in rendered(compare_report([contest(swept)], timing=False))
    assert "seconds" not in json.dumps(compare_summary([contest(swept)], timing=False))
    assert b"seconds" not in compare_csv([contest(swept)], timing=False)
    assert b"took" not in compare_markdown([contest(swept)], timing=False)


def test_the_worst_case_decides_how_a_comparison_ends(swept: Sweep) -> None:
    assert compare_status([contest(swept)]) == "infeasible"  # at 10 %, which is proven
    fits = replace(swept, curves=tuple(replace(curve, points=curve.points[-1:]) for curve in swept.curves))
    assert compare_status([contest(fits)]) == "feasible"
    refused = replace(swept, curves=(Curve("rotor", (), PlannerRefuses("no")),))
    assert compare_status([contest(fits), contest(refused)]) == "unknown"


def test_markdown_holds_one_line_a_plan_and_the_best_in_bold(swept: Sweep) -> None:
    lines = compare_markdown([contest(swept)]).decode().splitlines()
    assert len(lines) == 2 + 18
    assert all(line.count("|") == 11 for line in lines)
    assert sum("**0 %**" in line for line in lines) == 2
    escaped = compare_markdown([Contest("", prepared(replace(GRAPH, name=HOSTILE)), swept)]).decode().splitlines()[2]
    assert escaped.replace("\\|", "").count("|") == 11
    assert "\\[bold\\]" in escaped


def test_the_report_of_a_fit_shows_all_three_values() -> None:
    found = largest_batch(34)
    assert found.plain is not None
    assert found.found is not None
    assert (found.plain.value, found.found.value) == (3, 11)
    report = rendered(fit_report(found, PlannerChoice("dtr")))
    assert "The largest batch that fits 34 B with a plan is 11; without, 3." in report
    rows = [line.split() for line in report.splitlines()]
    assert ["plain", "run", "3", "27", "B", "27", "B", "8"] in rows
    assert ["with", "a", "plan", "11", "99", "B", "33", "B", "84.00", "%", "4", "×", "3.67"] in rows
    assert ["hard", "limit", "11", "99", "B"] in rows
    summary = fit_summary(found)
    assert [summary[key]["value"] for key in ("plain", "found", "limit")] == [3, 11, 11]
    assert summary["plan"]["peak_bytes"] == 33


def test_the_report_of_a_fit_in_which_nothing_fits_says_why() -> None:
    found = largest_batch(2)
    report = rendered(fit_report(found, PlannerChoice("dtr")))
    assert "Not even batch=1 fits 2 B." in report
    assert "alone needs 3 B" in report
    assert fit_summary(found)["found"] is None


def test_a_name_of_a_dimension_stays_harmless() -> None:
    found = largest_batch(34, HOSTILE)
    assert "\x1b" not in rendered(fit_report(found, PlannerChoice("dtr")))


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "  =1", "\uff1d1+1", "\t=1", "=1,\"'=2"])
def test_no_cell_of_a_table_is_a_formula(name: str) -> None:
    table = csv_bytes([{"file": name, "time": -1, "empty": "", "none": None}]).decode()
    _, line = csv.reader(io.StringIO(table))
    assert line[0].startswith(("'", "\N{REPLACEMENT CHARACTER}"))
    assert line[1:] == ["-1", "", ""]


def test_other_cells_of_a_table_are_as_they_are() -> None:
    assert csv_bytes([{"file": "a=1.json", "name": "a-b"}]) == b"file,name\na=1.json,a-b\n"
