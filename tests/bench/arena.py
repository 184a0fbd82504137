"""Arenas: how small a block everything in a plan lies in, and the public instances of MiniMalloc.

The bound is the most that is in memory together: an arena of that size is proven to be the smallest. The public
instances (Moffitt, ASPLOS 2023) lie in the folder `minimalloc` of REMAT_DATA; beside each stand the seconds of the
processor that MiniMalloc, in C++ on one thread, took once on a machine with two cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

from rich.console import Console
from rich.table import Table

from remat_cli.allocation.greedy import greedy_offsets
from remat_cli.allocation.instance import Instance
from remat_cli.allocation.lifetimes import needed_by
from remat_cli.allocation.portfolio import Allocation, allocate, limits_of
from remat_cli.config import GraphOptions
from remat_cli.core.arena import USUAL_ALIGNMENT, check_arena
from remat_cli.core.buffers import Buffer
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Problem
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.solve import baseline_of, solve
from remat_cli.formats.buffers_csv import read_buffers
from remat_cli.generate.layered import Layered
from remat_cli.generate.transformer import Transformer
from remat_cli.planners.dtr.planner import DTR
from remat_cli.prepare import prepare
from remat_cli.synthesis import synthesize
from remat_cli.units import format_share

CAPACITY = 2**20
BY_MINIMALLOC = {
    "A": 3.43,
    "B": 2.46,
    "C": 0.49,
    "D": 1.82,
    "E": 2.56,
    "F": 3.98,
    "G": 0.86,
    "H": 1.24,
    "I": 2.48,
    "J": 0.65,
    "K": 0.46,
}
# Ops of generated graphs.
SIZES = (300, 1_000, 10_000, 100_000)
# Above so many ops only the plain run is placed: `dtr` would take minutes.
MOST_PLANNED = 2_000
# For each public instance, and for each schedule.
SECONDS, SECONDS_A_SCHEDULE = 60.0, 10.0


@dataclass(frozen=True)
class Placed:
    """What came of one instance, and the seconds that it took: by the clock, and of all cores together."""

    found: Allocation
    greedy: float
    wall: float
    cpu: float


def arena(console: Console, files: Iterable[tuple[Path, GraphOptions]]) -> None:
    """Print the tables."""
    if "REMAT_DATA" in os.environ:
        _public(console, Path(os.environ["REMAT_DATA"], "minimalloc"))
    table = _table("Schedules: arenas above the bound, alignment 64", ("ops", "steps", "run"))
    for path, options in files:
        _add(table, prepare(path, options).graph)
    for ops in SIZES:
        for generator in (Transformer(), Layered()):
            _add(table, synthesize(generator, ops=ops).graph)
    console.print(table)


def _public(console: Console, folder: Path) -> None:
    table = _table("Public instances of MiniMalloc, capacity 1 MiB", ("MiniMalloc s",))
    for path in sorted(folder.glob("*.csv")):
        placed = _place(read_buffers(path).buffers, CAPACITY, 1, SECONDS)
        name = path.name.partition(".")[0]
        table.add_row(name, f"{BY_MINIMALLOC.get(name, float('nan')):.2f}", *_cells(placed))
    console.print(table)


def _add(table: Table, graph: Graph) -> None:
    peak = baseline_of(graph).peak_bytes
    runs = [("plain", plain_run(graph))]
    if len(graph.ops) <= MOST_PLANNED:
        planned = solve(Problem(graph, Budget(int(0.7 * peak))), DTR()).result.schedule
        runs += [] if planned is None else [("70 %", planned)]
    for label, schedule in runs:
        placed = _checked(graph, schedule)
        table.add_row(graph.name, f"{len(graph.ops):,}", f"{len(schedule.steps):,}", label, *_cells(placed))


def _checked(graph: Graph, schedule: Schedule) -> Placed:
    needed = needed_by(graph, schedule)
    placed = _place(needed.buffers, None, USUAL_ALIGNMENT, SECONDS_A_SCHEDULE)
    assert placed.found.offsets is not None
    assert placed.found.bytes is not None
    check_arena(graph, schedule, needed.arena(placed.found.offsets, placed.found.bytes, USUAL_ALIGNMENT))
    return placed


def _place(buffers: tuple[Buffer, ...], capacity: int | None, alignment: int, seconds: float) -> Placed:
    instance = Instance.of(buffers, alignment)
    greedy = min(int((offsets + instance.sizes).max()) for offsets in greedy_offsets(instance))
    wall, cpu = perf_counter(), process_time()
    found = allocate(buffers, limits_of(seconds), capacity=capacity, alignment=alignment)
    return Placed(found, greedy / instance.load, perf_counter() - wall, process_time() - cpu)


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in (*columns, "buffers", "greedy", "arena", "status", "s", "CPU s"):
        table.add_column(column, justify="right")
    return table


def _cells(placed: Placed) -> tuple[str, ...]:
    found = placed.found
    above = "none" if found.bytes is None else f"+{format_share(found.bytes / max(1, found.bound_bytes) - 1)}"
    count = "" if found.offsets is None else f"{len(found.offsets):,}"
    greedy = f"+{format_share(placed.greedy - 1)}"
    return count, greedy, above, found.status.value, f"{placed.wall:.2f}", f"{placed.cpu:.2f}"
