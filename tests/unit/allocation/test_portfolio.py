"""Offsets held against an exhaustive search, and against what must hold of any."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from threading import enumerate as threads

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.allocation import exact, portfolio
from remat_cli.allocation.portfolio import Allocation, allocate
from remat_cli.allocation.skyline import Beam
from remat_cli.core.buffers import Buffer
from remat_cli.core.problem import Observer, Status
from remat_cli.planners.shared.limits import Limits


@st.composite
def drawn_buffers(draw: st.DrawFn, most: int = 6) -> tuple[Buffer, ...]:
    lowers = st.integers(0, 5)
    buffers = []
    for _ in range(draw(st.integers(1, most))):
        lower = draw(lowers)
        buffers.append(Buffer(lower, lower + draw(st.integers(1, 4)), draw(st.integers(1, 5))))
    return tuple(buffers)


def overlaps(first: Buffer, second: Buffer) -> bool:
    return first.lower < second.upper and second.lower < first.upper


def check(buffers: Sequence[Buffer], found: Allocation, alignment: int = 1) -> None:
    assert found.offsets is not None
    assert found.bytes is not None
    assert len(found.offsets) == len(buffers)
    for buffer, offset in zip(buffers, found.offsets, strict=True):
        assert offset % alignment == 0
        assert 0 <= offset <= found.bytes - buffer.size
    for (first, at), (second, other) in combinations(zip(buffers, found.offsets, strict=True), 2):
        if overlaps(first, second):
            assert at + first.size <= other or other + second.size <= at


def smallest_height(buffers: Sequence[Buffer]) -> int:
    """Try every offset of every buffer, heights from below."""
    height = max(buffer.size for buffer in buffers)
    while not _fits(buffers, height, ()):
        height += 1
    return height


def _fits(buffers: Sequence[Buffer], height: int, offsets: tuple[int, ...]) -> bool:
    if len(offsets) == len(buffers):
        return True
    new = buffers[len(offsets)]
    return any(
        all(
            not overlaps(new, old) or at + new.size <= other or other + old.size <= at
            for old, other in zip(buffers, offsets, strict=False)
        )
        and _fits(buffers, height, (*offsets, at))
        for at in range(height - new.size + 1)
    )


@given(drawn_buffers())
def test_smallest_arena_is_that_of_exhaustive_search(buffers: tuple[Buffer, ...]) -> None:
    found = allocate(buffers, Limits(work=20))
    check(buffers, found)
    assert found.status is Status.OPTIMAL
    assert found.bytes == found.bound_bytes == smallest_height(buffers)


@given(drawn_buffers(), st.integers(0, 3))
def test_infeasible_is_said_exactly_below_the_smallest(buffers: tuple[Buffer, ...], beyond: int) -> None:
    smallest = smallest_height(buffers)
    capacity = smallest - 2 + beyond
    found = allocate(buffers, Limits(work=20), capacity=capacity)
    assert (found.status is Status.INFEASIBLE) == (capacity < smallest)
    if found.offsets is not None:
        check(buffers, found)
        assert found.bytes is not None
        assert found.bytes <= capacity


@given(drawn_buffers(most=12), st.sampled_from([1, 2, 4, 64]))
def test_offsets_and_size_are_aligned(buffers: tuple[Buffer, ...], alignment: int) -> None:
    found = allocate(buffers, Limits(work=5), alignment=alignment)
    check(buffers, found, alignment)
    assert found.bytes is not None
    assert found.bytes % alignment == 0


def hard_buffers(count: int = 120) -> tuple[Buffer, ...]:
    """Buffers of a size and life that come of a fixed rule, in which greedy orders leave gaps."""
    return tuple(Buffer(start := i * 7 % 60, start + 3 + i * 11 % 23, 1 + i * 37 % 29) for i in range(count))


def test_search_ends_lower_than_greedy_orders() -> None:
    buffers = hard_buffers()
    greedy = allocate(buffers, Limits(work=0))
    found = allocate(buffers, Limits(work=10))
    check(buffers, found)
    assert greedy.bytes is not None
    assert found.bytes is not None
    assert found.bytes < greedy.bytes


def test_work_alone_gives_the_same_offsets_again() -> None:
    buffers = hard_buffers()
    assert allocate(buffers, Limits(work=3)) == allocate(buffers, Limits(work=3))


@pytest.mark.parametrize("widths", [(1,), (1, 16)])
def test_number_of_cores_makes_no_difference(monkeypatch: pytest.MonkeyPatch, widths: tuple[int, ...]) -> None:
    # With a narrow beam alone the solver has its say; where a wide one finds offsets too, those go before the solver's.
    monkeypatch.setattr(portfolio, "_beams", lambda: iter(tuple(Beam(width) for width in widths)))
    buffers = hard_buffers(60)
    alone = allocate(buffers, Limits(work=6, cores=1))
    check(buffers, alone)
    assert allocate(buffers, Limits(work=6, cores=3)) == alone


def test_two_cores_search_side_by_side_and_leave_no_thread() -> None:
    buffers = hard_buffers(60)
    load = max(sum(b.size for b in buffers if b.lower <= moment < b.upper) for moment in range(100))
    found = allocate(buffers, Limits.of(20, cores=2), capacity=load + load // 20)
    check(buffers, found)
    assert [thread.name for thread in threads() if thread.name.startswith(("allocation", "cp-sat"))] == []


def test_all_orders_are_tried_where_the_first_one_fits() -> None:
    buffers = (Buffer(0, 4, 1), Buffer(0, 1, 6), Buffer(1, 2, 5), Buffer(3, 6, 5))
    found = allocate(buffers, Limits(work=0.001), capacity=100)
    check(buffers, found)
    assert found.bytes == found.bound_bytes == 7


def test_no_time_proves_nothing() -> None:
    found = allocate(hard_buffers(), Limits(work=0), capacity=440)
    assert found.status is Status.UNKNOWN or found.bound_bytes > 440


def test_nothing_takes_nothing() -> None:
    assert allocate((), Limits()) == Allocation(Status.OPTIMAL, (), 0, 0)


class Stops(Observer):
    """Ctrl-C once the search has turned to what takes its time."""

    def phase(self, text: str) -> None:
        if "of the load" in text:
            raise KeyboardInterrupt


def test_ctrl_c_keeps_the_best() -> None:
    buffers = hard_buffers()
    found = allocate(buffers, Limits(work=10), observe=Stops())
    check(buffers, found)
    assert found.interrupted


def test_ctrl_c_before_anything_was_found_ends_the_search() -> None:
    class AtOnce(Observer):
        def phase(self, text: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        allocate(hard_buffers(), Limits(), observe=AtOnce())


def test_solver_alone_finds_and_proves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "_MOST_FOR_BEAMS", 0)
    monkeypatch.setattr(exact, "MOST_OVERLAPS", 0)
    buffers = hard_buffers(25)
    found = allocate(buffers, Limits(work=20))
    check(buffers, found)
    assert found.status is Status.OPTIMAL
