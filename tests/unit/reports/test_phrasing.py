"""Words of reports that hold on a threshold."""

from __future__ import annotations

import pytest

from remat_cli.core.bounds import WorkingSet
from remat_cli.reports.phrasing import note_on_room, room_in_words


@pytest.mark.parametrize(
    ("plain_peak_bytes", "said"),
    [
        (1_000, "There is no room for a plan"),
        (1_001, "There is next to no room for a plan"),
        (1_049, "There is next to no room for a plan"),
        (1_050, "The plain peak is 1.05 times that: no plan can save more than 4.76 % of it."),
        (12_000, "The plain peak is 12 times that"),
    ],
)
def test_how_much_room_there_is_for_a_plan(plain_peak_bytes: int, said: str) -> None:
    assert room_in_words(plain_peak_bytes, WorkingSet(1_000, "op", ("x",))).startswith(said)


@pytest.mark.parametrize(
    ("peak_bytes", "said"),
    [
        (10**9, "eager fits the 1.000 GB of a device: 0 B are left"),
        (10**9 + 1_000, "eager does not fit the 1.000 GB of a device: 1.000 kB are missing"),
    ],
)
def test_whether_eager_fits_a_device(peak_bytes: int, said: str) -> None:
    assert note_on_room(peak_bytes, "a device", 10**9).startswith(said)
