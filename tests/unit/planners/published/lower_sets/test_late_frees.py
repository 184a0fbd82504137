"""Schedules without liveness analysis, beside those with it."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Compute, Free, Inplace, Schedule, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.planners.published.lower_sets.chain_plans import with_late_frees
from tests.graphs import chain, in_place, small_graphs


def any_sequence(graph: Graph, seed: int) -> list[int]:
    """A sequence of computes that runs every op, and some of them again: what is read later is kept, so it is valid."""
    rng = random.Random(seed)
    sequence: list[int] = []
    for number in range(len(graph.ops)):
        again = [earlier for earlier in range(number) if graph.ops[earlier].recomputable]
        sequence += rng.choices(again, k=rng.randrange(3)) if again else []
        sequence.append(number)
    return sequence


def in_phases(sequence: list[int], seed: int) -> list[list[int]]:
    """The same sequence, cut at random places."""
    rng = random.Random(seed)
    cuts = sorted(rng.choices(range(len(sequence) + 1), k=3))
    return [sequence[begin:end] for begin, end in pairwise([0, *cuts, len(sequence)])]


def live_after_computes(graph: Graph, schedule: Schedule) -> list[frozenset[str]]:
    """What is in memory before the first compute, and after each with the frees that follow it."""
    live: set[str] = set()
    after = [frozenset[str]()]
    for step in schedule.steps:
        if isinstance(step, Free):
            live.remove(step.tensor)
            after[-1] = frozenset(live)
        elif isinstance(step, Compute | Inplace):
            live |= set(graph.op[step.op].outputs)
            live -= {graph.op[step.op].inplace or ""} if isinstance(step, Inplace) else set()
            after.append(frozenset(live))
    return after


@given(graph=small_graphs(), seed=st.integers(0, 10**6))
def test_without_liveness_memory_is_as_with_it_where_phases_end_and_never_shrinks_before(
    graph: Graph, seed: int
) -> None:
    sequence = any_sequence(graph, seed)
    phases = in_phases(sequence, seed)
    early = with_frees(graph, (graph.ops[number].name for number in sequence))
    late = with_late_frees(graph, phases)
    assert late.computes == early.computes
    assert simulate(graph, late).peak_bytes >= simulate(graph, early).peak_bytes
    with_liveness, without = live_after_computes(graph, early), live_after_computes(graph, late)
    ends = set(accumulate(len(phase) for phase in phases))
    for number in range(1, len(sequence) + 1):
        if number in ends:
            assert without[number] == with_liveness[number]
        else:
            assert without[number] >= without[number - 1]


def test_without_liveness_tensors_die_together_at_the_end_of_their_phase() -> None:
    assert with_late_frees(chain(1, 1, 1, 1), [[0, 1, 2], [3]]).steps == (
        *(Compute("f1"), Compute("f2"), Compute("f3"), Free("t1"), Free("t2")),
        *(Compute("f4"), Free("t3")),
    )


def test_without_liveness_no_op_works_in_place() -> None:
    steps = with_late_frees(in_place(), [[0, 1], [2]]).steps
    assert steps == (Compute("make"), Compute("relu"), Free("x"), Compute("use"), Free("y"))
