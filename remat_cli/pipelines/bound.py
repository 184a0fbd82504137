"""Bounds that hold for every pipeline of given cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Graph, Phase
from remat_cli.pipelines.chunks import Chunk


@dataclass(frozen=True)
class NoFit:
    """A proof that no pipeline of these cuts fits.

    Attributes:
        rank: a rank whose budget is below what any plan needs.
        needed_bytes: the least memory of that rank.
        op: the op that needs it; None for a pass's end.
    """

    rank: int
    needed_bytes: int
    op: str | None


def makespan_bound(
    chunks: Sequence[Chunk], rank_of: Sequence[int], microbatches: int, transfer: Sequence[Sequence[int]]
) -> int:
    """Return a time before which no pipeline of these cuts ends, whatever its order and plans.

    A rank cannot begin before one microbatch has come through all chunks before its first one; then it runs all its
    work. Before its last pass of inputs it has run all forward passes and passes of inputs; then gradients go back.

    Args:
        chunks: chunks of the graph.
        rank_of: [chunks] rank of each chunk.
        microbatches: number of microbatches.
        transfer: [chunks, chunks] time from one chunk to another.
    """
    begins, ends = [0] * len(chunks), [0] * len(chunks)
    forward, sending = ([time_of(chunk) for chunk in chunks] for time_of in (_forward_time, _sending_time))
    for chunk in chunks:
        arrivals = (begins[origin] + forward[origin] + transfer[origin][chunk.index] for origin in chunk.forward_from)
        begins[chunk.index] = max(arrivals, default=0)
    # Time from a pass of inputs to the end of the pipeline: earlier chunks run their whole backward pass yet.
    for chunk in chunks:
        ends[chunk.index] = max(
            (
                transfer[chunk.index][other.index]
                + max(sending[other.index] + ends[other.index], _backward_time(other))
                for other in chunks
                if chunk.index in other.backward_from
            ),
            default=0,
        )
    bound = 0
    for rank in set(rank_of):
        own = [index for index in range(len(chunks)) if rank_of[index] == rank]
        begin = min(begins[index] for index in own)
        work = microbatches * sum(chunks[index].graph.total_time for index in own)
        before = microbatches * sum(forward[index] + sending[index] for index in own)
        if all(chunks[index].sent is None for index in own):
            before = work
        bound = max(bound, begin + work, begin + before + min(ends[index] for index in own))
    return bound


def no_fit(chunks: Sequence[Chunk], rank_of: Sequence[int], microbatches: int, budgets: Sequence[int]) -> NoFit | None:
    """Return a rank whose budget no pipeline of these cuts can keep; None where none is known."""
    for rank, budget in enumerate(budgets):
        own = [chunk for chunk in chunks if rank_of[chunk.index] == rank]
        fixed = sum(chunk.fixed_bytes(microbatches) for chunk in own)
        for chunk in own:
            largest = largest_working_set(chunk.graph)
            needed = fixed + largest.bytes - chunk.graph.fixed_bytes
            if needed > budget:
                return NoFit(rank, needed, largest.op)
    return None


def _backward_time(chunk: Chunk) -> int:
    """Return the time of all backward ops."""
    return sum(op.time for op in chunk.graph.ops if op.phase is Phase.BACKWARD)


def _sending_time(chunk: Chunk) -> int:
    """Return the least time of the pass that sends gradients."""
    if chunk.sent is None:
        return _backward_time(chunk)
    return _time_before(chunk.graph, chunk.sent, Phase.BACKWARD)


def _forward_time(chunk: Chunk) -> int:
    """Return the least time of the forward pass: a plan may leave ops that its results do not need to the backward."""
    return _time_before(chunk.graph, chunk.turn, Phase.FORWARD)


def _time_before(graph: Graph, name: str, phase: Phase) -> int:
    """Return the time of all ops of this phase that an op needs."""
    needed = set(graph.op[name].inputs)
    time = 0
    for op in reversed(graph.ops):
        if op.phase is phase and not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            time += op.time
    return time
