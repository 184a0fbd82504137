"""Tables of buffers with a planted answer, and what the search for arenas makes of them."""

from __future__ import annotations

import pytest

from remat_cli.allocation.instance import Instance
from remat_cli.allocation.portfolio import Allocation
from remat_cli.core.buffers import Buffer
from remat_cli.core.problem import Status
from tests.hunt.tables import check_allocation, check_table
from tests.planted import planted


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [1, 7, 50, 400])
def test_pieces_fill_the_rectangle(count: int, seed: int) -> None:
    buffers = planted(count, 5_000, seed)
    assert count <= len(buffers) <= count + 4
    assert set(Instance.of(buffers, 1).loads.tolist()) == {5_000}


def test_seeds_draw_tables_of_their_own_and_draw_them_again() -> None:
    assert planted(30, 100, 1) == planted(30, 100, 1) != planted(30, 100, 2)
    assert len(planted(30, 100, 1, taken_out=0.1)) < len(planted(30, 100, 1))


@pytest.mark.parametrize("seed", [11, 23, 42])
def test_claims_about_tables_hold(seed: int) -> None:
    check_table(seed)


@pytest.mark.parametrize("offsets", [(0, 1), (0, 2)])
def test_what_overlaps_or_sticks_out_is_refuted(offsets: tuple[int, int]) -> None:
    with pytest.raises(AssertionError):
        check_allocation((Buffer(0, 2, 2), Buffer(1, 3, 2)), Allocation(Status.FEASIBLE, offsets, 3, 3))
