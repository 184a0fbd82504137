"""Numbers of a graph's ops and tensors, with reads and outputs as arrays.

All planners number ops and tensors as `graph.arrays` does: in the graph's order. Two layouts use other numbers:
`Stages`, by the order of first runs, and `ForwardPart`, whose vertices are the forward ops alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.graph import Graph

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of numbers, one for each index, in one array.

    Attributes:
        values: all lists, one after the other.
        start: [count + 1] start of each list in `values`.
    """

    values: Ints
    start: Ints

    @classmethod
    def of(cls, index: Ints, values: Ints, count: int) -> Ragged:
        """Group `values` by `index`, which is ascending."""
        return cls(values, np.searchsorted(index, np.arange(count + 1)))

    def __getitem__(self, index: int) -> Ints:
        return self.values[self.start[index] : self.start[index + 1]]

    def __len__(self) -> int:
        return len(self.start) - 1

    def sums(self, weights: Ints) -> Ints:
        """[count] sum of the weights of each list's values."""
        totals: Ints = np.concatenate([[0], np.cumsum(weights[self.values])])
        return totals[self.start[1:]] - totals[self.start[:-1]]

    def expand(self, indices: Ints) -> tuple[Ints, Ints]:
        """Return (position in `indices`, value) for all values of these lists."""
        lengths = self.start[indices + 1] - self.start[indices]
        position = np.repeat(np.arange(len(indices)), lengths)
        offset = np.arange(len(position)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return position, self.values[np.repeat(self.start[indices], lengths) + offset]


def sums(index: Ints, values: Ints, count: int) -> Ints:
    """[count] Return the sum of each index's values, in whole numbers.

    `np.bincount` would sum in floating-point numbers.
    """
    totals = np.zeros(count, dtype=np.int64)
    np.add.at(totals, index, values)
    return totals


@dataclass(frozen=True, eq=False)
class GraphReads:
    """The inputs and outputs of a graph's ops, as flat arrays.

    A tensor *counts* if it takes memory that a plan can free. Tensors of 0 bytes and graph inputs do not count: keeping
    them costs nothing.

    Attributes:
        graph: the graph to plan.
        every_read: [R] op and tensor of each read, by op, including tensors that do not count.
        inputs: for each op, the counting tensors that it reads.
        outputs: for each op, the counting tensors that it produces.
        kept: the counting outputs of the graph.
        recomputable: [N] whether each op may run again.
    """

    graph: Graph
    every_read: tuple[Ints, Ints]
    inputs: Ragged
    outputs: Ragged
    kept: Ints
    recomputable: Bools

    @classmethod
    @lru_cache(maxsize=4)
    def of(cls, graph: Graph) -> GraphReads:
        """Lay out `graph`, and cache the result."""
        arrays = graph.arrays
        counts = (arrays.producer >= 0) & (arrays.tensor_bytes > 0)
        every_read = _pairs(arrays.inputs)
        return cls(
            graph=graph,
            every_read=every_read,
            inputs=_counted(every_read, counts, len(graph.ops)),
            outputs=_counted(_pairs(arrays.outputs), counts, len(graph.ops)),
            kept=np.flatnonzero(arrays.is_output & counts),
            recomputable=arrays.recomputable,
        )


def _pairs(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return the row number and the value of each entry."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    values = np.fromiter((t for row in rows for t in row), dtype=np.int64, count=int(lengths.sum()))
    return np.repeat(np.arange(len(rows)), lengths), values


def _counted(pairs: tuple[Ints, Ints], counts: Bools, ops: int) -> Ragged:
    op, tensor = pairs
    inside = counts[tensor]
    return Ragged.of(op[inside], tensor[inside], ops)
