"""Tables of buffers with a planted answer: how often it is found again, and how far above it a search ends.

A rectangle is cut into buffers at random, so that they fill it at every moment; in half of the tables a tenth of them
is taken out. Greedy orders, CP-SAT alone and the whole search have the same seconds on one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from time import perf_counter

import numpy as np
from rich.console import Console
from rich.table import Table

from remat_cli.allocation.cp_sat import solved
from remat_cli.allocation.greedy import greedy_offsets
from remat_cli.allocation.instance import Instance
from remat_cli.allocation.portfolio import allocate, limits_of
from remat_cli.core.buffers import Buffer
from remat_cli.planners.shared.limits import Limits
from remat_cli.units import format_share
from tests.planted import planted

SIZES = (50, 150, 500, 1_500, 5_000)
TAKEN_OUT = (0.0, 0.1)
SEEDS = range(3)
SECONDS = 10.0
_UNITS = 1_000  # of the capacity, for each buffer


def planted_tables(console: Console) -> None:
    """Print success and gap by size."""
    table = Table(title=f"Planted tables, {SECONDS:g} s each", title_justify="left")
    for column in ("buffers", "taken out", "greedy", "CP-SAT found", "found", "above the planted arena", "s"):
        table.add_column(column, justify="right")
    for count in SIZES:
        for taken_out in TAKEN_OUT:
            table.add_row(f"{count:,}", f"{taken_out:.0%}", *_row(count, taken_out))
    console.print(table)


def _row(count: int, taken_out: float) -> Sequence[str]:
    capacity = _UNITS * count
    greedy, by_solver, heights, seconds = list[float](), list[bool](), list[int](), list[float]()
    for seed in SEEDS:
        buffers = planted(count, capacity, seed, taken_out)
        greedy.append(_greedy(buffers) / capacity - 1)
        by_solver.append(_by_solver(buffers, capacity))
        started = perf_counter()
        found = allocate(buffers, limits_of(SECONDS, cores=1), capacity=capacity)
        seconds.append(perf_counter() - started)
        heights.append(found.bytes or _height(buffers))
    times = len(SEEDS)
    fitting = [height <= capacity for height in heights]
    gap = mean(max(0.0, height / capacity - 1) for height in heights)
    return (
        f"+{format_share(mean(greedy))}",
        f"{sum(by_solver)} of {times}",
        f"{sum(fitting)} of {times}",
        f"+{format_share(gap)}",
        f"{mean(seconds):.1f}",
    )


def _height(buffers: Sequence[Buffer]) -> int:
    least = allocate(buffers, limits_of(SECONDS, cores=1))
    assert least.bytes is not None
    return least.bytes


def _greedy(buffers: Sequence[Buffer]) -> int:
    instance = Instance.of(buffers, 1)
    return min(int((offsets + instance.sizes).max()) for offsets in greedy_offsets(instance))


def _by_solver(buffers: Sequence[Buffer], capacity: int) -> bool:
    unit = int(np.gcd.reduce([buffer.size for buffer in buffers]))
    _, offsets = solved(Instance.of(buffers, unit), capacity // unit, Limits.of(SECONDS, cores=1))
    return offsets is not None
