from __future__ import annotations

from fractions import Fraction

import pytest

from remat_cli.core.link import Link


@pytest.mark.parametrize("rate", [0, -1])
def test_a_link_moves_something(rate: int) -> None:
    with pytest.raises(ValueError, match="moves nothing"):
        Link(Fraction(rate))


def test_a_transfer_takes_whole_units_of_time_exactly() -> None:
    third = Link(Fraction(1, 3))
    assert [third.transfer_time(size) for size in (0, 1, 2**60 + 1)] == [0, 3, 3 * (2**60 + 1)]
    assert [Link(Fraction(3)).transfer_time(size) for size in (6, 7)] == [2, 3]
