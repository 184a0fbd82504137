from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest

from remat_cli.core.graph import Graph, Kind, Phase, Residency
from remat_cli.core.link import Direction, Duplex, Link
from remat_cli.core.schedule import STEP_NAMES, Schedule, Step
from remat_cli.core.simulate import Trace, Transfer, simulate
from remat_cli.errors import InvalidSchedule
from tests.graphs import chain, diamond, graph_of, in_place, multi_output, op, with_view, with_workspace

TO_HOST, TO_DEVICE = Direction
STEPS: Mapping[str, Callable[[str], Step]] = {name: step for step, name in STEP_NAMES.items()}


def run(
    graph: Graph,
    steps: str,
    *,
    link: float | None = None,
    duplex: Duplex = Duplex.HALF,
    on_host: tuple[str, ...] = (),
) -> Trace:
    """Replay steps as people write them: "a, b, free x, inplace c"; a lone name is a compute."""
    schedule = Schedule(tuple(map(_step, steps.split(", "))), on_host)
    return simulate(graph, schedule, link=None if link is None else Link(Fraction(link), duplex))


def _step(text: str) -> Step:
    kind, _, name = text.rpartition(" ")
    return STEPS[kind or "compute"](name)


def refusal(graph: Graph, steps: str, *, link: float | None = None) -> InvalidSchedule:
    with pytest.raises(InvalidSchedule) as caught:
        run(graph, steps, link=link)
    return caught.value


# What a schedule costs: hand-worked traces


def test_memory_at_every_step_of_a_diamond() -> None:
    trace = run(diamond(), "a, b, c, free ta, d, free tb, free tc")
    assert trace.memory_bytes == (0, 4, 6, 8, 4, 5, 3, 1)
    assert (trace.peak_bytes, trace.peak_step) == (8, 2)


def test_resident_bytes_and_graph_inputs_are_there_from_start_to_end() -> None:
    graph = graph_of(op("a", "in", "x"), sizes={"in": 5, "x": 1}, resident_bytes=100)
    assert run(graph, "a").memory_bytes == (105, 106)


def test_peak_at_the_start() -> None:
    trace = run(graph_of(op("a", "in", ""), sizes={"in": 5}), "a")
    assert (trace.peak_bytes, trace.peak_step) == (5, -1)


def test_graph_input_that_no_op_reads_counts() -> None:
    graph = graph_of(op("a", "in", "x"), sizes={"in": 5, "x": 1}, outputs=["in", "x"])
    assert run(graph, "a").memory_bytes == (5, 6)


def test_workspace_counts_only_while_the_op_runs() -> None:
    assert run(with_workspace(), "a, b, free x").memory_bytes == (0, 2, 2 + 3 + 7, 3)


def test_outputs_appear_together_and_are_freed_one_by_one() -> None:
    trace = run(multi_output(), "split, use_left, free left, use_right, free right")
    assert trace.memory_bytes == (0, 8, 9, 6, 7, 2)


def test_output_that_is_already_there_is_not_counted_twice() -> None:
    assert run(multi_output(), "split, free left, split, use_left, use_right").memory_bytes == (0, 8, 5, 8, 9, 10)


def test_recomputation_takes_time_and_is_counted() -> None:
    graph = graph_of(op("a", "", "x", time=3), op("b", "x", "y", time=10))
    trace = run(graph, "a, free x, a, b, free x, a")
    assert (trace.time, trace.runs, trace.recomputations) == (19, {"a": 3, "b": 1}, 2)


def test_op_may_take_no_time() -> None:
    assert run(graph_of(op("a", "", "x", time=0), op("b", "x", "y", time=2)), "a, b").time == 2


def test_without_transfers_nothing_is_idle() -> None:
    assert run(diamond(), "a, b, c, d").idle_time == 0


def test_view_takes_no_memory_and_reading_it_needs_its_base() -> None:
    assert run(with_view(), "make, flatten, use, free x, free v").memory_bytes == (0, 6, 6, 7, 1, 1)


# In place


def test_in_place_needs_no_memory_for_an_output_of_the_same_size() -> None:
    assert run(in_place(), "make, inplace relu, use, free y").memory_bytes == (0, 4, 4, 5, 1)


@pytest.mark.parametrize(
    ("x", "y", "memory"), [(4, 6, (0, 4, 6 + 2, 6)), (6, 4, (0, 6, 6 + 2, 4))], ids=["grows", "shrinks"]
)
def test_in_place_counts_the_larger_of_the_two_while_it_runs(x: int, y: int, memory: tuple[int, ...]) -> None:
    graph = graph_of(
        op("make", "", "x"),
        op("cast", "x", "y mask", inplace="x", workspace_bytes=1),
        sizes={"x": x, "y": y, "mask": 1},
        outputs=["y"],
    )
    assert run(graph, "make, inplace cast, free mask").memory_bytes == memory


def test_input_that_was_taken_over_is_gone() -> None:
    graph = graph_of(op("make", "", "x"), op("relu", "x", "y", inplace="x"), op("use", "x y", "z"))
    error = refusal(graph, "make, inplace relu, use")
    assert (error.step, error.message) == (2, "step 2 (compute 'use'): tensor 'x' is not in memory")


def test_in_place_on_an_op_that_cannot() -> None:
    error = refusal(chain(1, 1), "f1, inplace f2")
    assert error.step == 1
    assert error.message == "step 1 (inplace 'f2'): the op cannot work in place: it has no inplace input in the graph"


def test_in_place_on_a_graph_input() -> None:
    error = refusal(graph_of(op("relu", "in", "y", inplace="in")), "inplace relu")
    assert error.step == 0
    assert "step 0 (inplace 'relu'): it would take over graph input 'in'" in error.message


def test_in_place_while_the_first_output_is_in_memory() -> None:
    error = refusal(in_place(), "make, relu, inplace relu")
    assert (error.step, error.message) == (
        2,
        "step 2 (inplace 'relu'): its first output 'y' is in memory already",
    )


def test_in_place_without_its_input() -> None:
    error = refusal(in_place(), "make, free x, inplace relu")
    assert (error.step, error.message) == (2, "step 2 (inplace 'relu'): tensor 'x' is not in memory")


def test_in_place_runs_count_as_runs() -> None:
    trace = run(in_place(), "make, inplace relu, make, use")
    assert (trace.time, trace.runs) == (4, {"make": 2, "relu": 1, "use": 1})


# Rules of computing and freeing


@pytest.mark.parametrize("step", ["compute", "inplace"])
def test_unknown_op(step: str) -> None:
    error = refusal(chain(1), f"f1, {step} nope")
    assert (error.step, error.message) == (1, f"step 1 ({step} 'nope'): the graph has no op 'nope'")


@pytest.mark.parametrize("step", ["free", "offload", "prefetch", "wait"])
def test_unknown_tensor(step: str) -> None:
    error = refusal(chain(1), f"f1, {step} nope", link=1)
    assert (error.step, error.message) == (1, f"step 1 ({step} 'nope'): the graph has no tensor 'nope'")


def test_compute_before_its_input_was_made_says_who_makes_it() -> None:
    error = refusal(chain(1, 1), "f2, f1")
    assert (error.step, error.message) == (0, "step 0 (compute 'f2'): tensor 't1' is not in memory")
    assert "run 'f1'" in error.hint


def test_compute_after_its_input_was_freed() -> None:
    error = refusal(diamond(), "a, b, free ta, c, d")
    assert (error.step, error.message) == (3, "step 3 (compute 'c'): tensor 'ta' is not in memory")


def test_reader_of_a_view_after_its_base_was_freed() -> None:
    error = refusal(with_view(), "make, flatten, free x, use")
    assert (error.step, error.message) == (3, "step 3 (compute 'use'): tensor 'x' is not in memory")


@pytest.mark.parametrize("again", ["relu", "inplace relu"])
def test_op_that_must_run_once_runs_twice(again: str) -> None:
    graph = graph_of(op("make", "", "x"), op("relu", "x", "y", inplace="x", recomputable=False))
    error = refusal(graph, f"make, relu, free y, {again}")
    assert error.step == 3
    assert "the op must run exactly once" in error.message


def test_op_that_must_run_once_runs_once() -> None:
    assert run(graph_of(op("a", "", "x", recomputable=False)), "a").runs == {"a": 1}


def test_free_of_what_was_never_made() -> None:
    error = refusal(chain(1, 1), "free t1, f1, f2")
    assert (error.step, error.message) == (0, "step 0 (free 't1'): tensor 't1' is not in memory")


def test_free_twice() -> None:
    error = refusal(chain(1, 1), "f1, f2, free t1, free t1")
    assert (error.step, error.message) == (3, "step 3 (free 't1'): tensor 't1' is not in memory")


def test_free_of_a_graph_input() -> None:
    error = refusal(graph_of(op("a", "in", "x")), "a, free in")
    assert (error.step, error.message) == (
        1,
        "step 1 (free 'in'): tensor 'in' is a graph input, which stays from start to end",
    )


def test_op_that_was_never_run() -> None:
    error = refusal(graph_of(op("a", "", "x"), op("b", "", "y"), outputs=[]), "a")
    assert (error.step, error.message) == (None, "at the end: op 'b' was never run")


def test_output_that_is_not_there_at_the_end() -> None:
    error = refusal(chain(1), "f1, free t1")
    assert error.step is None
    assert error.message == "at the end: output 't1' is needed there, but tensor 't1' is not in memory"


def test_graph_input_may_be_an_output() -> None:
    assert run(graph_of(op("a", "in", "x"), outputs=["in"]), "a, free x").time == 1


# Transfers: what they cost. `big` has 6 bytes; a link of 2 bytes per time takes 3 to copy it.


def offloading() -> Graph:
    """`a` makes `big`, `b` works 2 on its own, `c` reads `big`."""
    return graph_of(
        op("a", "", "big"), op("b", "", "other", time=2), op("c", "big other", "end"), sizes={"big": 6, "other": 1}
    )


def test_offload_and_prefetch_overlap_with_compute() -> None:
    # a ends at 1; the offload runs from 1 to 4, b from 1 to 3, so the wait idles 1; the prefetch runs from 4 to 7.
    trace = run(offloading(), "a, offload big, b, wait big, free big, prefetch big, wait big, c", link=2)
    assert (trace.time, trace.idle_time) == (8, 1 + 3)


def test_device_copy_stays_until_it_is_freed_and_prefetch_takes_memory_from_its_issue() -> None:
    trace = run(offloading(), "a, offload big, b, wait big, free big, prefetch big, wait big, c", link=2)
    assert trace.memory_bytes == (0, 6, 6, 7, 7, 1, 7, 7, 8)


def test_transfer_that_has_ended_idles_nothing() -> None:
    graph = graph_of(op("a", "", "big"), op("b", "", "x", time=5), sizes={"big": 6})
    trace = run(graph, "a, offload big, b, wait big", link=2)
    assert (trace.time, trace.idle_time) == (6, 0)


def test_transfer_that_nobody_waits_for_costs_no_time() -> None:
    assert run(chain(100), "f1, offload t1", link=1).time == 1


def test_link_serves_one_transfer_at_a_time_first_in_first_out() -> None:
    # x is copied from 2 to 5, y from 5 to 9; so y, waited for first, ends at 9.
    graph = graph_of(op("a", "", "x"), op("b", "", "y"), sizes={"x": 3, "y": 4})
    assert run(graph, "a, b, offload x, offload y, wait y", link=1).time == 9


@pytest.mark.parametrize("step", ["offload big", "free big"])
def test_tensor_that_is_held_from_outside_stays(step: str) -> None:
    graph = graph_of(
        op("a", "", "big", recomputable=False), op("b", "big", "end"), outputs=["big", "end"], held=["big"]
    )
    with pytest.raises(InvalidSchedule, match="'big' is held from outside of the graph"):
        run(graph, f"a, {step}, b", link=1)


def both_ways() -> tuple[Graph, str]:
    """x goes out from 1 to 4; y goes out from 4 to 8, and x is asked back meanwhile."""
    graph = graph_of(op("a", "", "x"), op("b", "", "y", time=3), sizes={"x": 3, "y": 4})
    return graph, "a, offload x, b, wait x, free x, offload y, prefetch x, wait x"


def test_on_a_half_duplex_link_the_way_back_queues_behind_the_way_out() -> None:
    trace = run(*both_ways(), link=1)
    assert trace.transfers == (
        Transfer("x", TO_HOST, start=1, end=4, bytes=3, step=1),
        Transfer("y", TO_HOST, start=4, end=8, bytes=4, step=5),
        Transfer("x", TO_DEVICE, start=8, end=11, bytes=3, step=6),
    )
    assert (trace.time, trace.idle_time) == (11, 7)
    assert len(trace.times) == len(trace.memory_bytes)
    assert (trace.times[0], trace.times[-1]) == (0, 11)
    assert list(trace.times) == sorted(trace.times)


def test_on_a_full_duplex_link_both_ways_are_served_at_once() -> None:
    trace = run(*both_ways(), link=1, duplex=Duplex.FULL)
    assert trace.transfers[2] == Transfer("x", TO_DEVICE, start=4, end=7, bytes=3, step=6)
    assert (trace.time, trace.idle_time) == (7, 3)
    assert [trace.moved_bytes(direction) for direction in Direction] == [7, 3]
    assert [trace.busy_time(direction) for direction in Direction] == [7, 3]


def test_on_a_full_duplex_link_each_way_serves_one_transfer_at_a_time() -> None:
    # Both go out from 2 on, one after the other, and come back likewise: x from 9 to 12, y from 12 to 16.
    graph = graph_of(op("a", "", "x"), op("b", "", "y"), sizes={"x": 3, "y": 4})
    steps = "a, b, offload x, offload y, wait x, free x, wait y, free y, prefetch x, prefetch y, wait x, wait y"
    trace = run(graph, steps, link=1, duplex=Duplex.FULL)
    assert [(each.start, each.end) for each in trace.transfers] == [(2, 5), (5, 9), (9, 12), (12, 16)]
    assert (trace.time, trace.idle_time) == (16, 3 + 4 + 3 + 4)


def test_idle_link_starts_when_the_transfer_is_issued() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "", "y", time=10), sizes={"x": 3})
    assert run(graph, "a, b, offload x, wait x", link=1).time == 11 + 3


@pytest.mark.parametrize(("size", "end"), [(6, 1 + 2), (7, 1 + 3), (0, 1)])
def test_copy_takes_whole_units_of_time_rounded_up(size: int, end: int) -> None:
    assert run(chain(size), "f1, offload t1, wait t1", link=3).time == end


def test_slow_link_is_exact() -> None:
    assert run(chain(7), "f1, offload t1, wait t1", link=0.25).time == 1 + 28


def test_copy_of_a_tensor_too_large_for_floating_point_is_exact() -> None:
    assert run(chain(2**53 + 1), "f1, offload t1, wait t1", link=1).time == 1 + 2**53 + 1


def test_host_copy_can_be_fetched_more_than_once() -> None:
    steps = "f1, offload t1, wait t1, free t1, prefetch t1, wait t1, free t1, prefetch t1, wait t1"
    assert run(chain(1), steps, link=1).time == 1 + 3


def test_wait_may_be_repeated() -> None:
    assert run(chain(1), "f1, offload t1, wait t1, wait t1", link=1).time == 2


def test_host_copy_outlives_a_recomputation() -> None:
    steps = "f1, offload t1, wait t1, free t1, f1, free t1, prefetch t1, wait t1"
    assert run(chain(1), steps, link=1).runs == {"f1": 2}


def test_tensor_may_be_read_while_it_is_offloaded() -> None:
    assert run(chain(1, 1), "f1, offload t1, f2, wait t1, free t1", link=1).time == 2


# Transfers: their rules


def test_transfer_without_a_link() -> None:
    error = refusal(chain(1), "f1, offload t1")
    assert error.step == 1
    assert "step 1 (offload 't1'): the schedule has transfers, but the link's bandwidth is not known" in error.message
    assert error.hint == "give --link-bandwidth 12GB/s"


def test_offload_of_what_is_not_in_memory() -> None:
    error = refusal(chain(1), "offload t1, f1", link=1)
    assert (error.step, error.message) == (0, "step 0 (offload 't1'): tensor 't1' is not in memory")


def test_offload_of_what_is_being_offloaded() -> None:
    error = refusal(chain(1), "f1, offload t1, offload t1", link=1)
    assert (error.step, error.message) == (2, "step 2 (offload 't1'): tensor 't1' is being offloaded already")


def test_offload_of_what_is_being_prefetched() -> None:
    error = refusal(chain(1), "f1, offload t1, wait t1, free t1, prefetch t1, offload t1", link=1)
    assert error.step == 5
    assert error.message == "step 5 (offload 't1'): the prefetch of tensor 't1' has not been waited for"


def test_free_of_what_is_being_offloaded() -> None:
    error = refusal(chain(1, 1), "f1, offload t1, f2, free t1", link=1)
    assert error.step == 3
    assert error.message == "step 3 (free 't1'): the offload of tensor 't1' has not been waited for"


def test_free_of_what_is_being_prefetched() -> None:
    error = refusal(chain(1), "f1, offload t1, wait t1, free t1, prefetch t1, free t1", link=1)
    assert error.step == 5
    assert error.message == "step 5 (free 't1'): the prefetch of tensor 't1' has not been waited for"


def test_prefetch_of_what_has_no_host_copy() -> None:
    error = refusal(chain(1), "f1, free t1, prefetch t1", link=1)
    assert (error.step, error.message) == (2, "step 2 (prefetch 't1'): tensor 't1' has no host copy")


def test_prefetch_of_what_is_in_memory() -> None:
    error = refusal(chain(1), "f1, offload t1, wait t1, prefetch t1", link=1)
    assert (error.step, error.message) == (3, "step 3 (prefetch 't1'): tensor 't1' is in device memory already")


def test_prefetch_of_a_graph_input() -> None:
    error = refusal(graph_of(op("a", "in", "x")), "offload in, wait in, prefetch in, a", link=1)
    assert (error.step, error.message) == (2, "step 2 (prefetch 'in'): tensor 'in' is in device memory already")


def test_prefetch_twice() -> None:
    error = refusal(chain(1), "f1, offload t1, wait t1, free t1, prefetch t1, prefetch t1", link=1)
    assert (error.step, error.message) == (5, "step 5 (prefetch 't1'): tensor 't1' is in device memory already")


def test_compute_on_what_is_being_prefetched() -> None:
    error = refusal(chain(1, 1), "f1, offload t1, wait t1, free t1, prefetch t1, f2", link=1)
    assert error.step == 5
    assert error.message == "step 5 (compute 'f2'): the prefetch of tensor 't1' has not been waited for"


@pytest.mark.parametrize("moving", ["", "wait t1, free t1, prefetch t1, "], ids=["offload", "prefetch"])
def test_compute_over_what_is_being_transferred(moving: str) -> None:
    error = refusal(chain(1), f"f1, offload t1, {moving}f1", link=1)
    assert "(compute 'f1'): its output 't1' is being transferred" in error.message


def test_in_place_on_what_is_being_offloaded() -> None:
    error = refusal(in_place(), "make, offload x, inplace relu", link=1)
    assert error.step == 2
    assert error.message == "step 2 (inplace 'relu'): it would take over 'x', whose offload has not been waited for"


def test_in_place_on_what_is_being_prefetched() -> None:
    error = refusal(in_place(), "make, offload x, wait x, free x, prefetch x, inplace relu", link=1)
    assert error.step == 5
    assert error.message == "step 5 (inplace 'relu'): the prefetch of tensor 'x' has not been waited for"


def test_wait_for_what_was_never_transferred() -> None:
    error = refusal(chain(1), "f1, wait t1", link=1)
    assert (error.step, error.message) == (1, "step 1 (wait 't1'): tensor 't1' was never transferred")


def test_output_whose_prefetch_was_not_waited_for() -> None:
    error = refusal(chain(1), "f1, offload t1, wait t1, free t1, prefetch t1", link=1)
    assert error.step is None
    assert "the prefetch of tensor 't1' has not been waited for" in error.message


def test_an_op_that_runs_three_times_is_one_recomputed_op() -> None:
    trace = run(chain(1, 1, 1), "f1, f1, f1, f2, f2, f3")
    assert (trace.recomputed_ops, trace.recomputations) == (2, 3)


# Residents


def updating() -> Graph:
    """`use` reads the parameter `w` of 4 bytes, `update` writes it and its state `s` of 8 bytes."""
    return graph_of(
        op("use", "w", "g", time=3),
        op("update", "w g s", "done", time=2, phase=Phase.UPDATE, recomputable=False, writes=("w", "s")),
        sizes={"w": 4, "s": 8, "g": 4, "done": 0},
        residents={"w": Residency.PARAMETER, "s": Residency.STATE},
        kind=Kind.TRAINING,
    )


def test_residents_that_no_step_moves_stay_from_start_to_end() -> None:
    trace = run(updating(), "use, update, free g")
    assert (trace.memory_bytes, trace.time) == ((12, 16, 16, 12), 5)


def test_resident_on_the_host_is_fetched_and_sent_back() -> None:
    trace = run(
        updating(), "use, prefetch s, wait s, update, free g, offload s, wait s, free s", link=4, on_host=("s",)
    )
    assert trace.memory_bytes == (4, 8, 16, 16, 16, 12, 12, 12, 4)
    assert (trace.time, trace.idle_time) == (3 + 2 + 2 + 2, 4)
    assert [(each.tensor, each.start, each.end) for each in trace.transfers] == [("s", 3, 5), ("s", 7, 9)]


def test_resident_that_nothing_writes_needs_no_second_copy() -> None:
    graph = graph_of(op("a", "w", "x"), op("b", "x w", "y"), residents={"w": Residency.PARAMETER})
    trace = run(graph, "prefetch w, wait w, a, free w, prefetch w, wait w, b, free x, free w", link=1, on_host=("w",))
    assert [each.direction for each in trace.transfers] == [TO_DEVICE, TO_DEVICE]


def test_resident_in_memory_may_leave_meanwhile() -> None:
    trace = run(updating(), "offload s, wait s, free s, use, prefetch s, wait s, update, free g", link=8)
    assert (trace.memory_bytes[-1], trace.peak_bytes) == (12, 16)


@pytest.mark.parametrize(
    ("steps", "on_host", "message"),
    [
        ("use, update", "s", "step 1 (compute 'update'): tensor 's' is not in memory"),
        ("use, free s", "", "step 1 (free 's'): resident 's' has no current host copy, and would be lost"),
        (
            "use, prefetch s, wait s, update, free s",
            "s",
            "step 4 (free 's'): resident 's' has no current host copy, and would be lost",
        ),
        (
            "use, offload s, update",
            "",
            "step 2 (compute 'update'): it would write 's', whose offload has not been waited for",
        ),
        ("use, update, use", "", "step 2 (compute 'use'): 'update' has written 'w', so its old value is gone"),
        (
            "use, update, free g, offload s, free s",
            "",
            "step 4 (free 's'): the offload of tensor 's' has not been waited for",
        ),
        (
            "use, update, free g, offload s, wait s, free s",
            "",
            "at the end: resident 's' started in device memory, and is not there",
        ),
        (
            "use, update, free g, offload s, wait s, free s, prefetch s",
            "",
            "at the end: resident 's' started in device memory, and is not there",
        ),
        (
            "use, prefetch s, wait s, update, free g",
            "s",
            "at the end: resident 's' started on the host, and is in device memory",
        ),
        ("use, update", "g", "at the start: tensor 'g' is on the host, but is no resident of the graph"),
        ("use, update", "q", "at the start: tensor 'q' is on the host, but is no resident of the graph"),
    ],
)
def test_resident_that_would_be_lost_or_stale_is_refused(steps: str, on_host: str, message: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        run(updating(), steps, link=8, on_host=tuple(on_host))
    assert caught.value.message == message


def test_resident_is_never_taken_over_in_place() -> None:
    graph = graph_of(op("a", "w", "x", inplace="w"), residents={"w": Residency.PARAMETER})
    assert refusal(graph, "inplace a").message.endswith("take over graph input 'w', which stays from start to end")


def test_graph_input_that_is_no_resident_cannot_be_freed() -> None:
    assert "is a graph input" in refusal(graph_of(op("a", "w", "x")), "a, offload w, wait w, free w", link=1).message
