"""Bounds that hold for every pipeline of given cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Phase
from remat_cli.pipelines.chunks import Chunk
from remat_cli.pipelines.jobs import Room
from remat_cli.pipelines.memory_bound import ChunkBound, fewest_rounds, least_extra


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
    chunks: Sequence[Chunk],
    rank_of: Sequence[int],
    microbatches: int,
    transfer: Sequence[Sequence[int]],
    room: Room | None = None,
) -> int:
    """Return a time before which no pipeline of these cuts ends, whatever its order and plans.

    A rank cannot begin before one microbatch has come through all chunks before its first one; then it runs all its
    work. Before its last pass of inputs it has run all forward passes and passes of inputs; then gradients go back.

    Memory costs work: what a microbatch has no room to keep runs again. And it costs time: what is kept waits until
    gradients come back, and all that waits shares the rank's memory.

    Args:
        chunks: chunks of the graph.
        rank_of: [chunks] rank of each chunk.
        microbatches: number of microbatches.
        transfer: [chunks, chunks] time from one chunk to another.
        room: memory of each rank; None: not limited.
    """
    each = [_Least.of(chunk, None if room is None else room.limits[rank_of[chunk.index]]) for chunk in chunks]
    begins, ends = _begins(chunks, each, transfer), _ends(chunks, each, transfer)
    bound = 0
    for rank in set(rank_of):
        own = [index for index in range(len(chunks)) if rank_of[index] == rank]
        begin, end = min(begins[index] for index in own), min(ends[index] for index in own)
        work = microbatches * sum(each[index].work for index in own)
        before = microbatches * sum(each[index].forward + each[index].sending for index in own)
        whole = all(chunks[index].sent is None for index in own)
        if whole:
            before = work
        bound = max(bound, begin + work, begin + before + end)
        if room is None:
            continue
        waits = {index: _wait(index, chunks, each, transfer) for index in own}
        for index in own:
            rounds = fewest_rounds(each[index].bound, microbatches, room.limits[rank])
            takes = each[index].forward + waits[index] + each[index].sending
            bound = max(bound, begins[index] + rounds * takes + ends[index])
        items = [
            (microbatches * op.time, microbatches * (op.area + op.bytes * waits[index] - op.again))
            for index in own
            for op in each[index].bound.kept()
        ]
        # Results wait for gradients. Gradients that are sent stay; the passes that make them do not overlap.
        always = microbatches * sum(
            each[index].bound.area
            + each[index].bound.floor_bytes * waits[index]
            + sum(op.again for op in each[index].bound.kept())
            for index in own
        ) + sum(
            room.sent[index] * microbatches * (2 * ends[index] + (microbatches - 1) * each[index].sending) // 2
            for index in own
        )
        plain = begin + microbatches * sum(chunks[index].graph.total_time for index in own) + (end if whole else 0)
        bound = max(bound, _least_time(plain, begin, room.limits[rank], items, always))
    return bound


@dataclass(frozen=True)
class _Least:
    """The least times of a chunk's passes, for any plan within a rank's memory.

    Attributes:
        bound: bounds of the chunk.
        forward: of the forward pass: a plan may leave ops that its results do not need to the backward pass.
        sending: of the pass that sends gradients.
        work: of all passes.
    """

    bound: ChunkBound
    forward: int
    sending: int
    work: int

    @classmethod
    def of(cls, chunk: Chunk, limit: int | None) -> _Least:
        """Return the least times of a chunk."""
        bound = ChunkBound(chunk)
        forward, sending = bound.time_of(bound.forward), bound.time_of(bound.sending)
        if limit is None:
            return cls(bound, forward, sending, chunk.graph.total_time)
        before = bound.extra(limit, sending_only=chunk.sent is not None)
        return cls(bound, forward, sending + before, chunk.graph.total_time + bound.extra(limit))


def _begins(chunks: Sequence[Chunk], each: Sequence[_Least], transfer: Sequence[Sequence[int]]) -> list[int]:
    """[chunks] the earliest start of each chunk."""
    begins = [0] * len(chunks)
    for chunk in chunks:
        begins[chunk.index] = max(
            (begins[origin] + each[origin].forward + transfer[origin][chunk.index] for origin in chunk.forward_from),
            default=0,
        )
    return begins


def _ends(chunks: Sequence[Chunk], each: Sequence[_Least], transfer: Sequence[Sequence[int]]) -> list[int]:
    """[chunks] time from a pass of inputs to the end: earlier chunks run their whole backward pass yet."""
    ends = [0] * len(chunks)
    for chunk in chunks:
        ends[chunk.index] = max(
            (
                transfer[chunk.index][other.index]
                + max(each[other.index].sending + ends[other.index], _backward_time(other))
                for other in chunks
                if chunk.index in other.backward_from
            ),
            default=0,
        )
    return ends


def _wait(index: int, chunks: Sequence[Chunk], each: Sequence[_Least], transfer: Sequence[Sequence[int]]) -> int:
    """Return the least time from a chunk's forward pass to the start of its backward pass."""
    forward, backward = {index: 0}, dict[int, int]()
    for chunk in chunks[index + 1 :]:
        origins = [origin for origin in chunk.forward_from if origin in forward]
        if origins:
            arrival = max(forward[origin] + transfer[origin][chunk.index] for origin in origins)
            forward[chunk.index] = arrival + each[chunk.index].forward
    for chunk in reversed(chunks[index:]):
        if chunk.index in forward:
            arrivals = (
                backward[origin] + transfer[origin][chunk.index] for origin in chunk.backward_from if origin in backward
            )
            start = max([forward[chunk.index], *arrivals])
            backward[chunk.index] = start + (0 if chunk.index == index else each[chunk.index].sending)
    return backward[index]


def _least_time(plain: int, begin: int, limit: int, items: Sequence[tuple[int, int]], always: int) -> int:
    """Return the least makespan in which all that is kept has room on a rank over time.

    Args:
        plain: the makespan without memory limits.
        begin: when the rank begins.
        limit: its memory.
        items: time of each op that runs again, and the bytes times time that keeping its results takes beyond that.
        always: bytes times time of what is there under every plan.
    """
    # Some results take less when they are kept than their op takes when it runs again.
    always += sum(min(size, 0) for _, size in items)
    items = [(time, max(size, 0)) for time, size in items]
    low = max(plain, begin + -(-always // max(1, limit)))
    high = low + sum(time for time, _ in items)
    while low < high:
        middle = (low + high) // 2
        if plain + least_extra(items, limit * (middle - begin) - always) <= middle:
            high = middle
        else:
            low = middle + 1
    return low


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
