"""A model of PyTorch's caching allocator for CUDA: how much memory it reserves for a schedule.

The rules are those of c10/cuda/CUDACachingAllocator.cpp. Sizes are rounded up to 512 bytes. Up to 1 MiB they come from
segments of 2 MiB, below 10 MiB from segments of 20 MiB, and above from a segment of their own, in steps of 2 MiB. The
smallest free block that is large enough is taken, and split; neighbours that are free are merged. All allocations are
those of one stream, and the device never runs out: then PyTorch would give cached segments back, and try again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_cli.allocation.lifetimes import needed_by
from remat_cli.core.allocator import LEAST_BLOCK, CudaAllocator, rounded
from remat_cli.core.arena import AT_START
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Compute, Inplace, Schedule

_MIB = 1 << 20
SMALL = _MIB  # up to this size, blocks come from the small pool
SMALL_SEGMENT, LARGE_SEGMENT = 2 * _MIB, 20 * _MIB
OWN_SEGMENT = 10 * _MIB  # from this size on, a block gets a segment of its own
_SEGMENT_STEP = 2 * _MIB
# Steps of training after which a model that still grows is taken as it is.
_MOST_STEPS = 10


def reserved_bytes(graph: Graph, schedule: Schedule, allocator: CudaAllocator) -> int:
    """Return the bytes that the allocator has reserved after the schedule ran until that grows no more.

    Resident bytes are one block. What a step leaves is freed before the next step begins.

    Args:
        graph: what the schedule is for.
        schedule: valid.
        allocator: its settings.
    """
    cache = CachingAllocator(allocator)
    if graph.resident_bytes:
        cache.allocate(graph.resident_bytes)
    moments = _moments(graph, schedule)
    for _ in range(_MOST_STEPS):
        before = cache.reserved_bytes
        _run(cache, moments)
        if cache.reserved_bytes == before:
            break
    return cache.reserved_bytes


@dataclass(frozen=True, slots=True)
class _Moment:
    """Frees between two steps by number, then allocations by number and size."""

    freed: Sequence[int]
    allocated: Sequence[tuple[int, int]]


def _moments(graph: Graph, schedule: Schedule) -> list[_Moment]:
    needed = needed_by(graph, schedule)
    count = len(schedule.steps) + 2
    freed: list[list[int]] = [[] for _ in range(count + 1)]
    allocated: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for number, buffer in enumerate(needed.buffers):
        freed[buffer.upper].append(number)
        allocated[buffer.lower].append((number, buffer.size))
    for moment, these in enumerate(allocated):
        if len(these) > 1:
            order = _order(graph, schedule, moment - 1)
            these.sort(key=lambda item: order[needed.things[item[0]][1]])
    return [_Moment(*both) for both in zip(freed, allocated, strict=False)]


def _order(graph: Graph, schedule: Schedule, index: int) -> dict[str | None, int]:
    """Return the places in which a step allocates: outputs in their order, then the workspace."""
    names: Sequence[str | None] = graph.inputs
    if index != AT_START:
        step = schedule.steps[index]
        assert isinstance(step, Compute | Inplace), "only an op makes several things"
        names = (*graph.op[step.op].outputs, None)
    return {name: place for place, name in enumerate(names)}


def _run(cache: CachingAllocator, moments: Sequence[_Moment]) -> None:
    blocks: dict[int, CachedBlock] = {}
    for moment in moments:
        for number in moment.freed:
            cache.free(blocks.pop(number))
        for number, size in moment.allocated:
            blocks[number] = cache.allocate(size)
    for block in blocks.values():
        cache.free(block)


@dataclass(eq=False, slots=True)
class CachedBlock:
    """A range of a segment, linked to its neighbours."""

    address: int
    bytes: int
    pool: _Pool
    is_free: bool = False
    before: CachedBlock | None = None
    after: CachedBlock | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Sort key of free blocks."""
        return self.bytes, self.address


@dataclass(eq=False, slots=True)
class _Pool:
    """Free blocks for small or for large sizes.

    Attributes:
        is_small: for sizes of up to 1 MiB.
        keys: of the free blocks, in order.
        free: the same blocks by address.
        last: the last block of the segment that can grow; None without one.
    """

    is_small: bool
    keys: list[tuple[int, int]] = field(default_factory=list)
    free: dict[int, CachedBlock] = field(default_factory=dict)
    last: CachedBlock | None = None

    @property
    def step(self) -> int:
        """Bytes of a segment, or by which one grows."""
        return SMALL_SEGMENT if self.is_small else LARGE_SEGMENT

    def add(self, block: CachedBlock) -> None:
        block.is_free = True
        self.free[block.address] = block
        insort(self.keys, block.key)

    def take(self, block: CachedBlock) -> None:
        block.is_free = False
        del self.free[block.address]
        del self.keys[bisect_left(self.keys, block.key)]


class CachingAllocator:
    """The allocator's state.

    Attributes:
        reserved_bytes: of all segments.
    """

    def __init__(self, settings: CudaAllocator) -> None:
        self.reserved_bytes = 0
        self._expands, self._most_split = settings.expandable_segments, settings.max_split_bytes
        self._small, self._large = _Pool(is_small=True), _Pool(is_small=False)
        self._next_address = 0

    def allocate(self, requested: int) -> CachedBlock:
        """Return a block for this many bytes."""
        size = rounded(max(requested, 1))
        pool = self._small if size <= SMALL else self._large
        block = self._best_fit(pool, size)
        if block is not None:
            pool.take(block)
        else:
            block = self._grown(pool, size) if self._expands else self._new_segment(pool, size)
        if self._should_split(block, size):
            self._split(block, size)
        return block

    def free(self, block: CachedBlock) -> None:
        """Take a block back, and merge it with free neighbours."""
        pool = block.pool
        for other in (block.before, block.after):
            if other is not None and other.is_free:
                pool.take(other)
                self._merge(block, other)
        pool.add(block)

    def _best_fit(self, pool: _Pool, size: int) -> CachedBlock | None:
        at = bisect_left(pool.keys, (size, -1))
        if at == len(pool.keys):
            return None
        block = pool.free[pool.keys[at][1]]
        # The last block of a segment that grows counts as large as it can grow: any other is a better fit.
        if block is pool.last and at + 1 < len(pool.keys):
            block = pool.free[pool.keys[at + 1][1]]
        if size < self._most_split <= block.bytes:
            return None
        if size >= self._most_split and block.bytes >= size + LARGE_SEGMENT:
            return None
        return block

    def _new_segment(self, pool: _Pool, size: int) -> CachedBlock:
        taken = pool.step if size < OWN_SEGMENT else -(-size // _SEGMENT_STEP) * _SEGMENT_STEP
        self.reserved_bytes += taken
        # Segments never touch, as blocks of two of them are never merged.
        block = CachedBlock(self._next_address, taken, pool)
        self._next_address += taken
        return block

    def _grown(self, pool: _Pool, size: int) -> CachedBlock:
        """Return the last block of the pool's segment; the segment grows if this block is too small."""
        last = pool.last
        if last is not None and last.is_free:
            pool.take(last)
        else:
            end = 0 if last is None else last.address + last.bytes
            block = CachedBlock(end, 0, pool, before=last)
            if last is not None:
                last.after = block
            pool.last = last = block
        taken = -(-(size - last.bytes) // pool.step) * pool.step
        self.reserved_bytes += taken
        last.bytes += taken
        return last

    def _should_split(self, block: CachedBlock, size: int) -> bool:
        rest = block.bytes - size
        if block.pool.is_small or self._expands:
            return rest >= LEAST_BLOCK
        return size < self._most_split and rest > SMALL

    def _split(self, block: CachedBlock, size: int) -> None:
        rest = CachedBlock(block.address + size, block.bytes - size, block.pool, before=block, after=block.after)
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.bytes = rest, size
        if block.pool.last is block:
            block.pool.last = rest
        block.pool.add(rest)

    def _merge(self, block: CachedBlock, other: CachedBlock) -> None:
        if block.before is other:
            block.address, block.before = other.address, other.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = other.after
            if block.after is not None:
                block.after.before = block
        block.bytes += other.bytes
        if block.pool.last is other:
            block.pool.last = block
