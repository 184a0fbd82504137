"""The planners' quick count of peaks against the judge."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from remat_cli.graph import Graph
from remat_cli.planners.liveness import peak_of
from remat_cli.schedule import with_frees
from remat_cli.simulate import simulate
from tests.graphs import small_graphs


def any_sequence(graph: Graph, seed: int) -> list[int]:
    """A sequence of computes that runs every op, and some of them again: what is read later is kept, so it is valid."""
    rng = random.Random(seed)
    sequence: list[int] = []
    for number in range(len(graph.ops)):
        again = [earlier for earlier in range(number) if graph.ops[earlier].recomputable]
        sequence += rng.choices(again, k=rng.randrange(3)) if again else []
        sequence.append(number)
    return sequence


@given(graph=small_graphs(), seed=st.integers(0, 10**6))
def test_counts_what_the_judge_counts(graph: Graph, seed: int) -> None:
    sequence = any_sequence(graph, seed)
    trace = simulate(graph, with_frees(graph, (graph.ops[number].name for number in sequence)))
    assert peak_of(graph, sequence) == trace.peak_bytes
