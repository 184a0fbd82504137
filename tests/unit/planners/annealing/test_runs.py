"""Moves of runs: that what is said of them is what they do, and that what is left is valid."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.simulate import simulate
from remat_cli.planners.annealing.remaking import Remaking
from remat_cli.planners.annealing.runs import RunLine
from remat_cli.planners.annealing.sweeps import MoveSweep
from remat_cli.planners.annealing.weather import Weather
from remat_cli.planners.shared.orders.moves import above
from remat_cli.planners.shared.sequence import RematSequence
from tests.graphs import small_graphs, training_graphs
from tests.plans import sequences

SEQUENCES = sequences(small_graphs() | training_graphs())


def excess_by_hand(runs: RunLine, saved: list[int], room: int) -> list[float]:
    """Memory less the room of each stage, by who makes and reads which instance."""
    lists = runs.lists
    stages = runs.order.tolist()
    excess = []
    for at, run in enumerate(stages):
        alive = sum(
            lists.size[runs.tensor[instance]]
            for maker in stages[: at + 1]
            for instance in runs.outputs[maker]
            if runs.last_read(instance) >= at
        )
        workspace = lists.own_bytes[runs.op[run]] - sum(lists.size[t] for t in lists.makes[runs.op[run]])
        excess.append(alive + workspace - (saved[run] if run < len(saved) else 0) - room)
    return excess


def is_exact(runs: RunLine, sequence: RematSequence, room: int) -> bool:
    by_hand = excess_by_hand(runs, sequence.shared_bytes.tolist(), room)
    own = [runs._own[run] for run in runs.order.tolist()]
    return bool((runs.excess == by_hand).all() and (runs.between[:-1] + own == by_hand).all())


@given(SEQUENCES, st.integers(0, 20), st.integers(0, 99), st.sampled_from([0.1, 10.0]))
def test_sweeps_keep_count_of_memory_and_leave_valid_sequences(
    sequence: RematSequence, room: int, seed: int, price: float
) -> None:
    for number in range(3):
        runs = RunLine(sequence, room)
        assert (runs.excess == sequence.memory - sequence.graph.fixed_bytes - room).all() or number == 0
        MoveSweep(runs, Weather(room, price, 5.0), np.random.default_rng([seed, number])).run(lambda: False)
        assert is_exact(runs, sequence, room)
        sequence = runs.sequence
        trace = simulate(sequence.graph, sequence.schedule())
        assert (trace.time, trace.peak_bytes) == (sequence.time, sequence.peak)


@given(SEQUENCES, st.integers(0, 10), st.randoms(use_true_random=False))
def test_what_leaving_a_run_out_does_is_told_before(sequence: RematSequence, room: int, rng: random.Random) -> None:
    runs = RunLine(sequence, room)
    twins = runs.twins()
    omission = runs.omission(rng.choice(twins)) if twins else None
    if omission is not None:
        before = above(runs.excess)
        runs.leave_out(omission)
        assert above(runs.excess) - before == omission.lacking
        assert is_exact(runs, sequence, room)


@given(SEQUENCES, st.integers(0, 10), st.randoms(use_true_random=False))
def test_what_making_again_does_is_told_before(sequence: RematSequence, room: int, rng: random.Random) -> None:
    runs = RunLine(sequence, room)
    for pause in rng.sample(pauses := runs.pauses(), min(1, len(pauses))):
        begin, end = runs.span(pause) or (0, 0)
        remake = Remaking(runs, pause.instance, begin, end, price=100.0, loss=100.0).remake() if end else None
        if remake is None:
            continue
        before, length = above(runs.excess), len(runs.order)
        runs.add(remake)
        assert above(runs.excess) - before == remake.lacking
        assert len(runs.order) == length + len(remake.ops)
        assert remake.time == sum(runs.lists.time[op] for op in remake.ops)
        assert is_exact(runs, sequence, room)
