"""What memory costs a pipeline at least: ops that run again, and microbatches that wait."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil

from remat_cli.core.bounds import working_set_bytes
from remat_cli.core.graph import Graph, Op, Phase
from remat_cli.pipelines.chunks import Chunk


@dataclass(frozen=True)
class KeptResults:
    """A forward op that either runs again in the backward pass, or whose results are kept until their last reader.

    Attributes:
        time: time of the op.
        bytes: bytes that are kept over the turn, beside what is there in any case.
        area: bytes times the time for which they are kept while other ops of the microbatch run.
        again: bytes times time of the op, while it runs again.
    """

    time: int
    bytes: int
    area: int
    again: int


@dataclass(frozen=True, eq=False)
class ChunkBound:
    """Bounds for any plan of a chunk.

    Attributes:
        chunk: the chunk.
    """

    chunk: Chunk

    @cached_property
    def forward(self) -> frozenset[str]:
        """Ops that every plan runs before the turn."""
        return needed_ops(self._graph, self.chunk.turn, Phase.FORWARD)

    @cached_property
    def sending(self) -> frozenset[str]:
        """Backward ops that every plan runs before gradients are sent."""
        if self.chunk.sent is None:
            return frozenset(op.name for op in self._graph.ops if op.phase is Phase.BACKWARD)
        return needed_ops(self._graph, self.chunk.sent, Phase.BACKWARD)

    @cached_property
    def floor_bytes(self) -> int:
        """Bytes that each microbatch has at the turn, and until its backward pass."""
        return self._bytes(self._graph.op[self.chunk.turn].inputs)

    @cached_property
    def running_bytes(self) -> int:
        """Bytes that each microbatch needs at some moment until its gradients are sent, beside the fixed ones."""
        return max((self._needed(self._graph.op[name]) for name in self.forward | self.sending), default=0)

    @cached_property
    def area(self) -> int:
        """Bytes times time of all ops, while each runs once."""
        return sum(op.time * self._needed(op) for op in self._graph.ops)

    def time_of(self, names: Collection[str]) -> int:
        """Return the time of ops that run once."""
        return sum(self._graph.op[name].time for name in names)

    def extra(self, limit: int, *, sending_only: bool = False) -> int:
        """Return the least time of extra runs in a backward pass, for any plan with at most so many bytes at the turn.

        Args:
            limit: bytes of the microbatch at the turn.
            sending_only: whether only extra runs count that come before gradients are sent.
        """
        items = [(each.time, each.bytes) for each in self.kept(sending_only=sending_only)]
        return least_extra(items, max(0, limit - self.floor_bytes))

    def kept(self, *, sending_only: bool = False) -> Iterator[KeptResults]:
        """Yield the ops that run again, or whose results are kept."""
        at_turn = set(self._graph.op[self.chunk.turn].inputs)
        for op in self._graph.ops:
            if op.name not in self.forward or op.phase is not Phase.FORWARD:
                continue
            read = [name for name in op.outputs if self._readers(name, sending_only=sending_only)]
            if read:
                before = self._after(op) & self.forward
                yield KeptResults(
                    time=op.time,
                    bytes=self._bytes(name for name in read if name not in at_turn),
                    area=sum(self._bytes([name]) * self.time_of(self._beside(name, before)) for name in read),
                    again=op.time * self._needed(op),
                )

    def _readers(self, name: str, *, sending_only: bool = False) -> list[Op]:
        """Return the ops of the backward pass that read a tensor."""
        return [
            op
            for op in self._graph.consumers[name]
            if op.phase is Phase.BACKWARD
            and op.name not in (self.chunk.turn, self.chunk.sent)
            and (not sending_only or op.name in self.sending)
        ]

    def _beside(self, name: str, forward: set[str]) -> set[str]:
        """Return ops that run while a tensor is kept, and neither read nor make it.

        Args:
            name: the tensor.
            forward: ops of the forward pass that run after its own.
        """
        before = [needed_ops(self._graph, op.name, Phase.BACKWARD) for op in self._readers(name)]
        # All that comes before one reader does: which one is last is not known.
        longest = max(before, key=self.time_of)
        return (forward | longest) - {op.name for op in self._graph.consumers[name]}

    def _needed(self, op: Op) -> int:
        return working_set_bytes(self._graph, op) - self._graph.fixed_bytes

    def _after(self, op: Op) -> set[str]:
        """Return the ops that need an op's results."""
        made, after = set(op.outputs), set()
        for each in self._graph.ops:
            if not made.isdisjoint(each.inputs):
                made.update(each.outputs)
                after.add(each.name)
        return after

    def _bytes(self, names: Collection[str] | Iterator[str]) -> int:
        return sum(self._graph.freeable_bytes[name] for name in dict.fromkeys(names))

    @property
    def _graph(self) -> Graph:
        return self.chunk.graph


def needed_ops(graph: Graph, name: str, phase: Phase) -> frozenset[str]:
    """Return all ops of this phase that an op needs."""
    needed, ops = set(graph.op[name].inputs), set()
    for op in reversed(graph.ops):
        if op.phase is phase and op.name != name and not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            ops.add(op.name)
    return frozenset(ops)


def least_extra(items: Sequence[tuple[int, int]], limit: int) -> int:
    """Return the least time of ops that run again, where others are kept within a limit, even in part.

    Args:
        items: time of each op, and what it takes to keep its results.
        limit: what all that is kept may take.
    """
    extra, left = Fraction(0), limit
    # What saves most time for what it takes is kept first.
    for time, size in sorted(items, key=lambda item: Fraction(item[1], max(1, item[0]))):
        kept = min(size, left)
        left -= kept
        extra += Fraction(time * (size - kept), max(1, size))
    return ceil(extra)


def fewest_rounds(bound: ChunkBound, microbatches: int, limit: int) -> int:
    """Return how many microbatches of a chunk follow each other at least, each after the gradients of the one before.

    While one needs most, until it has sent its gradients, all others that are between their forward pass and their
    gradients have at least their results there.
    """
    if not bound.floor_bytes:
        return 1
    others = max(0, limit - bound.running_bytes) // bound.floor_bytes
    return ceil(microbatches / (1 + others))
