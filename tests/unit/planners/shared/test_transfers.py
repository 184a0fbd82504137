"""Transfers of whole tensors, woven into sequences of computes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Graph, Kind, Phase
from remat_cli.core.link import Link
from remat_cli.core.schedule import Compute, Free, Offload, Prefetch, Schedule, Step, Wait, input_order, with_frees
from remat_cli.core.simulate import Trace, simulate
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.transfers import OffloadSequence
from tests.graphs import compute_sequences, graph_of, op, small_graphs, training_chain, training_graphs


def replayed(graph: Graph, schedule: Schedule, rate: Fraction = Fraction(1)) -> Trace:
    return simulate(graph, schedule, link=Link(rate))


def moving(
    graph: Graph, computes: Iterable[str], names: Iterable[str], rate: Fraction = Fraction(1)
) -> OffloadSequence:
    return OffloadSequence.moving_named(RematSequence.of_names(graph, computes), names, rate)


def moved(graph: Graph, budget: int, *, early: bool = True) -> Schedule:
    """The plain run with transfers of any tensors."""
    return moving(graph, input_order(graph), graph.producer).schedule_within(budget, early)


def test_what_the_device_waits_for_can_be_away() -> None:
    graph = two_skips()
    sequence = moving(graph, input_order(graph), ["x"], Fraction(1, 100))
    big = 2
    waits = np.zeros(len(graph.ops))
    waits[big] = waits[big + 1] = 400  # on the way out, and on the way back
    waiting = replace(sequence, waits=waits)
    assert sequence.memory[big] - waiting.memory[big] == 4


def test_waits_are_those_of_the_replay() -> None:
    graph = two_skips()
    sequence = moving(graph, input_order(graph), graph.producer, Fraction(1, 2))
    schedule = sequence.schedule_within(sequence.least_bytes)
    trace = replayed(graph, schedule, Fraction(1, 2))
    waiting = sequence.waiting_as(schedule, trace)
    assert trace.idle_time > 0
    assert waiting.waits.sum() == trace.idle_time
    assert waiting.peak <= sequence.peak


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


def test_what_comes_back_early_may_keep_another_from_leaving_and_just_in_time_does_not() -> None:
    graph = graph_of(
        op("make_x", "", "x"),
        op("big", "", "b", workspace_bytes=5),
        op("make_y", "", "y"),
        op("loss", "b", "g", phase=Phase.BACKWARD, time=3),
        op("use_x", "x g", "h", phase=Phase.BACKWARD),
        op("big_too", "h", "i", workspace_bytes=4, phase=Phase.BACKWARD),
        op("use_y", "y i", "j", phase=Phase.BACKWARD),
        sizes={"x": 2},
        kind=Kind.TRAINING,
    )
    assert transfers(moved(graph, budget=6)) == [Offload("x"), Prefetch("x"), Offload("y"), Prefetch("y")]
    late = moved(graph, budget=6, early=False)
    assert transfers(late) == [Offload("x"), Offload("y"), Prefetch("x"), Prefetch("y")]


def test_what_has_been_on_the_host_goes_there_once() -> None:
    graph = graph_of(
        op("make_x", "", "x"),
        op("big", "", "b", workspace_bytes=5),
        op("use_x", "x b", "c"),
        op("big_too", "c", "d", workspace_bytes=5),
        op("use_x_again", "x d", "e"),
        sizes={"x": 2},
    )
    schedule = moved(graph, budget=7)
    assert transfers(schedule) == [Offload("x"), Prefetch("x"), Prefetch("x")]
    assert replayed(graph, schedule).peak_bytes <= 7


def test_an_output_is_back_at_the_end() -> None:
    graph = graph_of(op("make_x", "", "x"), op("big", "", "b", workspace_bytes=5), sizes={"x": 2}, outputs=["x", "b"])
    schedule = moved(graph, budget=6)
    assert schedule.steps[-2:] == (Prefetch("x"), Wait("x"))
    assert replayed(graph, schedule).peak_bytes == 6


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
    sequence = moving(graph, computes, graph.producer)
    assert [graph.arrays.tensor_names[t] for t in sequence.instances[1][sequence.gaps.instance]] == ["g2"]


def test_only_movable_tensors_leave() -> None:
    graph = two_skips()
    sequence = moving(graph, input_order(graph), {"y"})
    assert sequence.least_bytes == 10
    assert transfers(sequence.schedule_within(10)) == [Offload("y"), Prefetch("y")]


def test_memory_is_that_of_a_run_in_which_nobody_waits() -> None:
    graph = graph_of(
        op("make_x", "", "x"),
        op("small", "", "b", time=4),
        op("big", "b", "c", time=4, workspace_bytes=5),
        op("small_too", "c", "d", time=4),
        op("use_x", "x d", "e"),
        sizes={"x": 4},
    )
    sequence = moving(graph, input_order(graph), graph.producer)
    assert sequence.memory.tolist() == [4, 5, 7, 6, 6]  # away during the big one, and back when the last begins
    assert sequence.away_at(2).tolist() == [0]
    trace = replayed(graph, sequence.schedule_within(sequence.peak))
    assert (trace.idle_time, trace.peak_bytes) == (0, 7)
    slower = moving(graph, input_order(graph), graph.producer, Fraction(4, 5))
    assert slower.peak == 11  # out takes until 6, which is too late


@pytest.mark.parametrize("rate", [Fraction(1, 3), Fraction(2), Fraction(10**6)])
@given(data=st.data())
def test_any_sequence_fits_any_budget_that_is_large_enough(rate: Fraction, data: st.DataObject) -> None:
    graph = data.draw(training_graphs(max_forward_ops=5) | small_graphs())
    computes = data.draw(compute_sequences(graph))
    produced = sorted(graph.producer)
    movable = data.draw(st.sets(st.sampled_from(produced))) if produced else set[str]()
    sequence = moving(graph, computes, movable, rate)
    plain = replayed(graph, with_frees(graph, computes))
    budget = data.draw(st.integers(sequence.least_bytes, plain.peak_bytes))
    schedule = sequence.schedule_within(budget, data.draw(st.booleans()))
    trace = replayed(graph, schedule, rate)
    assert trace.peak_bytes <= budget
    assert schedule.computes == computes
    assert trace.time == plain.time + trace.idle_time
    assert {step.tensor for step in schedule.steps if isinstance(step, Offload)} <= movable


@given(data=st.data())
def test_less_than_the_least_budget_is_not_enough_even_if_all_is_away(data: st.DataObject) -> None:
    graph = data.draw(training_graphs(max_forward_ops=5))
    sequence = moving(graph, input_order(graph), graph.producer)
    assert replayed(graph, sequence.schedule_within(sequence.least_bytes)).peak_bytes == sequence.least_bytes
