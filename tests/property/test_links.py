"""What a link that is full duplex changes, and what it does not."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Graph
from remat_cli.core.link import Direction, Duplex, Link
from remat_cli.core.schedule import Compute, Free, Offload, Prefetch, Schedule, Step, Wait
from remat_cli.core.simulate import Transfer, simulate
from tests.graphs import small_graphs, training_graphs

GRAPHS = small_graphs(max_ops=7) | training_graphs(max_forward_ops=3)
RATES = st.sampled_from([Fraction(1, 3), Fraction(1), Fraction(5, 2), Fraction(100)])


@st.composite
def moving(draw: st.DrawFn) -> tuple[Graph, Schedule]:
    """Draw a graph and a run of it in which tensors go to the host and come back."""
    graph = draw(GRAPHS)
    steps: list[Step] = []
    here: set[str] = set()
    leaving: set[str] = set()
    away: set[str] = set()
    coming: set[str] = set()

    def some(names: set[str]) -> list[str]:
        return draw(st.lists(st.sampled_from(sorted(names)), unique=True)) if names else []

    def needed(names: tuple[str, ...]) -> None:
        for name in names:
            if name in away:
                steps.append(Prefetch(name))
            if name in away | coming:
                steps.append(Wait(name))
                coming.discard(name)
                away.discard(name)
                here.add(name)

    for op in graph.ops:
        for name in some(here - leaving):
            steps.append(Offload(name))
            leaving.add(name)
        for name in some(leaving):
            steps += [Wait(name), Free(name)]
            leaving.discard(name)
            here.discard(name)
            away.add(name)
        for name in some(away):
            steps.append(Prefetch(name))
            away.discard(name)
            coming.add(name)
        needed(op.inputs)
        steps.append(Compute(op.name))
        here.update(op.outputs)
    needed(graph.outputs)
    return graph, Schedule(tuple(steps))


def overlap(one: Transfer, other: Transfer) -> bool:
    return max(one.start, other.start) < min(one.end, other.end)


@given(moving(), RATES)
def test_full_duplex_changes_no_memory_and_is_never_slower(run: tuple[Graph, Schedule], rate: Fraction) -> None:
    graph, schedule = run
    half, full = (simulate(graph, schedule, link=Link(rate, duplex)) for duplex in Duplex)
    assert full.memory_bytes == half.memory_bytes
    assert all(early <= late for early, late in zip(full.times, half.times, strict=True))
    assert all(early.end <= late.end for early, late in zip(full.transfers, half.transfers, strict=True))


@given(moving(), RATES)
def test_each_queue_makes_one_transfer_at_a_time_in_issue_order(run: tuple[Graph, Schedule], rate: Fraction) -> None:
    graph, schedule = run
    half, full = (simulate(graph, schedule, link=Link(rate, duplex)).transfers for duplex in Duplex)
    queues = [half, *([each for each in full if each.direction is direction] for direction in Direction)]
    for queue in queues:
        assert not any(overlap(one, other) for one, other in pairwise(queue))
        assert [each.step for each in queue] == sorted(each.step for each in queue)


@given(moving(), RATES)
def test_time_is_that_of_the_ops_and_of_waiting(run: tuple[Graph, Schedule], rate: Fraction) -> None:
    graph, schedule = run
    for duplex in Duplex:
        trace = simulate(graph, schedule, link=Link(rate, duplex))
        assert trace.time == graph.total_time + trace.idle_time
