"""The judge's check of an arena: one bad arena a rule, and faults in good ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from remat_cli.allocation.of_schedule import arena_of
from remat_cli.core.arena import AT_START, Address, Arena, Bank, check_arena
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule, Wait, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.errors import InvalidSchedule
from remat_cli.planners.shared.limits import Limits
from tests.graphs import compute_sequences, graph_of, op, small_graphs

# x (3 bytes, an input) makes a (4), from which b (2) is made, with a workspace of 5.
GRAPH = graph_of(op("A", "x", "a"), op("B", "a", "b", workspace_bytes=5), sizes={"x": 3, "a": 4, "b": 2})
SCHEDULE = Schedule((Compute("A"), Compute("B"), Free("a")))
GOOD = (Address(AT_START, "x", 0), Address(0, "a", 3), Address(1, "b", 7), Address(1, None, 9))


def arena(*addresses: Address, size: int = 14, alignment: int = 1) -> Arena:
    return Arena(size, alignment, addresses)


def refused(given: Arena, graph: Graph = GRAPH, schedule: Schedule = SCHEDULE) -> str:
    with pytest.raises(InvalidSchedule) as refusal:
        check_arena(graph, schedule, given)
    return refusal.value.message


def test_arena_in_which_nothing_overlaps_is_right() -> None:
    check_arena(GRAPH, SCHEDULE, arena(*GOOD))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (Address(1, "b", 6), "step 1: tensor 'b' lies at 6 to before 8, tensor 'a' at 3 to before 7"),
        (Address(1, "b", 2), "step 1: tensor 'b' lies at 2 to before 4, tensor 'x' at 0 to before 3"),
        (Address(1, None, 8), "step 1: the workspace lies at 8 to before 13, tensor 'b' at 7 to before 9"),
        (Address(1, None, 10), "step 1: the workspace lies at 10 to before 15, outside the arena of 14 bytes"),
        (Address(AT_START, "x", -1), "the start: tensor 'x' lies at -1, outside the arena of 14 bytes"),
        (Address(0, "a", 1), "step 0: tensor 'a' lies at 1 to before 5, tensor 'x' at 0 to before 3"),
    ],
)
def test_first_clash_is_named(changed: Address, says: str) -> None:
    addresses = [changed if (each.step, each.tensor) == (changed.step, changed.tensor) else each for each in GOOD]
    assert says in refused(arena(*addresses))


def test_a_clash_with_the_lowest_tensor_is_named_where_others_lie_above_it() -> None:
    addresses = (Address(AT_START, "x", 1), Address(0, "a", 4), Address(1, "b", 0), Address(1, None, 8))
    assert "step 1: tensor 'b' lies at 0 to before 2, tensor 'x' at 1 to before 4" in refused(arena(*addresses))


@pytest.mark.parametrize("missing", GOOD)
def test_each_thing_needs_an_address(missing: Address) -> None:
    assert "no address for" in refused(arena(*(each for each in GOOD if each != missing)))


@pytest.mark.parametrize("more", [Address(2, "a", 0), Address(1, "a", 0), Address(0, None, 0), Address(7, "x", 0)])
def test_an_address_of_nothing_is_refused(more: Address) -> None:
    assert "makes nothing that an address is for" in refused(arena(*GOOD, more))


def test_two_addresses_for_one_thing_are_refused() -> None:
    assert "two addresses for tensor 'a'" in refused(arena(*GOOD, Address(0, "a", 9)))


def test_addresses_are_multiples_of_the_alignment() -> None:
    aligned = [replace(each, offset=8 * index) for index, each in enumerate(GOOD)]
    check_arena(GRAPH, SCHEDULE, arena(*aligned, size=29, alignment=8))
    aligned[2] = replace(aligned[2], offset=20)
    assert "lies at 20, no multiple of 8" in refused(arena(*aligned, size=29, alignment=8))


def test_freed_bytes_are_there_again() -> None:
    schedule = Schedule((Compute("A"), Compute("B"), Free("a"), Free("b"), Compute("A"), Compute("B"), Free("a")))
    again = (Address(4, "a", 5), Address(5, "b", 3), Address(5, None, 9))
    check_arena(GRAPH, schedule, arena(*GOOD, *again))
    simulate(GRAPH, schedule)


def test_what_an_in_place_step_takes_over_keeps_its_offset() -> None:
    graph = graph_of(op("A", "", "a"), op("B", "a", "b c", inplace="a"), sizes={"a": 4, "b": 6, "c": 1})
    schedule = Schedule((Compute("A"), Inplace("B")))
    check_arena(graph, schedule, arena(Address(0, "a", 0), Address(1, "c", 6), size=7))
    assert "lies at 5 to before 6, tensor 'b' at 0" in refused(
        arena(Address(0, "a", 0), Address(1, "c", 5), size=7), graph, schedule
    )
    assert "outside the arena of 5 bytes" in refused(
        arena(Address(0, "a", 0), Address(1, "c", 4), size=5), graph, schedule
    )
    assert "nothing that an address is for: tensor 'b'" in refused(
        arena(Address(0, "a", 0), Address(1, "b", 8), Address(1, "c", 6), size=20), graph, schedule
    )


def test_what_comes_back_from_the_host_has_an_address_of_its_own() -> None:
    steps = (Compute("A"), Offload("a"), Wait("a"), Free("a"), Prefetch("a"), Wait("a"), Compute("B"), Free("a"))
    addresses = [GOOD[0], GOOD[1], Address(4, "a", 8), Address(6, "b", 3), Address(6, None, 12)]
    check_arena(GRAPH, Schedule(steps), arena(*addresses, size=17))
    assert "step 4: no address for tensor 'a'" in refused(
        arena(*addresses[:2], *addresses[3:], size=17), schedule=Schedule(steps)
    )


def occupied(graph: Graph, schedule: Schedule, given: Arena) -> Sequence[set[tuple[int, int, int]]]:
    """Return, for each moment, (thing, first byte, end) of all that is there: step by step, by the format's words."""
    found = {(address.step, address.tensor): address.offset for address in given.addresses}
    there = {name: (found.get((AT_START, name), 0), graph.tensors[name].bytes) for name in graph.inputs}
    moments = []
    for index, step in enumerate(schedule.steps):
        during = {}
        if isinstance(step, Free):
            there.pop(step.tensor, None)
        if isinstance(step, Compute | Inplace):
            ran = graph.op[step.op]
            outputs = ran.outputs
            if isinstance(step, Inplace):
                assert ran.inplace is not None
                offset, size = there.pop(ran.inplace)
                there[outputs[0]] = offset, max(size, graph.tensors[outputs[0]].bytes)
                outputs = outputs[1:]
            for name in outputs:
                if name not in there and graph.tensors[name].bytes:
                    there[name] = found[index, name], graph.tensors[name].bytes
            if ran.workspace_bytes:
                during["workspace"] = found[index, None], ran.workspace_bytes
        moments.append({(hash(name), at, at + size) for name, (at, size) in (there | during).items() if size})
    return moments


@given(small_graphs(max_ops=6), st.data())
def test_a_fault_that_makes_things_overlap_is_caught(graph: Graph, data: st.DataObject) -> None:
    schedule = with_frees(graph, data.draw(compute_sequences(graph)))
    _, good = arena_of(graph, schedule, Limits(work=1), alignment=1)
    assert good is not None
    check_arena(graph, schedule, good)
    assume(good.addresses)
    index = data.draw(st.integers(0, len(good.addresses) - 1))
    moved = list(good.addresses)
    moved[index] = replace(moved[index], offset=data.draw(st.integers(0, good.bytes)))
    faulty = replace(good, addresses=tuple(moved), bytes=3 * good.bytes)
    clash = any(
        first[1] < second[2] and second[1] < first[2]
        for things in occupied(graph, schedule, faulty)
        for first, second in combinations(sorted(things), 2)
    )
    if clash:
        assert "lies at" in refused(faulty, graph, schedule)
    else:
        check_arena(graph, schedule, faulty)


@given(small_graphs(max_ops=6), st.data())
def test_arena_is_never_below_what_the_simulator_measures(graph: Graph, data: st.DataObject) -> None:
    schedule = with_frees(graph, data.draw(compute_sequences(graph)))
    found, good = arena_of(graph, schedule, Limits(work=1), alignment=1)
    assert good is not None
    assert good.bytes >= simulate(graph, schedule).peak_bytes - graph.resident_bytes
    assert found.bytes == good.bytes


BANKS = (Bank("fast", 7, Fraction(1)), Bank("slow", 9, Fraction(1, 2)))
IN_BANKS = (
    Address(AT_START, "x", 0, "fast"),
    Address(0, "a", 3, "fast"),
    Address(1, "b", 0, "slow"),
    Address(1, None, 2, "slow"),
)


def in_banks(*addresses: Address, size: int = 14, alignment: int = 1, banks: tuple[Bank, ...] = BANKS) -> Arena:
    return Arena(size, alignment, addresses, banks)


def test_banks_in_which_nothing_overlaps_are_right() -> None:
    check_arena(GRAPH, SCHEDULE, in_banks(*IN_BANKS))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            Address(1, "b", 3, "slow"),
            "the workspace lies at 2 to before 7, tensor 'b' at 3 to before 5, both in bank 'slow'",
        ),
        (Address(1, None, 5, "slow"), "the workspace lies at 5 to before 10, outside bank 'slow' of 9 bytes"),
        (Address(0, "a", 4, "fast"), "tensor 'a' lies at 4 to before 8, outside bank 'fast' of 7 bytes"),
        (Address(0, "a", -1, "slow"), "tensor 'a' lies at -1, outside bank 'slow' of 9 bytes"),
        (Address(0, "a", 7, "fast"), "tensor 'a' lies at 7, outside bank 'fast' of 7 bytes"),
        (Address(0, "a", 0, "flash"), "tensor 'a' lies in no bank that there is: 'flash'"),
        (Address(0, "a", 0), "tensor 'a' lies in no bank that there is: None"),
    ],
)
def test_first_clash_in_banks_is_named(changed: Address, says: str) -> None:
    addresses = [changed if (each.step, each.tensor) == (changed.step, changed.tensor) else each for each in IN_BANKS]
    assert says in refused(in_banks(*addresses))


def test_two_banks_of_one_name_are_refused() -> None:
    assert "two banks are named 'fast'" in refused(in_banks(*IN_BANKS, banks=(*BANKS, BANKS[0])))


def test_banks_are_listed_in_any_order_of_their_names() -> None:
    check_arena(GRAPH, SCHEDULE, in_banks(*IN_BANKS, size=14 + 2, banks=(*BANKS, Bank("a third", 2, Fraction(1)))))


def test_more_of_the_banks_than_the_arena_says_is_refused() -> None:
    assert "14 bytes of the banks are used, not 13" in refused(in_banks(*IN_BANKS, size=13))


def test_alignment_is_that_of_offsets_in_a_bank() -> None:
    banks = (Bank("fast", 7, Fraction(1)), Bank("slow", 12, Fraction(1)))
    aligned = [replace(each, offset=4 * at) for each, at in zip(IN_BANKS, (0, 1, 0, 1), strict=True)]
    assert "tensor 'a' lies at 4 to before 8" in refused(in_banks(*aligned, size=20, alignment=4, banks=banks))
    wider = (Bank("fast", 9, Fraction(1)), *banks[1:])
    check_arena(GRAPH, SCHEDULE, in_banks(*aligned, size=20, alignment=4, banks=wider))
    moved = [*aligned[:2], replace(aligned[2], offset=2), aligned[3]]
    assert "lies at 2, no multiple of 4" in refused(in_banks(*moved, size=20, alignment=4, banks=wider))
