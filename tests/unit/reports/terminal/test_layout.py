"""Tables keep words and figures whole at any width."""

from __future__ import annotations

import pytest

from remat_cli.reports.terminal.layout import columns
from tests.unit.reports.rendering import rendered

HEADERS = ["", "plain run", "plan", ""]
ROWS = [
    ["peak memory", "538.3 MB", "372.7 MB", "30.76 % less, of which activations"],
    ["peak of the chain", "", "484.6 MB", "by the method's own model"],
]


@pytest.mark.parametrize("width", [22, 30, 36, 40, 50, 80])
def test_a_narrow_table_breaks_no_word_and_no_figure(width: int) -> None:
    text = rendered(columns(HEADERS, ROWS, right=(1, 2)), width)
    assert max(map(len, text.splitlines())) <= width
    words = {word for row in (HEADERS, *ROWS) for cell in row for word in cell.split()}
    assert words <= set(text.split())
    assert "538.3 MB" in text
    assert "484.6 MB" in text


def test_the_last_cell_stands_under_its_row_without_room_beside_it() -> None:
    assert rendered(columns(HEADERS, ROWS[:1], right=(1, 2)), 36).splitlines() == [
        "             plain run      plan",
        "peak memory   538.3 MB  372.7 MB",
        "  30.76 % less, of which activations",
    ]


def test_cells_stand_under_each_other_without_room_for_the_figures() -> None:
    rows = [["5 MB", "3 %", "knee"], ["6 MB", "1 %"]]
    assert rendered(columns(["budget", "overhead", ""], rows, right=(0, 1)), 15).split() == (
        ["budget", "5", "MB", "overhead", "3", "%", "knee", "budget", "6", "MB", "overhead", "1", "%"]
    )
