"""Who must run before whom, whatever the order, and what that means for memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat_cli.planners.shared.stages import Bools, Ints, Stages


@dataclass(frozen=True, eq=False)
class Ancestry:
    """Ancestors and descendants of every op. Sets of ops are whole numbers, bit n for op n.

    Attributes:
        stages: the graph in the input order.
        room: bytes for what ops make: the budget without the graph's fixed bytes.
    """

    stages: Stages
    room: int

    @cached_property
    def _makers(self) -> list[list[int]]:
        """For each op the ops that make what it reads."""
        arrays = self.stages.graph.arrays
        producer = arrays.producer.tolist()
        return [sorted({producer[t] for t in inputs if producer[t] >= 0}) for inputs in arrays.inputs]

    @cached_property
    def ancestors(self) -> list[int]:
        """For each op the ops that must run before it."""
        sets: list[int] = []
        for makers in self._makers:
            union = 0
            for maker in makers:
                union |= sets[maker] | 1 << maker
            sets.append(union)
        return sets

    @cached_property
    def descendants(self) -> list[int]:
        """For each op the ops that can only run after it."""
        sets = [0] * len(self._makers)
        for op in range(len(sets) - 1, -1, -1):
            own = sets[op] | 1 << op
            for maker in self._makers[op]:
                sets[maker] |= own
        return sets

    def members(self, ops: int) -> Bools:
        """[N] whether each op is in a set."""
        count = len(self.stages)
        packed = np.frombuffer(ops.to_bytes(count // 8 + 1, "little"), dtype=np.uint8)
        return np.unpackbits(packed, bitorder="little", count=count).astype(np.bool_)

    @cached_property
    def readers(self) -> list[list[int]]:
        """For each tensor the ops that read it; N for the end."""
        stages = self.stages
        starts = np.searchsorted(stages.read_tensor, np.arange(1, len(stages.bytes)))
        return [part.tolist() for part in np.split(stages.read_stage, starts)]

    @cached_property
    def lacking(self) -> Ints:
        """[N] bytes that each op's first run lacks in any order if nothing is recomputed; below 0 for room to spare."""
        stages = self.stages
        needed = stages.own_bytes.copy()
        for tensor, (maker, size) in enumerate(zip(stages.made_at.tolist(), stages.bytes.tolist(), strict=True)):
            before = 0
            for reader in self.readers[tensor]:
                before |= self.ancestors[reader] if reader < len(stages) else -1
            needed_later = self.members(self.descendants[maker] & before)
            readers = [reader for reader in self.readers[tensor] if reader < len(stages)]
            for reader in readers:
                if stages.shared_input[reader] == tensor and not needed_later[reader]:
                    needed[reader] -= stages.shared_bytes[reader]
            needed_later[readers] = False  # it is among their own bytes
            needed[needed_later] += size
        return needed - self.room

    def path(self) -> Ints:
        """Return the path whose ops together lack most."""
        lacking = np.maximum(self.lacking, 0).tolist()
        best = list(lacking)
        before = [-1] * len(best)
        for op, makers in enumerate(self._makers):
            for maker in makers:
                if best[maker] + lacking[op] > best[op]:
                    best[op], before[op] = best[maker] + lacking[op], maker
        path = [int(np.argmax(best))]
        while before[path[-1]] >= 0:
            path.append(before[path[-1]])
        return np.array(path[::-1])
