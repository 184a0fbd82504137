"""The canonical strategy: from a chain of lower sets to the sequence of computes that carries it out.

Kusumoto et al. 2019, section 3: run the forward blocks one after the other and keep only the boundaries; then, from
the last block to the first, recompute what the block dropped and run the block's backward ops. What the frees are
follows from the sequence (`schedule.with_frees`): the paper's liveness analysis.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from remat_cli.planners.lower_sets.families import LowerSets


class CanonicalStrategy:
    """Turns chains of one family into sequences of computes.

    The backward ops of a block are those that differentiate its forward ops; a backward op without `grad_of` (a sum
    of gradients) runs as soon as its inputs are there. The last block is not dropped, and of a dropped block only what
    its backward needs is recomputed. Ops that must run once are never dropped.
    """

    def __init__(self, sets: LowerSets) -> None:
        self._sets = sets

    def phases(self, chain: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return the numbers of the graph's ops in the order in which the strategy of `chain` runs them, by phase.

        Args:
            chain: numbers of the sets L_1 to L_k = V.

        Returns:
            The forward phases 1 to k, then the backward phases k to 1, which begin with what they recompute.
        """
        forward, sets = self._sets.forward, list(chain)
        block = np.argmax(self._sets.members[sets], axis=0)  # of each vertex
        is_kept = (block == len(sets) - 1) | self._sets.boundary[sets].any(axis=0)
        is_kept[forward.must_stay] = True
        is_there = is_kept.tolist()
        phases = [tuple(forward.ops[block == number].tolist()) for number in range(len(sets))]
        blocks: list[list[int]] = [[] for _ in sets]
        for op, number in forward.places_of_backward(block.tolist(), len(sets) - 1).items():
            blocks[number].append(op)
        for ops in reversed(blocks):
            again = forward.missing((v for op in ops for v in forward.reads[op]), is_there)
            phases.append((*forward.ops[again].tolist(), *ops))
        return tuple(phases)
