"""Files before their format is known."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from remat_cli.checks.baseline import read_baseline
from remat_cli.errors import GraphError, ScheduleFileError, UsageError
from remat_cli.formats import ReadOptions, read_graph, source
from remat_cli.formats.schedule_json import read_schedule
from remat_cli.formats.source import LARGEST_CONFIG, LARGEST_GRAPH, parse_json
from tests.places import ROOT


def hollow(folder: Path, size: int) -> Path:
    """A file that begins like JSON, and is a hole from there on."""
    path = folder / "large.json"
    path.write_text("{")
    with path.open("ab") as file:
        file.truncate(size)
    return path


def test_a_graph_of_more_than_two_gigabytes_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"has 2\.147 GB, more than the 2\.147 GB that are read") as caught:
        read_graph(hollow(tmp_path, LARGEST_GRAPH + 1))
    assert caught.value.hint


def test_a_model_is_opened_once_though_its_format_is_to_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ROOT / "graphs" / "unet.onnx"
    opened: list[Any] = []
    plain_open = io.open

    def watched(file: Any, *args: Any, **kwargs: Any) -> Any:
        opened.append(file)
        return plain_open(file, *args, **kwargs)

    monkeypatch.setattr("io.open", watched)
    read_graph(model, ReadOptions(dims={"batch": 2}))
    assert opened.count(model) == 1


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, -0, 1.5, 1e5, true, null, "\\u00e9\\ud83d\\ude00\\/"], "b": {"c": 1, "c": 2}}',
        '{"a": 123456789012345678901234567890, "b": 0.1, "c": 1e400, "d": -0.0}',
        '\ufeff{"a": "\u00e9"}',
        '{"a": "\\ud800"}',
        '{"a": "\udcff"}',  # no UTF-8
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 01}',
        '{"a": "\t"}',
        '{"a": 1} {}',
        '{"a": [1, 2',
        '{"a": [1,]}',
        '{"a": ' + "9" * 5000 + "}",
        "[" * 300 + "]" * 300,
        "[" * 100_000,
    ],
)
def test_json_that_compiled_code_reads_is_what_python_reads(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> str:
        try:
            return repr(parse_json(Path("file"), text.encode("utf-8", "surrogateescape")))
        except GraphError as error:
            return error.message

    def refuse(*_: object, **__: object) -> None:
        raise ValueError

    at_once = read()
    monkeypatch.setattr(source, "from_json", refuse)
    assert at_once == read()


def test_nor_is_such_a_schedule(tmp_path: Path) -> None:
    with pytest.raises(ScheduleFileError, match="more than the"):
        read_schedule(hollow(tmp_path, LARGEST_GRAPH + 1))


def test_nor_is_a_baseline_of_more_than_ten_megabytes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="more than the"):
        read_baseline(hollow(tmp_path, LARGEST_CONFIG + 1))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"time": 1, "time": 2}', "the key 'time' is given twice"),
        ('{"a" :1,"a":2}', "the key 'a' is given twice"),
        ('{"a\\": ":1,"a":2,"a":3}', "the key 'a' is given twice"),
        ('{"ops": [{"name": "f", "time": 1, "time": 1}]}', "the key 'time' is given twice in the object named 'f'"),
        ('{"ops": [{"name": "f:0", "x": {"b": 1, "b": 2}}]}', "the key 'b' is given twice"),
        ('{"ops": [[{"b": 1, "b": 2}]], "x": "a:"}', "the key 'b' is given twice"),
        ('{"ops": ["a", {"b": 1, "b": 2}]}', "the key 'b' is given twice"),
        ('\ufeff{"b": 1, "b": 2}', "the key 'b' is given twice"),
        ('{"\\u0062": 1, "b": 2}', "the key 'b' is given twice"),
        ('{"name": "x", "name": "y"}', "the key 'name' is given twice"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(text: str, says: str) -> None:
    with pytest.raises(GraphError) as caught:
        parse_json(Path("g.json"), text.encode())
    assert caught.value.message == f"g.json: {says}"


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"b": 1}, "c": {"b": 1}, "d": [{"b": 1}, {"b": 2}], "e": [[{"b": 1}], [{"b": ":"}]]}',
        '{"a:": 1, "a": "\\":", "b" : [1, {"a": 2}]}',
        "[]",
        '[{"a": 1}, {"a": 1}]',
        '"a:"',
    ],
)
def test_a_key_may_stand_in_many_objects(text: str) -> None:
    assert parse_json(Path("g.json"), text.encode()) == json.loads(text)
