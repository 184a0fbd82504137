"""First fit that moves what does not fit to an earlier place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remat_cli.allocation.greedy import first_fit
from remat_cli.allocation.instance import Instance
from remat_cli.allocation.promoted_fit import PromotedFits, _placing, orders, place
from remat_cli.core.buffers import Buffer
from tests.planted import planted
from tests.unit.allocation.test_exact import check_offsets
from tests.unit.allocation.test_portfolio import drawn_buffers, smallest_height


@given(drawn_buffers(most=12), st.integers(0, 3))
def test_with_room_enough_it_is_first_fit(buffers: tuple[Buffer, ...], at: int) -> None:
    instance = Instance.of(buffers, 1)
    order = list(orders(instance))[at]
    search = _placing(instance, order.copy(), 0)
    assert place(search, 10**6, 10**6)
    offsets = dict(zip(search.order.tolist(), search.placed[:, 2].tolist(), strict=True))
    assert [offsets[buffer] for buffer in range(len(buffers))] == first_fit(instance, order).tolist()


@given(drawn_buffers(), st.integers(-1, 2))
def test_what_is_found_fits_and_nothing_is_found_below_the_smallest(buffers: tuple[Buffer, ...], beyond: int) -> None:
    smallest = smallest_height(buffers)
    capacity = smallest + beyond
    if capacity < max(buffer.size for buffer in buffers):
        return
    search = PromotedFits(Instance.of(buffers, 1), capacity)
    search.go_on(0.02, lambda: False)
    assert (search.offsets is None) == (beyond < 0)
    if search.offsets is not None:
        check_offsets(buffers, search.offsets, capacity)


def test_it_goes_on_where_it_was_left() -> None:
    instance = Instance.of(planted(60, 1000, 4, taken_out=0.2), 1)
    capacity = int(1.05 * instance.load)
    order = next(orders(instance))
    at_once, left = (_placing(instance, order.copy(), 5) for _ in range(2))
    place(at_once, capacity, 60_000)
    while left.state[3] < at_once.state[3]:
        place(left, capacity, 1)
    assert left.state.tolist() == at_once.state.tolist()
    assert left.order.tolist() == at_once.order.tolist()


def test_greedy_orders_are_beaten_on_tables_of_many_buffers() -> None:
    instance = Instance.of(planted(400, 4_000, 2, taken_out=0.3), 1)
    greedy = min(int((first_fit(instance, order) + instance.sizes).max()) for order in orders(instance))
    search = PromotedFits(instance, int(0.97 * greedy))
    search.go_on(20.0, lambda: False)
    assert search.offsets is not None
    check_offsets(planted(400, 4_000, 2, taken_out=0.3), search.offsets, int(0.97 * greedy))


def test_search_stops_when_it_is_told_to() -> None:
    search = PromotedFits(Instance.of(planted(60, 1000, 1), 1), 999)
    search.go_on(1e9, lambda: True)
    assert search.offsets is None
