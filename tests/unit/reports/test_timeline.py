"""A run laid out in time agrees with what the simulator measured."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.link import Link
from remat_cli.core.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule, Step, Wait, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.reports.timeline import Lifetime, Run
from tests.graphs import (
    chain,
    compute_sequences,
    graph_of,
    in_place,
    multi_output,
    op,
    small_graphs,
    training_chain,
    updating_chain,
)


@given(st.data())
def test_the_tensors_in_memory_add_up_to_what_the_simulator_counts(data: st.DataObject) -> None:
    graph = data.draw(small_graphs())
    schedule = with_frees(graph, data.draw(compute_sequences(graph)))
    run = Run(graph, schedule, simulate(graph, schedule))
    for index, step in enumerate(schedule.steps):
        beside = graph.op[step.op].workspace_bytes if isinstance(step, Compute | Inplace) else 0
        if isinstance(step, Inplace):
            # Of two that share storage the larger counts while the op runs, but only the result is in memory.
            op = graph.op[step.op]
            beside += max(0, graph.tensors[str(op.inplace)].bytes - graph.tensors[op.outputs[0]].bytes)
        live = sum(graph.tensors[name].bytes for name in run.live_at(index))
        assert graph.fixed_bytes + live + beside == run.trace.memory_bytes[index + 1]


@given(st.data())
def test_the_durations_add_up_to_the_time_of_the_run(data: st.DataObject) -> None:
    graph = data.draw(small_graphs())
    schedule = with_frees(graph, data.draw(compute_sequences(graph)))
    run = Run(graph, schedule, simulate(graph, schedule))
    assert run.total == (len(schedule.steps) if run.counts_steps else run.trace.time)
    assert len(run.recomputing) == run.trace.recomputations


def test_steps_count_where_no_op_takes_time() -> None:
    graph = graph_of(op("a", "", "x", time=0), op("b", "x", "y", time=0))
    run = Run.plain(graph)
    assert run.counts_steps
    assert run.durations.tolist() == [0, 1, 1, 1]


def test_a_recomputed_tensor_stays_twice() -> None:
    graph = training_chain(2)
    schedule = with_frees(graph, ["f1", "f2", "loss", "b2", "f1", "b2", "b1"])
    run = Run(graph, schedule, simulate(graph, schedule))
    assert run.trace.recomputed_ops == 2
    assert len(run.lifetimes["a1"]) == 2


def test_an_offloaded_tensor_comes_back_fetched() -> None:
    graph = chain(4, 1, 1)
    away: list[Step] = [Offload("t1"), Compute("f2"), Wait("t1"), Free("t1"), Prefetch("t1"), Wait("t1"), Free("t1")]
    schedule = Schedule((Compute("f1"), *away, Compute("f3"), Free("t2")))
    run = Run(graph, schedule, simulate(graph, schedule, link=Link(Fraction(1))))
    assert run.lifetimes["t1"] == (Lifetime(0, 4), Lifetime(5, 7, fetched=True))


def test_an_input_taken_over_in_place_is_gone() -> None:
    graph = in_place()
    run = Run.plain(graph)
    assert isinstance(run.schedule.steps[1], Inplace)
    assert run.lifetimes["x"] == (Lifetime(0, 1),)
    assert run.lifetimes["y"][0].start == 1


def test_an_output_that_is_overwritten_while_it_is_there_stays_once() -> None:
    graph = multi_output()
    again = (Compute("split"), Compute("use_left"), Free("left"), Compute("split"), Free("left"))
    schedule = Schedule((*again, Compute("use_right"), Free("right")))
    run = Run(graph, schedule, simulate(graph, schedule))
    assert run.lifetimes["right"] == (Lifetime(0, 6),)
    assert run.lifetimes["left"] == (Lifetime(0, 2), Lifetime(3, 4))


def test_outputs_stay_to_the_end() -> None:
    run = Run.plain(chain(1, 1))
    assert run.lifetimes["t2"] == (Lifetime(1, len(run.schedule.steps)),)


def test_the_backward_pass_begins_with_its_first_op() -> None:
    run = Run.plain(training_chain(2))
    assert run.first_backward is not None
    assert run.schedule.steps[run.first_backward] == Compute("loss")
    assert Run.plain(chain(1, 1)).first_backward is None


def test_the_peak_has_its_op() -> None:
    assert Run.plain(chain(1, 5, 1)).peak_op == "f2"
    assert Run.plain(graph_of(op("a", "x", ""), sizes={"x": 3})).peak_op is None


@given(st.data())
def test_the_stays_of_some_tensors_are_those_among_all(data: st.DataObject) -> None:
    graph = data.draw(small_graphs())
    schedule = with_frees(graph, data.draw(compute_sequences(graph)))
    run = Run(graph, schedule, simulate(graph, schedule))
    names = data.draw(st.sets(st.sampled_from(sorted(graph.tensors))))
    assert run.stays_of(names) == {name: stays for name, stays in run.lifetimes.items() if name in names}


def moving() -> Run:
    """A step whose state `s1` is on the host but for its update."""
    graph = updating_chain(1)
    before = with_frees(graph, ("f1", "loss", "b1", "u1")).steps[:-2]
    moves = Prefetch("s1"), Wait("s1"), Compute("u1"), Free("dw1"), Offload("s1"), Wait("s1"), Free("s1")
    schedule = Schedule((*before, *moves), ("s1",))
    return Run(graph, schedule, simulate(graph, schedule, link=Link(Fraction(1))))


def test_moved_residents_have_stays_and_others_have_none() -> None:
    run = moving()
    fetched = run.schedule.steps.index(Prefetch("s1"))
    assert run.moved_residents == {"s1"}
    assert run.stays_of({"s1", "w1"}) == {"s1": (Lifetime(fetched, len(run.schedule.steps) - 1, fetched=True),)}


def test_resident_that_leaves_in_the_step_is_there_at_both_ends() -> None:
    graph = updating_chain(1)
    away = Offload("s1"), Wait("s1"), Free("s1"), Compute("f1"), Prefetch("s1"), Wait("s1")
    schedule = Schedule((*away, *with_frees(graph, ("f1", "loss", "b1", "u1")).steps[1:]))
    run = Run(graph, schedule, simulate(graph, schedule, link=Link(Fraction(1))))
    assert run.stays_of({"s1"}) == {"s1": (Lifetime(0, 2), Lifetime(4, len(schedule.steps), fetched=True))}


def test_updates_after_the_backward_pass_are_a_stretch_of_their_own() -> None:
    run = Run.plain(updating_chain(2))
    assert run.first_update is not None
    assert run.schedule.steps[run.first_update] == Compute("u1")
    assert Run.plain(training_chain(2)).first_update is None
