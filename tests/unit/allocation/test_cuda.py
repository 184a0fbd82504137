"""PyTorch's caching allocator: each rule of c10/cuda/CUDACachingAllocator.cpp that decides what is reserved."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.allocation.cuda import CachedBlock, CachingAllocator, reserved_bytes
from remat_cli.core.allocator import CudaAllocator
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Compute, Free, Schedule, plain_run
from remat_cli.core.simulate import simulate
from tests.graphs import graph_of, op, small_graphs

MB = 1 << 20
PLAIN, GROWING = CudaAllocator(), CudaAllocator(expandable_segments=True)


def reserving(sizes: Sequence[int], settings: CudaAllocator = PLAIN) -> int:
    cache = CachingAllocator(settings)
    for size in sizes:
        cache.allocate(size)
    return cache.reserved_bytes


@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (1, 2 * MB),
        (MB, 2 * MB),
        (MB + 1, 20 * MB),
        (10 * MB - 512, 20 * MB),
        (10 * MB - 511, 10 * MB),
        (10 * MB, 10 * MB),
        (11 * MB, 12 * MB),
        (12 * MB + 1, 14 * MB),
    ],
)
def test_segment_by_size(size: int, reserved: int) -> None:
    assert reserving([size]) == reserved


def test_sizes_are_rounded_up_to_512_bytes() -> None:
    cache = CachingAllocator(PLAIN)
    assert [cache.allocate(size).bytes for size in (1, 512, 513, 1025)] == [512, 512, 1024, 1536]
    assert reserving([1] * 4096) == 2 * MB
    assert reserving([1] * 4097) == 4 * MB


def test_small_and_large_sizes_share_no_segment() -> None:
    assert reserving([2 * MB, MB]) == 22 * MB


def test_rest_of_a_large_block_is_split_off_above_1_mib_only() -> None:
    # Of 20 MiB, 5 times 4 MiB; with 19 MiB taken, the last MiB belongs to its neighbour.
    assert reserving([4 * MB] * 5) == 20 * MB
    assert reserving([9 * MB, 9 * MB, 2 * MB]) == 20 * MB
    cache = CachingAllocator(PLAIN)
    cache.allocate(9 * MB)
    cache.allocate(2 * MB)
    assert cache.allocate(8 * MB).bytes == 9 * MB


def test_smallest_block_that_is_large_enough_is_taken_and_of_equal_ones_the_lowest() -> None:
    cache = CachingAllocator(PLAIN)
    blocks = [cache.allocate(size * MB) for size in (40, 30, 30, 24)]
    for block in blocks[:3]:
        cache.free(block)
    found = cache.allocate(26 * MB)
    assert (found.address, found.bytes) == (40 * MB, 26 * MB)
    assert cache.allocate(30 * MB).address == 70 * MB
    assert cache.reserved_bytes == 124 * MB


def test_free_neighbours_are_merged_within_a_segment_and_not_beyond() -> None:
    cache = CachingAllocator(PLAIN)
    blocks = [cache.allocate(5 * MB) for _ in range(8)]
    assert cache.reserved_bytes == 40 * MB
    for block in (blocks[1], blocks[3], blocks[2], blocks[0], *blocks[4:]):
        cache.free(block)
    cache.allocate(20 * MB)
    cache.allocate(20 * MB)
    assert cache.reserved_bytes == 40 * MB
    cache = CachingAllocator(PLAIN)
    for block in [cache.allocate(5 * MB) for _ in range(8)]:
        cache.free(block)
    cache.allocate(22 * MB)
    assert cache.reserved_bytes == 62 * MB


def test_cached_memory_is_used_again() -> None:
    cache = CachingAllocator(PLAIN)
    for size in (50, 40, 30, 20, 10):
        cache.free(cache.allocate(size * MB))
    assert cache.reserved_bytes == 50 * MB


def test_blocks_above_the_largest_split_are_whole_and_for_large_sizes_of_nearly_their_own() -> None:
    settings = CudaAllocator(max_split_size_mb=30)
    cache = CachingAllocator(settings)
    cache.free(cache.allocate(64 * MB))
    # A size below the limit takes no block above it.
    cache.allocate(29 * MB)
    assert cache.reserved_bytes == 94 * MB
    # One above takes a block that is less than 20 MiB larger, whole.
    cache.allocate(44 * MB)
    assert cache.reserved_bytes == 138 * MB
    assert cache.allocate(44 * MB + 1).bytes == 64 * MB
    assert cache.reserved_bytes == 138 * MB


def test_one_segment_that_grows_is_as_large_as_what_is_in_it() -> None:
    assert reserving([4 * MB] * 5, GROWING) == 20 * MB
    assert reserving([11 * MB], GROWING) == 20 * MB
    assert reserving([11 * MB, 11 * MB], GROWING) == 40 * MB
    assert reserving([MB, MB + 512], GROWING) == 22 * MB
    assert reserving([MB] * 3, GROWING) == 4 * MB


def test_free_end_of_a_segment_that_grows_is_made_as_large_as_is_asked_for() -> None:
    cache = CachingAllocator(GROWING)
    cache.allocate(10 * MB)
    cache.free(cache.allocate(30 * MB))
    assert cache.reserved_bytes == 40 * MB
    # 30 MiB are free at the end; 10 more are needed, and 20 are taken.
    assert cache.allocate(40 * MB).address == 10 * MB
    assert cache.reserved_bytes == 60 * MB


def test_free_end_of_a_segment_that_grows_is_the_last_that_is_taken() -> None:
    cache = CachingAllocator(GROWING)
    hole = cache.allocate(35 * MB)
    cache.allocate(15 * MB)
    cache.free(hole)
    # 35 MiB are free in the middle, 10 at the end, which would fit best but could grow.
    assert cache.allocate(8 * MB).address == 0
    assert cache.allocate(28 * MB).address == 50 * MB


def chain(*sizes: int, resident_bytes: int = 0) -> Graph:
    names = [f"t{place}" for place in range(len(sizes))]
    ops = [op(f"make_{name}", " ".join(names[max(0, at - 1) : at]), name) for at, name in enumerate(names)]
    return graph_of(*ops, sizes=dict(zip(names, sizes, strict=True)), resident_bytes=resident_bytes)


def test_schedule_reserves_for_what_is_there_together_and_for_resident_bytes() -> None:
    graph = chain(30 * MB, 30 * MB, 30 * MB, resident_bytes=101 * MB)
    assert reserved_bytes(graph, plain_run(graph), PLAIN) == 102 * MB + 60 * MB
    keeping = Schedule(tuple(Compute(item.name) for item in graph.ops))
    assert reserved_bytes(graph, keeping, PLAIN) == 102 * MB + 90 * MB


def test_second_step_of_training_counts() -> None:
    # In the first step, 20 MiB take the segment that 6 MiB were in. In the second, the 6 MiB split the segment of 16,
    # the 16 MiB that of 20, and the 20 MiB find none.
    graph = chain(6 * MB, 16 * MB, 20 * MB)
    cache = CachingAllocator(PLAIN)
    first, second = cache.allocate(6 * MB), cache.allocate(16 * MB)
    cache.free(first)
    cache.allocate(20 * MB)
    cache.free(second)
    assert cache.reserved_bytes == 36 * MB
    assert reserved_bytes(graph, plain_run(graph), PLAIN) == 56 * MB


def test_workspace_is_there_while_its_op_runs() -> None:
    graph = graph_of(op("a", "", "x", workspace_bytes=40 * MB), op("b", "x", "y"), sizes={"x": 30 * MB, "y": 30 * MB})
    assert reserved_bytes(graph, plain_run(graph), PLAIN) == 70 * MB


def test_frees_come_before_what_the_next_step_makes() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "", "y"), sizes={"x": 30 * MB, "y": 30 * MB}, outputs=["y"])
    steps = Schedule((Compute("a"), Free("x"), Compute("b")))
    assert reserved_bytes(graph, steps, PLAIN) == 30 * MB


@given(small_graphs(max_ops=6), st.sampled_from([PLAIN, GROWING, CudaAllocator(max_split_size_mb=21)]))
def test_no_less_is_reserved_than_the_peak(graph: Graph, settings: CudaAllocator) -> None:
    steps = plain_run(graph)
    assert reserved_bytes(graph, steps, settings) >= simulate(graph, steps).peak_bytes


@given(
    st.lists(st.tuples(st.integers(1, 60 * MB), st.integers(0, 3)), max_size=40),
    st.sampled_from([PLAIN, GROWING, CudaAllocator(max_split_size_mb=30)]),
)
def test_blocks_never_overlap_and_lie_in_what_is_reserved(
    wanted: list[tuple[int, int]], settings: CudaAllocator
) -> None:
    cache = CachingAllocator(settings)
    pools: dict[bool, list[CachedBlock]] = {True: [], False: []}
    for size, keep in wanted:
        block = cache.allocate(size)
        living = pools[block.pool.is_small]
        assert block.bytes >= size
        assert all(
            other.address + other.bytes <= block.address or block.address + block.bytes <= other.address
            for other in living
        )
        living.append(block)
        while len(living) > keep + 1:
            cache.free(living.pop(0))
    assert sum(block.bytes for living in pools.values() for block in living) <= cache.reserved_bytes


@pytest.mark.parametrize("settings", [PLAIN, GROWING, CudaAllocator(max_split_size_mb=100)], ids=str)
def test_torchs_own_memory_test_holds(settings: CudaAllocator) -> None:
    """The sizes and expectations of `_test_memory_stats_generator` in torch's test/test_cuda.py, N = 35."""
    floats = [1, 10 * 20, 200 * 300 * 2000]
    floats += [number * number * 4 for number in range(1, 18)]
    floats += [number * number * 7 * number * 9 * number * 11 for number in range(5, 22)]
    cache = CachingAllocator(settings)
    blocks: list[CachedBlock] = []
    allocated = 0
    for count in floats:
        before = cache.reserved_bytes
        blocks.append(cache.allocate(4 * count))
        # What is allocated grows with every tensor, what is reserved never shrinks, and holds all of it.
        assert blocks[-1].bytes >= 4 * count
        allocated += blocks[-1].bytes
        assert before <= cache.reserved_bytes >= allocated
    most = cache.reserved_bytes
    for block in blocks[::2] + blocks[1::2]:
        cache.free(block)
        assert cache.reserved_bytes == most  # until the cache is emptied
    for count in floats:
        cache.allocate(4 * count)
    assert cache.reserved_bytes == most
