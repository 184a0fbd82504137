"""Bounds that hold for every pipeline of given cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Phase
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
    work; then the last backward pass goes back through these chunks.

    Args:
        chunks: chunks of the graph.
        rank_of: [chunks] rank of each chunk.
        microbatches: number of microbatches.
        transfer: [chunks, chunks] time from one chunk to another.
    """
    times = [{phase: _time(chunk, phase) for phase in Phase} for chunk in chunks]
    begins, goes_on = [0] * len(chunks), [0] * len(chunks)
    for chunk in chunks:
        arrivals = (
            begins[origin] + times[origin][Phase.FORWARD] + transfer[origin][chunk.index]
            for origin in chunk.forward_from
        )
        begins[chunk.index] = max(arrivals, default=0)
    for chunk in chunks:
        readers = [other for other in chunks if chunk.index in other.backward_from]
        goes_on[chunk.index] = max(
            (transfer[chunk.index][other.index] + times[other.index][Phase.BACKWARD] + goes_on[other.index]
             for other in readers),
            default=0,
        )  # fmt: skip
    bound = 0
    for rank in set(rank_of):
        own = [index for index in range(len(chunks)) if rank_of[index] == rank]
        work = microbatches * sum(chunks[index].graph.total_time for index in own)
        bound = max(bound, min(begins[index] for index in own) + work + min(goes_on[index] for index in own))
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


def _time(chunk: Chunk, phase: Phase) -> int:
    """Return the least time of a chunk's pass.

    The forward pass runs all that its results need; a plan may leave other forward ops to the backward pass, which runs
    all backward ops.
    """
    graph = chunk.graph
    if phase is Phase.BACKWARD:
        return sum(op.time for op in graph.ops if op.phase is phase)
    needed = set(graph.op[chunk.turn].inputs)
    time = 0
    for op in reversed(graph.ops):
        if op.phase is phase and not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            time += op.time
    return time
