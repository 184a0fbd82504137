"""The report of `remat batch`."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from remat_cli.batch.result_lines import WORST_FIRST, Ending, JobLine
from remat_cli.reports.terminal.batch_table import BatchResult, batch_report


def line(graph: str = "m/a.onnx", **fields: Any) -> JobLine:
    """A job with a plan, unless the fields say otherwise."""
    planned: dict[str, Any] = {"status": Ending.FEASIBLE, "exit_code": 0, "peak_bytes": 5000, "overhead": 0.25}
    names = {"job": "j", "graph": graph, "budget": "50%", "config": "dtr", "planner": "dtr", "budget_bytes": 6000}
    return JobLine(**{**planned, **names, **fields})


def failed(error: str, graph: str = "m/a.onnx", **fields: Any) -> JobLine:
    gone: dict[str, Any] = {"status": Ending.ERROR, "exit_code": 6, "peak_bytes": None, "overhead": None}
    return line(graph, **{**gone, "error": error, **fields})


def shown(*lines: JobLine, jobs: int | None = None, width: int = 80) -> str:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(batch_report(BatchResult(lines, jobs or len(lines), graphs=len(lines))))
    return capture.get()


def test_a_job_is_a_row() -> None:
    assert shown(line()).splitlines()[3:] == [
        "1 of 1 job has a plan.",
        "",
        "graph   budget            config  status        peak  overhead",
        "a.onnx     50%  6.000 kB  dtr     feasible  5.000 kB   25.00 %",
    ]


def test_files_of_one_name_are_told_apart_by_their_folders() -> None:
    text = shown(line("x/a.onnx"), line("y/a.onnx"), line("y/b.onnx"))
    assert [row.split()[0] for row in text.splitlines()[-3:]] == ["x/a.onnx", "y/a.onnx", "b.onnx"]


def test_the_same_failure_is_told_once() -> None:
    text = shown(*(failed("no such luck", f"{i}.onnx", hint="try again") for i in range(3)), failed("another", "z"))
    assert "· 0.onnx 50% dtr and 2 more: no such luck (try again)\n  · z 50% dtr: another\n" in text


def test_a_plan_of_a_job_whose_time_was_up_is_marked() -> None:
    assert "feasible, stopped" in shown(line(interrupted=True))


def test_of_very_many_jobs_some_are_shown() -> None:
    text = shown(*(failed(f"fault {i}", f"{i}.onnx") for i in range(1000)))
    assert "and 500 more, which are in the results" in text
    assert "and 980 more, which are in the results" in text


def test_what_was_left_is_counted() -> None:
    assert "Interrupted: 3 jobs have not ended" in shown(line(), jobs=4)


@pytest.mark.parametrize("worst", range(len(WORST_FIRST)))
def test_the_worst_exit_code_wins(worst: int) -> None:
    lines = [line(exit_code=code) for code in reversed(WORST_FIRST[worst:])]
    assert BatchResult(lines, len(lines), graphs=1).exit_code == WORST_FIRST[worst]


def test_without_jobs_nothing_is_wrong() -> None:
    assert BatchResult((), 0, graphs=0).exit_code == 0
