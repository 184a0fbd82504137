"""Sweeps over flat arrays, by the compiled functions of `kernel`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.machine.compiled import COMPILE, Trouble, is_kept, trouble
from remat_cli.planners.annealing import kernel
from remat_cli.planners.annealing.kernel import GraphTables, Tables
from remat_cli.planners.annealing.runs import GraphLists
from remat_cli.planners.annealing.weather import SHARES, Weather
from remat_cli.planners.shared.numbering import Ints
from remat_cli.planners.shared.sequence import RematSequence

# The number of moves between two looks at the clock.
_MOVES_A_LOOK = 2_000


def is_ready() -> bool:
    """Tell whether the compiled functions are kept on disk.

    Compiling takes far longer than loading them.
    """
    return is_kept(kernel.try_moves)


def why_uncompiled() -> str:
    """Explain why annealing runs uncompiled, with a remedy.

    The text is empty if the functions are compiled.
    """
    if is_ready():
        return ""
    reason, remedy = trouble() or Trouble("its moves are not compiled yet", COMPILE)
    return f"annealing found this plan uncompiled: {reason}. To try many more moves in the same time: {remedy}."


def compile_for(graph: Graph) -> None:
    """Compile the functions and keep them on disk.

    A sweep over the plain run of `graph` compiles all of them.
    """
    weather = Weather(room=0, price=1.0, temperature=1.0)
    FlatSweeps(graph).sweep(RematSequence.plain(graph), weather, np.random.default_rng(0), lambda: False)


class FlatSweeps:
    """Sweeps over the sequences of one graph, which reuse their tables."""

    speed = 10.0

    def __init__(self, graph: Graph) -> None:
        """Lay out the graph's tables."""
        self._graph = _tables_of(graph)
        self._tables = _new_tables(len(graph.ops), len(graph.arrays.producer))

    def sweep(
        self, sequence: RematSequence, weather: Weather, rng: np.random.Generator, is_over: Callable[[], bool]
    ) -> tuple[RematSequence, int]:
        """Sweep as `Sweeps` describes."""
        graph, ops = self._graph, sequence.ops
        nodes, instances = (graph.start[:, ops + 1] - graph.start[:, ops]).sum(axis=1).tolist()
        self._grow(len(ops), nodes, instances)
        kernel.lay_out(graph, self._tables, ops, weather.room)
        moves = np.empty((4, 2 * len(ops) + nodes + instances), dtype=np.int64)
        count = kernel.list_moves(graph, self._tables, moves)
        draws, turns = rng.random(count), rng.permutation(count)
        turn = 0
        while turn < count and not is_over():
            until = min(count, turn + _MOVES_A_LOOK)
            turn = kernel.try_moves(
                graph, self._tables, moves, turns, draws, turn, until, *weather[1:], weather.loss, SHARES
            )
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
    arrays, lists = graph.arrays, GraphLists.of(graph)
    reads_start, reads = _flat(lists.reads)
    makes_start, makes = _flat(lists.makes)
    inplace = [-1 if tensor is None else tensor for tensor in arrays.inplace]
    return GraphTables(
        start=np.array([reads_start, makes_start], dtype=np.int64),
        reads=reads,
        makes=makes,
        ops=np.array([lists.time, lists.own_bytes, lists.can_rerun, inplace, arrays.inplace_bytes], dtype=np.int64),
        tensors=np.array([lists.producer, lists.size, lists.is_output], dtype=np.int64),
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
