"""Files before their format is known."""

from __future__ import annotations

import io
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
