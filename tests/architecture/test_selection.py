"""`make test` leaves out what others cover, and nothing by mistake."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.places import ROOT
from tests.selection import ALWAYS, LEFT_OUT, SHORT, choose, deselecting

OPTIONS = LEFT_OUT.read_text(encoding="utf-8").splitlines()
LONG = 2 * SHORT


@cache
def names(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef))


def test_what_is_left_out_exists() -> None:
    for option in OPTIONS:
        file, *path = option.removeprefix("--deselect=").partition("[")[0].split("::")
        assert names(file).issuperset(path), f"{option}: run `make selection`"


def test_what_always_stays_is_not_left_out() -> None:
    left_out = tuple(option.removeprefix("--deselect=") for option in OPTIONS)
    assert not [option for option in left_out if option.startswith(ALWAYS)]
    assert not [test for test in ALWAYS if test.startswith(left_out)]


def test_short_tests_stay_and_long_ones_that_run_the_most_lines_per_second() -> None:
    seconds = {"f::short": SHORT / 2, "f::wide": 4 * LONG, "f::narrow": LONG, "f::same": LONG, "f::command": LONG}
    lines = {
        "f::short": {("a", 1)},
        "f::wide": {("a", number) for number in range(10)},
        "f::narrow": {("b", 1)},
        "f::same": {("a", 2), ("a", 3)},
    }
    assert choose(seconds, lines, 100.0) == {"f::short", "f::wide", "f::narrow", "f::command"}
    assert choose(seconds, lines, 5 * LONG) == {"f::short", "f::wide"}
    assert choose(seconds, lines, 2 * LONG) == {"f::short", "f::same"}


def test_one_test_of_each_file_stays() -> None:
    seconds = {"f::long": LONG, "f::longer": 2 * LONG, "g::long": LONG}
    assert choose(seconds, {}, 0.0) == {"f::long", "g::long"}


@pytest.mark.parametrize(
    ("left_out", "kept", "options"),
    [
        ({"f.py::test_a[1]", "f.py::test_a[2]"}, {"f.py::test_b"}, ["f.py::test_a["]),
        ({"f.py::test_a[1]"}, {"f.py::test_a[2]"}, ["f.py::test_a[1]"]),
        ({"f.py::test_a"}, {"f.py::test_b"}, ["f.py::test_a"]),
        # pytest would leave out the second, too.
        ({"f.py::test_a"}, {"f.py::test_a_and_b"}, []),
    ],
)
def test_options_leave_out_nothing_else(left_out: set[str], kept: set[str], options: list[str]) -> None:
    assert deselecting(left_out, kept) == [f"--deselect={option}" for option in options]
