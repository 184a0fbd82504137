"""What the cores of the published methods take, at sizes like those of their papers; each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import process_time

import numpy as np
from rich.console import Console
from rich.table import Table

from remat_cli.core.problem import Budget, Problem
from remat_cli.core.solve import baseline_of, solve
from remat_cli.generate.chain import Chain as ChainOfOps
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.pofo.dp import PofoTable
from remat_cli.planners.published.acg.division_tree import ComputationGraph, DivisionTree
from remat_cli.planners.published.acg.solver import StoredSets
from remat_cli.planners.rotor.dp import RotorTable
from remat_cli.synthesis import synthesize
from remat_cli.units import format_bytes
from tests.bench.scale import in_own_process, peak_memory
from tests.feng import PublishedNetwork, published_files, read_published
from tests.paper_chains import Chain, fluid_needs, rotor_needs


@dataclass(frozen=True)
class Taken:
    """What a computation took.

    Attributes:
        seconds: of the CPU.
        memory_bytes: peak of the process, Python's own 30 MB and the libraries' included.
    """

    seconds: float
    memory_bytes: int


def random_chain(layers: int, seed: int = 0) -> Chain:
    """Return a chain like a convolutional network: the first layers large, the last ones small."""
    random = np.random.default_rng(seed)
    fading = np.linspace(1.0, 0.1, layers + 1)
    activation = (fading * random.integers(50, 150, layers + 1)).astype(np.int64)
    activation[-1] = 0
    saved = activation + (fading * random.integers(0, 300, layers + 1)).astype(np.int64)
    saved[0] = 0
    time = random.integers(1, 20, layers + 1)
    time[0] = 0
    none = np.zeros(layers + 1, dtype=np.int64)
    return Chain(
        activation=activation,
        saved=saved,
        gradient=activation,
        forward_time=time,
        no_grad_time=time,
        backward_time=2 * time,
        forward_all_overhead=none,
        forward_none_overhead=none,
        backward_overhead=none,
    )


def _taken(call: Callable[[], object]) -> Taken:
    start = process_time()
    call()
    return Taken(process_time() - start, peak_memory())


def _rotor(layers: int, slots: int) -> Taken:
    needs = rotor_needs(random_chain(layers))
    return _taken(lambda: RotorTable.of(needs, slots).times)


def _pofo(layers: int, slots: int) -> Taken:
    chain = random_chain(layers)
    memory = int(0.3 * chain.saved.sum())
    return _taken(lambda: PofoTable(fluid_needs(chain), memory, 10.0, slots=slots).structure())


def _dtr(ops: int) -> Taken:
    graph = synthesize(ChainOfOps(), ops=ops).graph
    problem = Problem(graph, Budget(baseline_of(graph).peak_bytes // 2))
    return _taken(lambda: solve(problem, DTR()))


def _acg(vertices: int) -> Taken:
    edges = tuple((i, i + 1) for i in range(vertices - 1))
    graph = ComputationGraph((1,) * vertices, edges, 0, vertices - 1)
    return _taken(lambda: StoredSets(DivisionTree.of(graph)).best)


SIZES: Sequence[tuple[str, Callable[[], Taken], str]] = (
    ("rotor: table for all budgets, 100 layers, 500 slots", partial(_rotor, 100, 500), "10 s"),
    ("pofo: table and structure, 50 layers, 50 slots", partial(_pofo, 50, 50), "60 s, 2 GB"),
    ("acg: division tree and stored sets, chain of 10,000", partial(_acg, 10_000), "seconds"),
    ("dtr: plan of a chain of 10,000 ops at half the plain peak", partial(_dtr, 10_000), "10 s"),
)


def methods(console: Console) -> None:
    """Print both tables; that of the public data where it is."""
    table = Table(title="Cores of the methods: CPU seconds, memory of the process, and our aim", title_justify="left")
    for column in ("what", "seconds", "memory", "aim"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, call, aim in SIZES:
        taken = in_own_process(call)
        table.add_row(name, f"{taken.seconds:.2f}", format_bytes(taken.memory_bytes), aim)
    console.print(table)
    if files := published_files():
        console.print(_published_table([read_published(path) for path in files]))


def _published_table(networks: Sequence[PublishedNetwork]) -> Table:
    table = Table(
        title="acg on the networks of Feng & Huang 2021: cost, and CPU seconds of the official solver and ours",
        title_justify="left",
    )
    for column in ("network", "vertices", "optimal cost", "ours", "official s", "ours s"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for network in networks:
        start = process_time()
        cost = StoredSets(DivisionTree.of(network.graph)).best.cost
        seconds = process_time() - start
        table.add_row(
            network.name,
            str(len(network.graph.costs)),
            f"{network.optimal_cost:,}",
            f"{cost:,}",
            f"{network.official_seconds:.2f}",
            f"{seconds:.3f}",
        )
    return table


if __name__ == "__main__":
    methods(Console(width=max(110, Console().width)))
