"""Predicted peaks beside published ones: the page's goal, and that figures are still what is predicted."""

from __future__ import annotations

import csv
from statistics import median

import pytest

from tests.places import ROOT

pytest.importorskip("torch")
from tests.bench.published import COLUMNS, MEASUREMENTS, RESULTS

PAGE = (ROOT / "tests/bench/PUBLISHED.md").read_text(encoding="utf-8")


def rows() -> list[dict[str, str]]:
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def number(text: str) -> float:
    return float(text.split()[0].replace(",", ""))


def test_page_has_enough_measurements_and_their_median_is_close() -> None:
    assert tuple(rows()[0]) == COLUMNS
    assert len(rows()) == len(MEASUREMENTS) >= 25
    assert f"[Results: {len(rows())} rows]" in PAGE
    assert len({row["source"] for row in rows()}) >= 5
    errors = [abs(number(row["predicted"]) / number(row["published"]) - 1) for row in rows()]
    assert median(errors) <= 0.03
    assert f"Median of the errors' sizes: {median(errors):.1%}" in PAGE


def test_each_row_that_is_far_off_has_a_reason() -> None:
    reasons = PAGE.partition("## Rows that are off by more than 6 %")[2].partition("\n## ")[0]
    for row in rows():
        if abs(number(row["predicted"]) / number(row["published"]) - 1) > 0.06:
            assert row["source"].split(",")[0].split()[0] in reasons or row["model"].split()[0] in reasons, row


@pytest.mark.parametrize("place", [0, 12])
def test_figures_are_what_is_predicted(place: int) -> None:
    row, item = rows()[place], MEASUREMENTS[place]
    assert (row["source"], row["model"], row["setting"]) == (item.source, item.model, item.setting)
    assert item.predicted() == pytest.approx(number(row["predicted"]), rel=0.001)
