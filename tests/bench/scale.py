"""How time and memory grow with the graph: training steps of ever deeper transformers, and other families.

Each graph is handled, and planned, in a process of its own, whose peak of resident memory is shown; some 30 MB of that
are Python itself. Handling is timed in CPU seconds, as it neither waits nor runs in parallel; planning in seconds of
the clock. The last row is the slope on logarithmic axes between the two largest graphs: 1 is linear, 2 quadratic.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import log
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import ParamSpec, TypeVar

from rich.console import Console
from rich.table import Table

from remat_cli.core.problem import Budget, Planner, Problem
from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of, solve
from remat_cli.formats import read_graph
from remat_cli.formats.native import graph_bytes
from remat_cli.generate import Generator
from remat_cli.generate.chain import Chain
from remat_cli.generate.layered import Layered
from remat_cli.generate.transformer import Transformer
from remat_cli.generate.unet import UNet
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.min_cut.planner import MinCut
from remat_cli.planners.published.lower_sets.dp_planners import ApproxDP
from remat_cli.planners.rotor.planner import Rotor
from remat_cli.synthesis import synthesize
from remat_cli.units import format_bytes, format_share

SIZES = (2_000, 10_000, 100_000)
BUDGET_SHARE = 0.5
# Planners, and the largest number of ops for which each is run.
PLANNED: Mapping[str, tuple[Planner, int]] = {
    "approx_dp": (ApproxDP(), 2_000),
    "rotor": (Rotor(), 10_000),
    "dtr": (DTR(), 10_000),
    "min_cut": (MinCut(), 100_000),
}
# Other graphs that `min_cut` plans: family, ops, and share of the plain peak.
OTHERS: Sequence[tuple[str, Generator, int, float]] = (
    ("U-Net", UNet(), 10_000, 0.5),
    ("U-Net", UNet(), 2_000, 0.3),
    ("chain", Chain(), 10_000, 0.5),
    ("chain", Chain(), 2_000, 0.1),
    ("transformer", Transformer(), 2_000, 0.3),
    ("layered", Layered(), 2_000, 0.9),
)

P = ParamSpec("P")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Handling:
    """What it takes to handle a graph without planning it: seconds of each step, and memory.

    Attributes:
        ops: of the training graph.
        file_bytes: its size in the native format.
        seconds: of each step, by name.
        memory_bytes: peak of the process that read, simulated and wrote it.
    """

    ops: int
    file_bytes: int
    seconds: Mapping[str, float]
    memory_bytes: int


@dataclass(frozen=True)
class PlanningRun:
    """What a planner took and found.

    Attributes:
        ops: of the graph.
        seconds: of planning, with the replay of every plan; reading the graph is not in it.
        cpu_seconds: the same, of the CPU.
        memory_bytes: peak of the process, the graph included.
        status: how it ended.
        overhead: of the plan; None without.
        gap: between the plan and the bound; None without either.
    """

    ops: int
    seconds: float
    cpu_seconds: float
    memory_bytes: int
    status: str
    overhead: float | None
    gap: float | None


def in_own_process(call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """Return what the call returns in a fresh process, so that its memory is its own."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("forkserver")) as pool:
        return pool.submit(call, *args, **kwargs).result()


def measure(path: Path, planner: Planner, share: float = BUDGET_SHARE) -> PlanningRun:
    """Plan the graph in the file, in a process of its own, at a share of the plain run's peak."""
    return in_own_process(_plan, path, planner, share)


def _plan(path: Path, planner: Planner, share: float) -> PlanningRun:
    graph = read_graph(path).graph
    problem = Problem(graph, Budget(int(share * baseline_of(graph).peak_bytes)))
    start = perf_counter()
    solution, cpu_seconds = _cpu_timed(solve, problem, planner)
    return PlanningRun(
        ops=len(graph.ops),
        seconds=perf_counter() - start,
        cpu_seconds=cpu_seconds,
        memory_bytes=peak_memory(),
        status=str(solution.status),
        overhead=solution.overhead,
        gap=solution.gap,
    )


def _cpu_timed(call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> tuple[Result, float]:
    start = process_time()
    return call(*args, **kwargs), process_time() - start


def _write(path: Path, generator: Generator, ops: int) -> float:
    """Write a generated graph, for training where the family is, and return the CPU seconds that it took to make it."""
    made, seconds = _cpu_timed(synthesize, generator, ops=ops)
    path.write_bytes(graph_bytes(made.graph))
    return seconds


def _handle(path: Path, generate_seconds: float) -> Handling:
    seconds = {"generate": generate_seconds}
    reading, seconds["read"] = _cpu_timed(read_graph, path)
    graph = reading.graph
    schedule, seconds["plain run"] = _cpu_timed(plain_run, graph)
    _, seconds["simulate"] = _cpu_timed(simulate, graph, schedule)
    written, seconds["write"] = _cpu_timed(graph_bytes, graph)
    return Handling(len(graph.ops), len(written), seconds, peak_memory())


def peak_memory() -> int:
    """Return the peak of this process's resident memory in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def slope(sizes: Sequence[int], values: Sequence[float]) -> str:
    """Return the slope on logarithmic axes between the last two points."""
    if len(sizes) < 2 or min(values[-2:]) <= 0:
        return ""
    return f"{log(values[-1] / values[-2]) / log(sizes[-1] / sizes[-2]):.2f}"


def scale(console: Console, sizes: Sequence[int] = SIZES) -> None:
    """Print what it takes to handle graphs of these sizes, and to plan them."""
    with TemporaryDirectory() as folder:
        paths = {size: Path(folder) / f"{size}.json" for size in sizes}
        generated = {size: in_own_process(_write, path, Transformer(), size) for size, path in paths.items()}
        console.print(_handling_table([in_own_process(_handle, paths[size], generated[size]) for size in sizes]))
        for name, (planner, most) in PLANNED.items():
            rows = [measure(path, planner) for size, path in paths.items() if size <= most]
            console.print(_planning_table(name, rows))
        console.print(_others_table(Path(folder) / "other.json"))


def _handling_table(rows: Sequence[Handling]) -> Table:
    steps = list(rows[0].seconds)
    table = _table("Transformer training graphs", ("ops", "JSON", *(f"{step} s" for step in steps), "memory"))
    for row in rows:
        seconds = (f"{row.seconds[step]:.3f}" for step in steps)
        table.add_row(f"{row.ops:,}", format_bytes(row.file_bytes), *seconds, format_bytes(row.memory_bytes))
    columns: list[list[float]] = [
        [row.file_bytes for row in rows],
        *([row.seconds[step] for row in rows] for step in steps),
        [row.memory_bytes for row in rows],
    ]
    table.add_row("slope", *(slope([row.ops for row in rows], column) for column in columns))
    return table


def _planning_table(name: str, rows: Sequence[PlanningRun]) -> Table:
    table = _table(f"{name} at {BUDGET_SHARE:.0%} of the plain peak", ("ops", *_PLANNING))
    for row in rows:
        table.add_row(f"{row.ops:,}", *_planning_cells(row))
    columns: list[list[float]] = [
        [row.seconds for row in rows],
        [row.cpu_seconds for row in rows],
        [row.memory_bytes for row in rows],
    ]
    table.add_row("slope", "", "", "", *(slope([row.ops for row in rows], column) for column in columns))
    return table


def _others_table(path: Path) -> Table:
    table = _table("neighbourhoods on other graphs and budgets", ("family", "ops", "budget", *_PLANNING))
    for family, generator, ops, share in OTHERS:
        in_own_process(_write, path, generator, ops)
        row = measure(path, MinCut(), share)
        table.add_row(family, f"{row.ops:,}", f"{share:.0%}", *_planning_cells(row))
    return table


_PLANNING = ("status", "overhead", "gap", "seconds", "CPU s", "memory")


def _planning_cells(row: PlanningRun) -> Iterator[str]:
    yield row.status
    yield from ("" if share is None else format_share(share) for share in (row.overhead, row.gap))
    yield from (f"{row.seconds:.2f}", f"{row.cpu_seconds:.2f}", format_bytes(row.memory_bytes))


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def main() -> None:
    """Print the tables."""
    scale(Console(width=max(110, Console().width)))


if __name__ == "__main__":
    main()
