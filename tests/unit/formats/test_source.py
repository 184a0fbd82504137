"""Files before their format is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.checks.baseline import read_baseline
from remat_cli.errors import GraphError, ScheduleFileError, UsageError
from remat_cli.formats import read_graph
from remat_cli.formats.schedule_json import read_schedule
from remat_cli.formats.source import LARGEST_CONFIG, LARGEST_GRAPH


def hollow(folder: Path, size: int) -> Path:
    """A file that begins like JSON, and is a hole from there on."""
    path = folder / "large.json"
    path.write_text("{")
    with path.open("ab") as file:
        file.truncate(size)
    return path


def test_a_graph_of_more_than_two_gigabytes_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"has 2\.000 GB, more than the 2\.000 GB that are read") as caught:
        read_graph(hollow(tmp_path, LARGEST_GRAPH + 1))
    assert caught.value.hint


def test_nor_is_such_a_schedule(tmp_path: Path) -> None:
    with pytest.raises(ScheduleFileError, match="more than the"):
        read_schedule(hollow(tmp_path, LARGEST_GRAPH + 1))


def test_nor_is_a_baseline_of_more_than_ten_megabytes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="more than the"):
        read_baseline(hollow(tmp_path, LARGEST_CONFIG + 1))
