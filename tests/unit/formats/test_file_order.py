"""The order of a file, and the nearest one to it."""

from __future__ import annotations

from graphlib import CycleError

import pytest

from remat_cli.formats.file_order import file_order


def test_an_order_that_can_run_stays() -> None:
    assert file_order([[], [0], [], [1, 2]]) == [0, 1, 2, 3]


def test_of_what_can_run_the_first_in_the_file_does() -> None:
    assert file_order([[3], [], [1], []]) == [1, 2, 3, 0]


def test_a_circle_has_none() -> None:
    with pytest.raises(CycleError):
        file_order([[1], [0]])
