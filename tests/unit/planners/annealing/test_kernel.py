"""Moves of runs: their costs are those of what they change, and valid sequences remain."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.simulate import simulate
from remat_cli.planners.annealing import kernel
from remat_cli.planners.annealing.kernel import GraphTables, Tables
from remat_cli.planners.annealing.sweeps import Sweeps, Weather
from remat_cli.planners.shared.numbering import Ints
from remat_cli.planners.shared.sequence import RematSequence
from tests.graphs import small_graphs, training_graphs
from tests.plans import sequences

SEQUENCES = sequences(small_graphs() | training_graphs())
# Shares of a table by which every move is accepted.
ALL = np.ones(kernel.LAST_STEP + 1)


def laid_out(sequence: RematSequence, room: int) -> tuple[GraphTables, Tables, Ints]:
    """The tables of a sequence with space for one more run of each op, and its moves as columns."""
    sweeps, ops = Sweeps(sequence.graph), sequence.ops
    g = sweeps._graph
    sweeps._grow(len(ops), len(ops) * len(g.reads), len(ops) * len(g.makes))
    kernel.lay_out(g, sweeps._tables, ops, room)
    moves = np.empty((4, 2 * len(ops) * (1 + len(g.reads) + len(g.makes))), dtype=np.int64)
    return g, sweeps._tables, moves[:, : kernel.list_moves(g, sweeps._tables, moves)]


def excess_by_hand(g: GraphTables, s: Tables, saved: Ints, room: int) -> list[int]:
    """Memory less the room at each stage, by which run makes and reads which instance."""
    stages = s.line[kernel.ORDER, : s.counts[kernel.LENGTH]].tolist()
    excess = []
    for at, run in enumerate(stages):
        alive = sum(
            g.tensors[kernel.SIZE, s.instances[kernel.TENSOR, instance]]
            for maker in stages[: at + 1]
            for instance in kernel._instances(g, s, maker)
            if kernel._last_read(s, instance) >= at
        )
        op = s.runs[kernel.OP, run]
        outputs = g.tensors[kernel.SIZE, kernel._outputs_of(g, op)].sum()
        workspace = g.ops[kernel.OWN_BYTES, op] - outputs
        excess.append(alive + workspace - (saved[run] if run < len(saved) else 0) - room)
    return excess


def is_exact(g: GraphTables, s: Tables, sequence: RematSequence, room: int) -> bool:
    length = s.counts[kernel.LENGTH]
    by_hand = excess_by_hand(g, s, sequence.shared_bytes, room)
    own = s.runs[kernel.OWN, s.line[kernel.ORDER, :length]]
    excess, between = s.line[kernel.EXCESS, :length], s.line[kernel.BETWEEN, :length]
    return by_hand == excess.tolist() and by_hand == list((between + own).tolist())


def above(s: Tables) -> int:
    return int(np.maximum(s.line[kernel.EXCESS, : s.counts[kernel.LENGTH]], 0).sum())


def subject(moves: Ints, kind: int, rng: random.Random) -> list[int]:
    """A move of a kind, as its column in the table; empty without one."""
    columns = np.flatnonzero(moves[kernel.KIND] == kind).tolist()
    return moves[:, rng.choice(columns)].tolist() if columns else []


@given(SEQUENCES, st.integers(0, 20), st.integers(0, 99), st.sampled_from([0.1, 10.0]))
def test_sweeps_keep_count_of_memory_and_leave_valid_sequences(
    sequence: RematSequence, room: int, seed: int, price: float
) -> None:
    for number in range(3):
        sweeps = Sweeps(sequence.graph)
        swept, _ = sweeps.sweep(
            sequence, Weather(room, price, 5.0), np.random.default_rng([seed, number]), lambda: False
        )
        assert is_exact(sweeps._graph, sweeps._tables, sequence, room)
        sequence = swept
        trace = simulate(sequence.graph, sequence.schedule())
        assert (trace.time, trace.peak_bytes) == (sequence.time, sequence.peak)


@given(SEQUENCES, st.integers(0, 10))
def test_a_fresh_layout_has_the_memory_of_the_sequence(sequence: RematSequence, room: int) -> None:
    _, s, _ = laid_out(sequence, room)
    excess = s.line[kernel.EXCESS, : len(sequence)]
    assert (excess == sequence.memory - sequence.graph.fixed_bytes - room).all()


@given(SEQUENCES, st.integers(0, 10), st.randoms(use_true_random=False))
def test_the_cost_of_a_place_is_the_memory_above_the_room_there(
    sequence: RematSequence, room: int, rng: random.Random
) -> None:
    g, s, moves = laid_out(sequence, room)
    if move := subject(moves, kernel.MOVE, rng):
        first_above, run, draw = above(s), move[kernel.SUBJECT], rng.random()
        before = int(s.runs[kernel.POSITION, run])
        kernel._move(g, s, run, 0.0, draw, ALL)
        # Costs stand in place of changes until the next move; the first place is the earliest that the run can have.
        costs, now = s.line[kernel.CHANGE], int(s.runs[kernel.POSITION, run])
        first = 1 + max(
            (
                s.runs[kernel.POSITION, s.instances[kernel.MAKER, s.nodes[kernel.READS, node]]]
                for node in kernel._nodes(g, s, run)
            ),
            default=-1,
        )
        assert above(s) - first_above == costs[now - first] - costs[before - first]
        assert is_exact(g, s, sequence, room)


@given(SEQUENCES, st.integers(0, 10), st.randoms(use_true_random=False))
def test_the_cost_of_leaving_a_run_out_is_that_of_the_memory_without_it(
    sequence: RematSequence, room: int, rng: random.Random
) -> None:
    g, s, moves = laid_out(sequence, room)
    if not (move := subject(moves, kernel.LEAVE_OUT, rng)):
        return
    run = move[kernel.SUBJECT]
    start, stop = kernel._span_without(g, s, run)
    if start >= 0:
        kernel._change_without(g, s, run, start, stop)
        lacking, before = kernel._lacking_without(s, s.runs[kernel.POSITION, run], start, stop), above(s)
        kernel._leave_out(g, s, run, 1.0, 1e30, 0.0, ALL)
        assert not s.runs[kernel.THERE, run]
        assert above(s) - before == lacking
        assert is_exact(g, s, sequence, room)


@given(SEQUENCES, st.integers(0, 10), st.randoms(use_true_random=False))
def test_making_again_adds_the_chosen_ops_at_the_end_of_the_pause(
    sequence: RematSequence, room: int, rng: random.Random
) -> None:
    g, s, moves = laid_out(sequence, room)
    if not (move := subject(moves, kernel.MAKE_AGAIN, rng)):
        return
    _, instance, after, until = move
    begin, end = kernel._span(s, instance, after, until)
    number = kernel._choose(g, s, instance, begin, end, 100.0, 100.0) if begin >= 0 else -1
    chosen = s.ops[kernel.NEW, : max(number, 0)].tolist()
    length, before = int(s.counts[kernel.LENGTH]), above(s)
    time = int(g.ops[kernel.TIME, chosen].sum())

    # The same move is accepted up to the cost of its memory and time, and not beyond.
    assert kernel._make_again(g, s, instance, after, until, 100.0, 1e30, 100.0, 0.0, ALL)
    assert s.counts[kernel.LENGTH] == length + len(chosen)
    assert is_exact(g, s, sequence, room)
    if chosen:
        added = s.line[kernel.ORDER, end : end + number]
        assert s.runs[kernel.OP, added].tolist() == chosen
        lacking = above(s) - before
        g, s, _ = laid_out(sequence, room)
        never = np.zeros(kernel.LAST_STEP + 1)
        assert kernel._make_again(g, s, instance, after, until, 100.0, 1.0, 100.0, 0.5, never)
        assert (s.counts[kernel.LENGTH] > length) == (100.0 * lacking + time <= 0)
