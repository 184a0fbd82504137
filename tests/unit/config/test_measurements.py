"""Files of what was measured: what is written is read again, what is wrong is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.config.measurements import load_measurements, measurements_bytes
from remat_cli.costs import Measurements
from remat_cli.errors import UsageError

MEASURED = Measurements({"a": 3, "b c": 0}, {"a": 512}, {"a": "0af"}, {"batch": 2}, "torch on a laptop")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(measurements_bytes(MEASURED, "g"))
    assert load_measurements(path) == MEASURED


def test_plain_tables_are_read_from_yaml_and_json(tmp_path: Path) -> None:
    for name, text in (("t.yaml", "conv1: 812500\nRelu: 3\n"), ("t.json", '{"conv1": 812500, "Relu": 3}')):
        path = tmp_path / name
        path.write_text(text)
        assert load_measurements(path) == Measurements({"conv1": 812500, "Relu": 3})


@pytest.mark.parametrize("time", ["-1", "1.5", "fast", "true"])
def test_a_measured_time_is_a_whole_number(time: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"conv1: {time}\n")
    with pytest.raises(UsageError, match=r"c\.yaml:1: conv1: .* is not a whole number of nanoseconds"):
        load_measurements(path)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"time_ns": 3', '"time_ns": -3', r"ops\.a\.time_ns: -3 is not a whole number of nanoseconds"),
        ('"workspace_bytes": 512', '"workspace_bytes": "x"', r"ops\.a\.workspace_bytes: 'x' is not .* bytes"),
        ('"time_ns": 3', '"tiem_ns": 3', r"ops\.a\.tiem_ns: there is no such key"),
        ('"time_ns": 3, ', "", r"ops\.a: has no time_ns"),
        ('{"batch": 2}', '{"batch": 0.5}', r"dims\.batch: 0\.5 is not a whole number of elements"),
        ('{"batch": 2}', "[2]", r"dims: \[2\] is not a mapping"),
        ("}\n}\n", "", "ends too early"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(before: str, after: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    text = measurements_bytes(MEASURED, "g").decode()
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(UsageError, match=message):
        load_measurements(path)
