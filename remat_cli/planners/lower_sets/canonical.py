"""The canonical strategy: from a chain of lower sets to the sequence of computes that carries it out.

Kusumoto et al. 2019, section 3: run the forward blocks one after the other and keep only the boundaries; then, from
the last block to the first, recompute what the block dropped and run the block's backward ops. What the frees are
follows from the sequence (`schedule.with_frees`): the paper's liveness analysis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from remat_cli.graph import Graph, Phase
from remat_cli.planners.lower_sets.families import LowerSets
from remat_cli.planners.shared.forward_part import ForwardPart


class CanonicalStrategy:
    """Turns chains of one family into sequences of computes.

    The backward ops of a block are those that differentiate its forward ops; a backward op without `grad_of` (a sum
    of gradients) runs as soon as its inputs are there. The last block is not dropped, and of a dropped block only what
    its backward needs is recomputed. Ops that must run once are never dropped.
    """

    def __init__(self, forward: ForwardPart, sets: LowerSets) -> None:
        self._forward = forward
        self._sets = sets
        graph = forward.graph
        arrays = graph.arrays
        producer = arrays.producer
        self._vertex = {int(op): v for v, op in enumerate(forward.ops)}
        self._backward = [n for n, op in enumerate(graph.ops) if op.phase is Phase.BACKWARD]
        self._grad_of = [_vertex_of(graph, n, self._vertex) for n in self._backward]
        backward_index = {n: i for i, n in enumerate(self._backward)}
        sources = [sorted({int(producer[t]) for t in arrays.inputs[n]} - {-1}) for n in self._backward]
        self._backward_sources = [[backward_index[n] for n in row if n in backward_index] for row in sources]
        self._reads = [[self._vertex[n] for n in row if n in self._vertex] for row in sources]
        self._vertex_reads: list[list[int]] = [[] for _ in range(len(forward))]
        for u, v in forward.edges:
            self._vertex_reads[int(v)].append(int(u))
        self._must_keep = np.array([not graph.ops[int(n)].recomputable for n in forward.ops], dtype=np.bool_)

    def phases(self, chain: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return the numbers of the graph's ops in the order in which the strategy of `chain` runs them, by phase.

        Args:
            chain: numbers of the sets L_1 to L_k = V.

        Returns:
            The forward phases 1 to k, then the backward phases k to 1, which begin with what they recompute.
        """
        block = self._blocks(chain)
        last = len(chain) - 1
        available = self._must_keep | (block == last) | self._sets.boundary[list(chain)].any(axis=0)
        forward = [tuple(self._forward.ops[block == number].tolist()) for number in range(len(chain))]
        backward = []
        for ops in self._backward_blocks(block, len(chain)):
            needed = self._recomputed((v for i in ops for v in self._reads[i]), available)
            again = (int(self._forward.ops[v]) for v in needed)
            backward.append((*again, *(self._backward[i] for i in ops)))
        return (*forward, *backward)

    def _blocks(self, chain: Sequence[int]) -> NDArray[np.int64]:
        """Return, for each vertex, the number of the block that it belongs to."""
        return np.asarray(np.argmax(self._sets.members[list(chain)], axis=0), dtype=np.int64)

    def _backward_blocks(self, block: NDArray[np.int64], count: int) -> list[list[int]]:
        """Return the backward ops of each block, last block first, each in the input order."""
        blocks: list[list[int]] = [[] for _ in range(count)]
        place = [0] * len(self._backward)
        for i, vertex in enumerate(self._grad_of):
            after = min((place[source] for source in self._backward_sources[i]), default=count - 1)
            place[i] = after if vertex is None else min(after, int(block[vertex]))
            blocks[place[i]].append(i)
        return blocks[::-1]

    def _recomputed(self, wanted: Iterable[int], available: NDArray[np.bool_]) -> list[int]:
        """Return the vertices that must be run again so that those wanted are there, in topological order."""
        needed: set[int] = set()
        stack = list(wanted)
        while stack:
            vertex = stack.pop()
            if not available[vertex] and vertex not in needed:
                needed.add(vertex)
                stack.extend(self._vertex_reads[vertex])
        return sorted(needed)


def _vertex_of(graph: Graph, op: int, vertex: dict[int, int]) -> int | None:
    forward_op = graph.ops[op].grad_of
    return None if forward_op is None else vertex.get(graph.arrays.op_index[forward_op])
