"""Transfers of whole tensors, woven into sequences of computes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remat_cli.planners.pofo.schedule import Movements

from remat_cli.graph import Graph, Kind, Phase
from remat_cli.link import Link
from remat_cli.schedule import Compute, Free, Offload, Prefetch, Schedule, Step, Wait, input_order, with_frees
from remat_cli.simulate import Trace, simulate
from tests.graphs import compute_sequences, graph_of, op, training_chain, training_graphs


def replayed(graph: Graph, schedule: Schedule, rate: Fraction = Fraction(1)) -> Trace:
    return simulate(graph, schedule, link=Link(rate))


def moved(graph: Graph, budget: int) -> Schedule:
    """The plain run with transfers of any tensors."""
    return Movements.of(graph, input_order(graph), graph.producer).schedule(budget)


def two_skips() -> Graph:
    """`x`, then `y`, are made first and wanted last, in reverse; `big` needs 6 bytes in between."""
    return graph_of(
        op("make_x", "", "x"),
        op("make_y", "", "y"),
        op("big", "", "b", workspace_bytes=5, time=2),
        op("loss", "b", "g", phase=Phase.BACKWARD),
        op("use_y", "y g", "h", phase=Phase.BACKWARD),
        op("use_x", "x h", "i", phase=Phase.BACKWARD),
        sizes={"x": 4, "y": 2},
        kind=Kind.TRAINING,
    )


def test_nothing_moves_where_all_fits() -> None:
    graph = two_skips()
    plain = with_frees(graph, input_order(graph))
    assert moved(graph, budget=12) == plain
    assert replayed(graph, plain).peak_bytes == 12


def test_the_oldest_leaves_for_the_op_that_needs_its_memory_and_comes_back_once_there_is_room() -> None:
    graph = two_skips()
    schedule = moved(graph, budget=11)
    made, moved_x = (Compute("make_x"), Offload("x"), Compute("make_y")), (Wait("x"), Free("x"))
    assert schedule.steps[:7] == (*made, *moved_x, Compute("big"), Prefetch("x"))
    # Ready at 1, waited for until 5; back from 7 on, which takes until 11.
    assert schedule.steps[-4:-2] == (Wait("x"), Compute("use_x"))
    trace = replayed(graph, schedule)
    assert (trace.peak_bytes, trace.idle_time, trace.time) == (8, 3 + 2, 12)


def test_both_leave_in_order_and_come_back_in_reverse() -> None:
    graph = two_skips()
    schedule = moved(graph, budget=6)
    assert transfers(schedule) == [Offload("x"), Offload("y"), Prefetch("y"), Prefetch("x")]
    assert replayed(graph, schedule).peak_bytes == 6


def transfers(schedule: Schedule) -> list[Step]:
    return [step for step in schedule.steps if isinstance(step, Offload | Prefetch)]


def test_what_is_wanted_first_comes_back_first_even_if_there_is_room_for_another_before() -> None:
    graph = graph_of(
        op("make_small", "", "small"),
        op("make_large", "", "large"),
        op("big", "", "b", workspace_bytes=5),
        op("small_fits", "b", "c", workspace_bytes=3),
        op("loss", "c", "g", phase=Phase.BACKWARD),
        op("use_large", "large g", "h", phase=Phase.BACKWARD),
        op("use_small", "small h", "i", phase=Phase.BACKWARD),
        sizes={"large": 4},
        kind=Kind.TRAINING,
    )
    assert transfers(moved(graph, budget=6))[2:] == [Prefetch("large"), Prefetch("small")]


def test_nothing_comes_back_before_the_last_has_begun_to_leave() -> None:
    graph = graph_of(
        op("make_x", "", "x"),
        op("big", "", "b", workspace_bytes=5),
        op("make_y", "", "y"),
        op("loss", "b", "g", phase=Phase.BACKWARD),
        op("use_x", "x g", "h", phase=Phase.BACKWARD),
        op("big_too", "h", "i", workspace_bytes=4, phase=Phase.BACKWARD),
        op("use_y", "y i", "j", phase=Phase.BACKWARD),
        sizes={"x": 2},
        kind=Kind.TRAINING,
    )
    assert transfers(moved(graph, budget=6)) == [Offload("x"), Offload("y"), Prefetch("x"), Prefetch("y")]


def test_a_tensor_stays_where_a_larger_one_that_left_after_it_makes_room_enough() -> None:
    graph = graph_of(
        op("make_small", "", "small"),
        op("make_large", "", "large"),
        op("big", "", "b", workspace_bytes=5),
        op("loss", "b small large", "g", phase=Phase.BACKWARD),
        sizes={"small": 1, "large": 4},
        kind=Kind.TRAINING,
    )
    # 3 bytes too many: the small one alone is not enough, the large one is.
    assert transfers(moved(graph, budget=8)) == [Offload("large"), Prefetch("large")]


def test_a_tensor_that_is_made_again_does_not_travel() -> None:
    graph = training_chain(2)
    computes = ("f1", "f2", "loss", "f1", "b2", "b1")
    # The gradient reads the second a1, and a2 goes straight to the loss.
    assert Movements.of(graph, computes, graph.producer).absences == []


def test_only_movable_tensors_leave() -> None:
    graph = two_skips()
    movements = Movements.of(graph, input_order(graph), {"y"})
    assert [absence.name for absence in movements.absences] == ["y"]
    assert movements.least_bytes == 10


@pytest.mark.parametrize("rate", [Fraction(1, 3), Fraction(2), Fraction(10**6)])
@given(data=st.data())
def test_any_sequence_fits_any_budget_that_is_large_enough(rate: Fraction, data: st.DataObject) -> None:
    graph = data.draw(training_graphs(max_forward_ops=5))
    computes = data.draw(compute_sequences(graph))
    movable = data.draw(st.sets(st.sampled_from(sorted(graph.producer))))
    movements = Movements.of(graph, computes, movable)
    plain = replayed(graph, with_frees(graph, computes))
    budget = data.draw(st.integers(movements.least_bytes, plain.peak_bytes))
    schedule = movements.schedule(budget)
    trace = replayed(graph, schedule, rate)
    assert trace.peak_bytes <= budget
    assert schedule.computes == computes
    assert trace.time == plain.time + trace.idle_time
    assert {step.tensor for step in schedule.steps if isinstance(step, Offload)} <= movable


@given(data=st.data())
def test_less_than_the_least_budget_is_not_enough_even_if_all_is_away(data: st.DataObject) -> None:
    graph = data.draw(training_graphs(max_forward_ops=5))
    movements = Movements.of(graph, input_order(graph), graph.producer)
    assert replayed(graph, movements.schedule(movements.least_bytes)).peak_bytes == movements.least_bytes
