"""What happens to tensors, told in moments, on schedules small enough to follow by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.core.schedule import Compute, Free, Offload, Prefetch, Schedule, Step, Wait, plain_run, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.reports.html.lifetimes import Arrival, Doing, Rerun, Stay, Story, reruns_by_op, reruns_by_type
from remat_cli.reports.timeline import Run
from tests.graphs import chain, compute_sequences, graph_of, in_place, op, small_graphs, training_chain


def story_of(graph: Graph, *computes: str) -> Story:
    schedule = with_frees(graph, computes)
    return Story(Run(graph, schedule, simulate(graph, schedule)))


@pytest.fixture
def recomputing() -> Story:
    """f1 is dropped after f2 has read it, and made again for the backward of f2."""
    return story_of(training_chain(3, size=10), "f1", "f2", "f3", "loss", "b3", "f1", "b2", "b1")


def test_moments_are_the_steps_without_the_frees(recomputing: Story) -> None:
    steps = recomputing.run.schedule.steps
    assert [type(steps[index]) for index in recomputing.steps] == [Compute] * 8
    assert recomputing.doing == (*[Doing.FIRST_RUN] * 5, Doing.RERUN, *[Doing.FIRST_RUN] * 2)
    assert recomputing.durations.tolist() == [1, 1, 1, 1, 2, 1, 2, 2]
    assert int(recomputing.durations.sum()) == recomputing.run.trace.time
    assert int(recomputing.memory.max()) == recomputing.run.trace.peak_bytes


def test_a_stay_knows_who_read_it_and_what_it_was_away_for(recomputing: Story) -> None:
    # Away in moments 2 to 4, of which the loss and b3 need most: a2, a3 and a gradient, and one more gradient.
    first, second = recomputing.stays["a1"]
    assert first == Stay(0, 2, Arrival.MADE, first_read=1, last_read=1, fullest=3)
    assert recomputing.memory[2:5].tolist() == [20, 30, 30]
    assert second == Stay(5, 7, Arrival.RECOMPUTED, first_read=6, last_read=6)


def test_a_run_again_is_for_the_first_run_that_it_all_serves() -> None:
    # f2 runs again for b3 and needs f1 again, which nobody else does.
    graph = training_chain(3)
    story = story_of(graph, "f1", "f2", "f3", "loss", "f1", "f2", "b3", "b2", "b1")
    assert story.doing[4:6] == (Doing.RERUN, Doing.RERUN)
    assert story.stays["a1"][1].first_read == 5
    assert story.served == {4: 6, 5: 6}


def test_what_is_made_beside_what_was_wanted_has_no_reader() -> None:
    graph = graph_of(
        op("split", "", "left right"), op("l", "left", "a"), op("r", "right", "b"), op("again", "left", "c")
    )
    story = story_of(graph, "split", "l", "r", "split", "again")
    assert story.stays["right"][1] == Stay(3, 4, Arrival.RECOMPUTED)
    assert story.served == {3: 4}


def test_storage_that_is_taken_over_is_no_drop() -> None:
    graph = in_place()
    story = Story(Run.plain(graph))
    assert story.stays["x"] == (Stay(0, 1, Arrival.MADE, first_read=1, last_read=1, taken_over=True),)


def test_transfers_are_told_with_the_moments_of_their_copies() -> None:
    graph = graph_of(*chain(4, 4, 4).ops, op("f4", "t1 t3", "t4"), sizes={"t1": 4, "t2": 4, "t3": 4})
    steps: list[Step] = [Compute("f1"), Offload("t1"), Compute("f2"), Wait("t1"), Free("t1"), Compute("f3"), Free("t2")]
    steps += [Prefetch("t1"), Wait("t1"), Compute("f4"), Free("t1"), Free("t3")]
    schedule = Schedule(tuple(steps))
    story = Story(Run(graph, schedule, simulate(graph, schedule, link=Link(Fraction(1)))))
    assert [doing.name for doing in story.doing] == [
        "FIRST_RUN", "OFFLOAD", "FIRST_RUN", "WAIT", "FIRST_RUN", "PREFETCH", "WAIT", "FIRST_RUN",
    ]  # fmt: skip
    first, second = story.stays["t1"]
    assert first == Stay(0, 4, Arrival.MADE, first_read=2, last_read=2, offload=1, fullest=4)
    assert second == Stay(5, 8, Arrival.FETCHED, first_read=7, last_read=7)


def test_overhead_is_what_runs_beyond_the_first_take() -> None:
    graph = graph_of(
        op("cheap", "", "a", time=1), op("dear", "a", "b", time=5), op("end", "a b", "c"), sizes={"a": 3, "b": 7}
    )
    run = story_of(graph, "cheap", "dear", "cheap", "dear", "cheap", "end").run
    by_op = reruns_by_op(run)
    assert by_op == [Rerun("dear", 1, 1, 5, 7), Rerun("cheap", 1, 2, 2, 6)]
    assert reruns_by_type(run) == [Rerun("Test", 2, 3, 7, 13)]
    assert sum(rerun.time for rerun in by_op) == run.trace.time - Run.plain(graph).trace.time
    assert reruns_by_op(Run.plain(graph)) == []


@given(st.data())
def test_memory_follows_from_the_stays(data: st.DataObject) -> None:
    graph = data.draw(small_graphs())
    computes = data.draw(compute_sequences(graph))
    schedule = with_frees(graph, computes)
    story = Story(Run(graph, schedule, simulate(graph, schedule)))
    for moment in range(len(story.steps)):
        there = {
            name for name, stays in story.stays.items() for stay in stays
            # While an op takes over storage, the larger of both counts.
            if stay.start <= moment < stay.end + stay.taken_over
        }  # fmt: skip
        running = graph.op[computes[moment]]
        taken = {name for name in there if any(s.taken_over and s.end == moment for s in story.stays[name])}
        shared = min((graph.tensors[name].bytes for name in (*taken, running.outputs[0])), default=0) if taken else 0
        held = graph.fixed_bytes + sum(graph.tensors[name].bytes for name in there) - shared
        assert story.memory[moment] == held + running.workspace_bytes
        for name in running.inputs:
            if name in story.stays:
                assert any(
                    s.first_read is not None and s.first_read <= moment <= (s.last_read or 0) for s in story.stays[name]
                )


def test_the_plain_run_drops_nothing_for_a_while() -> None:
    graph = training_chain(5)
    story = Story(Run(graph, plain_run(graph), Run.plain(graph).trace))
    assert all(len(stays) == 1 and stays[0].fullest is None for stays in story.stays.values())
    assert story.served == {}
