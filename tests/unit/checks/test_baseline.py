"""The baseline file: what is written is read back, and whatever else is there is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.checks.baseline import Figures, baseline_bytes, read_baseline
from remat_cli.errors import UsageError

FIGURES = Figures(300, 100, limit_bytes=200, plan_peak_bytes=190, overhead=1 / 3)


def test_what_is_written_is_read_back_to_the_last_bit(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    models = {"planned": FIGURES, "plain": Figures(300, 100)}
    path.write_bytes(baseline_bytes(models))
    assert read_baseline(path) == models


def test_the_exact_overhead_is_that_of_the_times() -> None:
    assert replace(FIGURES, plain_time=10, plan_time=11).exact_overhead == Fraction(1, 10)
    assert FIGURES.exact_overhead == Fraction(1 / 3)
    assert replace(FIGURES, overhead=float("inf")).exact_overhead is None


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_name_can_be_kept(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    path = tmp_path_factory.getbasetemp() / "names.json"
    path.write_bytes(baseline_bytes({name: FIGURES}))
    assert read_baseline(path) == {name: FIGURES}


@pytest.mark.parametrize(
    "name", ["\x1b[31mred", "\x7f", "\x85", "\ufffe", "🚀", "a: b #c", "null", "<<", "\u2028", "long" * 1000]
)
def test_an_odd_name_can_be_kept(name: str, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(baseline_bytes({name: FIGURES}))
    assert read_baseline(path) == {name: FIGURES}


def test_a_change_of_one_figure_is_a_change_of_one_line() -> None:
    before = baseline_bytes({"b": FIGURES, "a": FIGURES})
    after = baseline_bytes({"a": FIGURES, "b": replace(FIGURES, plain_peak_bytes=301)})
    changed = [(old, new) for old, new in zip(before.splitlines(), after.splitlines(), strict=True) if old != new]
    assert changed == [(b'      "plain_peak_bytes": 300,', b'      "plain_peak_bytes": 301,')]


def test_without_a_file_no_model_is_known(tmp_path: Path) -> None:
    assert read_baseline(tmp_path / "b.json") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("<<<<<<< ours\n{}\n=======\n", "b.json:1:1: no valid JSON"),
        ("[]", "is no baseline of the format 'remat.baseline/1'"),
        ('{"models": {}}', "is no baseline"),
        ('{"format": "remat.baseline/9", "models": {}}', "is no baseline"),
        ('{"format": "remat.baseline/1", "models": []}', "b.json: models"),
        (
            '{"format": "remat.baseline/1", "models": {"a": {"plain_peak_bytes": 1}}}',
            "'a': hard_limit_bytes: is missing",
        ),
        (
            '{"format": "remat.baseline/1", "models": {"a": {"plain_peak_bytes": "many", "hard_limit_bytes": 1}}}',
            "'a': plain_peak_bytes",
        ),
    ],
)
def test_a_broken_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_baseline(path)
    assert message in raised.value.message
