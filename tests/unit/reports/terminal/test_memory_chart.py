"""The memory chart loses no peak, keeps the budget's line honest, and fits its width."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from remat_cli.core.graph import Graph
from remat_cli.reports.safe_text import Report
from remat_cli.reports.terminal.memory_chart import MemoryTimeline, StaysBar, largest_per_column, marks
from remat_cli.reports.timeline import Lifetime, Run
from tests.graphs import chain, compute_sequences, graph_of, op, small_graphs, training_chain
from tests.unit.reports.rendering import rendered, run_of

MB = 1_000_000


@pytest.fixture
def plain() -> Run:
    return Run.plain(training_chain(4, size=MB))


@pytest.fixture
def replayed() -> Run:
    """The same as `plain` with the first two ops run again; its peak is 4 MB instead of 5."""
    return run_of(training_chain(4, size=MB), "f1", "f2", "f3", "f4", "loss", "b4", "f1", "f2", "b3", "b2", "b1")


def test_each_column_shows_the_largest_memory_of_its_time() -> None:
    # f1 takes 1 unit of time and makes 3 bytes, f2 takes 2 and makes 5, f3 takes 1 and makes 1.
    graph = graph_of(
        op("f1", "", "a", time=1),
        op("f2", "a", "b", time=2),
        op("f3", "b", "c", time=1),
        sizes={"a": 3, "b": 5, "c": 1},
    )
    run = Run.plain(graph)
    assert largest_per_column(run, run.total, 4) == [3, 8, 8, 6]
    assert largest_per_column(run, run.total, 8) == [3, 3, 8, 8, 8, 8, 6, 6]
    assert largest_per_column(run, run.total, 2) == [8, 8]
    assert largest_per_column(run, run.total, 1) == [8]


def test_columns_after_the_end_of_the_shorter_run_are_empty() -> None:
    run = Run.plain(chain(2, 2))
    assert largest_per_column(run, 4, 8) == [2, 2, 4, 4, 0, 0, 0, 0]


@given(st.data(), st.integers(1, 40))
def test_no_peak_is_lost_whatever_the_width(data: st.DataObject, width: int) -> None:
    graph = data.draw(small_graphs())
    run = run_of(graph, *data.draw(compute_sequences(graph)))
    assert max(largest_per_column(run, run.total, width)) == run.trace.peak_bytes


def test_times_near_the_limit_do_not_overflow() -> None:
    graph = graph_of(op("a", "", "x", time=2**58), op("b", "x", "y", time=2**58), sizes={"x": 2**40, "y": 1})
    run = Run.plain(graph)
    assert largest_per_column(run, run.total, 200) == [2**40] * 100 + [2**40 + 1] * 100


def test_a_long_run_is_downsampled() -> None:
    sizes = [1] * 20_000
    sizes[12_345] = 100
    run = Run.plain(chain(*sizes))
    columns = largest_per_column(run, run.total, 80)
    assert columns.index(101) == 12_345 * 80 // 20_000
    assert sorted(set(columns)) == [2, 101]


def test_the_chart_shows_the_plan_before_the_plain_run_under_the_budget(plain: Run, replayed: Run) -> None:
    chart = MemoryTimeline(replayed, behind=plain, budget_bytes=4 * MB, rows=5)
    # Three columns a unit of time.
    assert rendered(Report(chart), 55).splitlines() == [
        "5.000 MB ┤            ░░░░░░░░░",
        "4.000 MB ┤╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌",
        "         │         ░░░░░░░░░░░░░░░░░░██████",
        "         │      ░░░░░░█████████░░░███████████████",
        "         │   ██████████████████████████████████████████",
        "         │█████████████████████████████████████████████",
        "     0 B └────────────┴────────────────────────────────",
        "   again                       ━━━━━━",
        "          forward     backward                  time 15",
    ]


def test_what_fits_never_shows_above_the_line_and_what_does_not_does(plain: Run) -> None:
    peak = plain.trace.peak_bytes
    for budget in (1, peak // 50, peak // 2, peak - 1):
        above, _ = rendered(MemoryTimeline(plain, budget_bytes=budget)).split("╌", 1)
        assert "█" in above or "▁" in above
    for budget in (peak, peak + 1, peak * 5 // 4):
        above, _ = rendered(MemoryTimeline(plain, budget_bytes=budget)).split("╌", 1)
        assert set(above) <= set(" 0123456789.MB┤│\n")


def test_what_is_above_the_budget_is_red(plain: Run) -> None:
    def in_colour(budget_bytes: int) -> str:
        output = io.StringIO()
        chart = MemoryTimeline(plain, budget_bytes=budget_bytes)
        Console(width=80, file=output, force_terminal=True, color_system="standard").print(chart)
        return output.getvalue()

    assert "\x1b[31m" in in_colour(plain.trace.peak_bytes - 1)
    assert "\x1b[31m" not in in_colour(plain.trace.peak_bytes)


def test_a_budget_far_above_the_peak_does_not_press_the_chart_flat(plain: Run) -> None:
    chart = MemoryTimeline(plain, budget_bytes=100 * plain.trace.peak_bytes)
    assert rendered(chart) == rendered(MemoryTimeline(plain))
    assert "budget" not in chart.legend("plan").plain


@pytest.mark.parametrize("width", [20, 80, 100, 120, 200])
def test_the_chart_fills_its_width_and_no_more(plain: Run, replayed: Run, width: int) -> None:
    chart = MemoryTimeline(replayed, behind=plain, budget_bytes=4 * MB)
    assert max(map(len, rendered(chart, width).splitlines())) == width


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(graph_of(op("only", "", "x")), id="one op"),
        pytest.param(graph_of(op("only", "", "x"), sizes={"x": 0}), id="no bytes"),
        pytest.param(graph_of(op("a", "", "x", time=0), op("b", "x", "", time=0)), id="no time"),
        pytest.param(graph_of(op("a", "x", "")), id="nothing but an input"),
    ],
)
@pytest.mark.parametrize("budget_bytes", [None, 1])
def test_degenerate_runs_have_a_chart(graph: Graph, budget_bytes: int | None) -> None:
    run = Run.plain(graph)
    lines = rendered(MemoryTimeline(run, behind=run, budget_bytes=budget_bytes)).splitlines()
    assert len(lines) >= 14
    assert lines[-2].lstrip().startswith("0 B └──")


def test_steps_are_counted_where_there_is_no_time() -> None:
    run = Run.plain(graph_of(op("a", "", "x", time=0), op("b", "x", "y", time=0)))
    assert rendered(MemoryTimeline(run)).rstrip().endswith("3 steps")


def test_the_legend_names_only_what_is_drawn(plain: Run, replayed: Run) -> None:
    assert MemoryTimeline(plain).legend("plain run").plain == "█ plain run"
    both = MemoryTimeline(replayed, behind=plain, budget_bytes=4 * MB)
    assert both.legend("plan", "plain run").plain == "█ plan   ░ plain run   ╌ budget   ━ recomputing"


def test_a_bar_marks_when_a_tensor_is_in_memory() -> None:
    run = Run.plain(chain(1, 1, 1, 1))
    assert marks(run, run.lifetimes["t1"], run.total, 8).plain == "━━━━····"
    assert marks(run, run.lifetimes["t4"], run.total, 8).plain == "······━━"
    assert marks(run, [Lifetime(0, 1)], run.total, 8, absent=" ").plain == "━━      "


def test_a_bar_is_as_wide_as_its_place() -> None:
    run = Run.plain(chain(1, 1))
    assert rendered(StaysBar(run, run.lifetimes["t2"]), 12) == "······━━━━━━\n"
