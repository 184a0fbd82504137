from __future__ import annotations

import pytest

from remat_cli.errors import UsageError
from remat_cli.splitting import SUM, Axis, Part, Split, bounds


def test_parts_differ_by_one_row_at_most_and_cover_all_rows() -> None:
    for rows in range(1, 30):
        for parts in range(1, rows + 1):
            spans = list(bounds(rows, parts))
            sizes = [end - start for start, end in spans]
            assert [row for start, end in spans for row in range(start, end)] == list(range(rows))
            assert max(sizes) - min(sizes) <= 1


def test_fewer_rows_are_larger() -> None:
    axis = Axis(12, {"x": Part(1, 2)}, {"y": Part(0), "total": SUM})
    assert axis.scaled(4) == Axis(4, {"x": Part(1, 6)}, {"y": Part(0, 3), "total": SUM})
    assert axis.scaled(5) is None
    assert axis.scaled(12) is axis


@pytest.mark.parametrize("text", ["8", "8,wide", "8,again", "8,wide,again"])
def test_a_cut_is_read_as_it_is_written(text: str) -> None:
    assert str(Split.parse(text)) == text


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "8,", "8,again,wide", "8 ", "٨", "10000000"])
def test_what_is_no_number_of_parts_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no number of parts"):
        Split.parse(text)
