"""The numbers of a graph's ops and tensors, and what reads and makes what, as flat arrays.

All planners number ops and tensors as `graph.arrays` does: in the graph's order. Two layouts give them other numbers,
and say which: `Stages`, by the order of first runs, and `ForwardPart`, whose vertices are the forward ops alone.
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
        start: [count + 1] where each list starts.
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
        """[count] sum over each list of `weights` of its values."""
        totals: Ints = np.concatenate([[0], np.cumsum(weights[self.values])])
        return totals[self.start[1:]] - totals[self.start[:-1]]

    def expand(self, indices: Ints) -> tuple[Ints, Ints]:
        """Return (position in `indices`, value) for every value of the lists of all `indices`."""
        lengths = self.start[indices + 1] - self.start[indices]
        position = np.repeat(np.arange(len(indices)), lengths)
        offset = np.arange(len(position)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return position, self.values[np.repeat(self.start[indices], lengths) + offset]


def sums(index: Ints, values: Ints, count: int) -> Ints:
    """[count] Return the sum of the values of each index; in whole numbers, which `np.bincount` does not count in."""
    totals = np.zeros(count, dtype=np.int64)
    np.add.at(totals, index, values)
    return totals


@dataclass(frozen=True, eq=False)
class GraphReads:
    """What the ops of a graph read and make, as flat arrays.

    A tensor *counts* if it takes memory that a plan can free. Tensors of 0 bytes and graph inputs do not: keeping them
    costs nothing.

    Attributes:
        graph: the graph to plan.
        every_read: [R] the op and the tensor of each read, by op; tensors that do not count are among them.
        inputs: for each op, the tensors that it reads and that count.
        outputs: for each op, the tensors that it makes and that count.
        kept: the graph's outputs that count.
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
        """Lay out `graph`; kept for the next time."""
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
    """Return the number of the row and the value of each entry."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    values = np.fromiter((t for row in rows for t in row), dtype=np.int64, count=int(lengths.sum()))
    return np.repeat(np.arange(len(rows)), lengths), values


def _counted(pairs: tuple[Ints, Ints], counts: Bools, ops: int) -> Ragged:
    op, tensor = pairs
    inside = counts[tensor]
    return Ragged.of(op[inside], tensor[inside], ops)
