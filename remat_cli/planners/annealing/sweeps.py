"""Sweeps: one try of every useful move of a sequence, in random order, under one weather.

The moves are those of `kernel`, which is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from remat_cli.core.graph import Graph, Kind, Op, Tensor
from remat_cli.machine.compiled import Kernel
from remat_cli.planners.annealing import kernel
from remat_cli.planners.annealing.kernel import LAST_STEP, STEPS, GraphTables, Tables
from remat_cli.planners.shared.numbering import Ints
from remat_cli.planners.shared.sequence import RematSequence

# The shares exp(-x) of Boltzmann's distribution, for x in steps of 1 / 64 up to 40, from where on they are 0.
_SHARES = np.append(np.exp(-np.arange(LAST_STEP) / STEPS), 0.0)
# The largest loss of a move, in temperatures: larger losses are hardly ever accepted.
_LOSS = 3.0
# The number of moves between two looks at the clock.
_MOVES_A_LOOK = 2_000


class Weather(NamedTuple):
    """The conditions of one sweep: they decide whether a move is accepted.

    Attributes:
        room: bytes for outputs of ops.
        price: price of a byte above the room during one run, in time.
        temperature: in the graph's time unit.
    """

    room: int
    price: float
    temperature: float


class Sweeps:
    """Sweeps over the sequences of one graph, which reuse their tables."""

    def __init__(self, graph: Graph) -> None:
        """Lay out the graph's tables."""
        self._graph = _tables_of(graph)
        self._tables = _new_tables(len(graph.ops), len(graph.arrays.producer))

    def sweep(
        self, sequence: RematSequence, weather: Weather, rng: np.random.Generator, is_over: Callable[[], bool]
    ) -> tuple[RematSequence, int]:
        """Try every useful move once; return the sequence and the number of moves.

        Args:
            sequence: a sequence in which every op finds its inputs.
            weather: conditions that decide on the moves.
            rng: source of the random choices.
            is_over: tells when to end the sweep.
        """
        graph, ops = self._graph, sequence.ops
        nodes, instances = (graph.start[:, ops + 1] - graph.start[:, ops]).sum(axis=1).tolist()
        self._grow(len(ops), nodes, instances)
        kernel.lay_out(graph, self._tables, ops, weather.room)
        moves = np.empty((4, 2 * len(ops) + nodes + instances), dtype=np.int64)
        count = kernel.list_moves(graph, self._tables, moves)
        draws, turns = rng.random(count), rng.permutation(count)
        conditions = (weather.price, weather.temperature, _LOSS * weather.temperature, _SHARES)
        turn = 0
        while turn < count and not is_over():
            until = min(count, turn + _MOVES_A_LOOK)
            turn = kernel.try_moves(graph, self._tables, moves, turns, draws, turn, until, *conditions)
            if turn < until:
                used = self._tables.counts
                self._grow(int(used[kernel.RUNS]), int(used[kernel.NODES]), int(used[kernel.INSTANCES]))
        return RematSequence(sequence.reads, kernel.useful(graph, self._tables)), count

    def _grow(self, runs: int, nodes: int, instances: int) -> None:
        """Lengthen the tables for so many runs, plus those of one move."""
        graph, tables = self._graph, self._tables
        # Memory is also noted before the first run and after the last.
        runs += graph.ops.shape[1] + 4
        self._tables = tables._replace(
            runs=_longer(tables.runs, runs),
            line=_longer(tables.line, runs),
            weight=tables.weight if len(tables.weight) >= runs else np.zeros(2 * runs),
            nodes=_longer(tables.nodes, nodes + len(graph.reads)),
            instances=_longer(tables.instances, instances + len(graph.makes)),
        )


def _longer(table: Ints, length: int) -> Ints:
    """Return the table with rows of at least this length."""
    if table.shape[1] >= length:
        return table
    longer = np.zeros((len(table), 2 * length), dtype=np.int64)
    longer[:, : table.shape[1]] = table
    return longer


def _tables_of(graph: Graph) -> GraphTables:
    arrays = graph.arrays
    is_produced, sizes = arrays.producer >= 0, arrays.tensor_bytes
    reads_start, reads = _flat([[tensor for tensor in row if is_produced[tensor]] for row in arrays.inputs])
    makes_start, makes = _flat([list(row) for row in arrays.outputs])
    own_bytes = arrays.workspace_bytes + [sizes[list(row)].sum() for row in arrays.outputs]
    inplace = [-1 if tensor is None else tensor for tensor in arrays.inplace]
    return GraphTables(
        start=np.array([reads_start, makes_start], dtype=np.int64),
        reads=reads,
        makes=makes,
        ops=np.array([arrays.op_time, own_bytes, arrays.recomputable, inplace, arrays.inplace_bytes], dtype=np.int64),
        tensors=np.array([arrays.producer, sizes, arrays.is_output & is_produced], dtype=np.int64),
    )


def _flat(rows: list[list[int]]) -> tuple[Ints, Ints]:
    """Return the start of each row, and all rows concatenated."""
    start = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return start, np.array([value for row in rows for value in row], dtype=np.int64)


def _new_tables(ops: int, tensors: int) -> Tables:
    """Return empty tables; their length depends on the sequence."""
    rows = {"runs": 8, "line": 5, "nodes": 4, "instances": 7}
    return Tables(
        counts=np.zeros(6, dtype=np.int64),
        weight=np.zeros(0),
        tensors=np.zeros((7, tensors), dtype=np.int64),
        price=np.zeros(tensors),
        ops=np.zeros((5, ops), dtype=np.int64),
        open=np.zeros((2, kernel.DEPTH + 1), dtype=np.int64),
        costs=np.zeros((3, kernel.DEPTH + 1)),
        **{name: np.zeros((count, 0), dtype=np.int64) for name, count in rows.items()},
    )


def compile_moves() -> None:
    """Compile the moves by a sweep over four ops, and keep them on disk.

    The first op's output is in memory while the third runs, which does not read it: so there is a move to try.
    """
    reads = {"a": (), "b": ("a",), "c": ("b",), "d": ("a", "c")}
    ops = tuple(Op(name, "Op", inputs, (name,), time=1) for name, inputs in reads.items())
    graph = Graph("four ops", Kind.INFERENCE, "unit", 0, {name: Tensor(name, 1) for name in reads}, ops, ("d",))
    weather = Weather(room=0, price=1.0, temperature=1.0)
    Sweeps(graph).sweep(RematSequence.plain(graph), weather, np.random.default_rng(0), lambda: False)


MOVES = Kernel("annealing", (kernel.lay_out, kernel.list_moves, kernel.try_moves, kernel.useful), compile_moves)
