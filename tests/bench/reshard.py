"""Llamas whose parameters are sharded: what to gather again, keep and recompute, chosen jointly, beside rules in use.

Each rule is a schedule of its own, replayed by the judge; `auto` plans at its peak. `python -m tests.bench.reshard 8B`
runs this model only.
"""

from __future__ import annotations

import sys
from time import perf_counter

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.core.problem import Budget, Problem
from remat_cli.core.simulate import Trace, simulate
from remat_cli.core.solve import Solution, baseline_of, solve
from remat_cli.generate.llama import Llama
from remat_cli.planners.auto.planner import Auto
from remat_cli.synthesis import synthesize
from remat_cli.units import format_bytes, format_share
from tests.reshard_rules import Rules

MODELS = {
    "8B": Llama(sequence=8192, batch=1),
    "70B": Llama(layers=80, width=8192, heads=64, hidden=28_672, sequence=4096, batch=1),
}
RANKS = (8, 64)
SECONDS = 15.0
_WIDTH = 160


def overhead(graph: Graph, trace: Trace) -> float:
    """Return a schedule's time beyond the plain run's, as a share of it."""
    return trace.time / baseline_of(graph).time - 1


def planned(graph: Graph, budget_bytes: int, link: Link | None) -> Solution:
    """Return the plan of `auto`; one that may offload where a link to the host is given."""
    return solve(Problem(graph, Budget(budget_bytes), link, link is not None), Auto(time_limit=SECONDS))


def again(graph: Graph, trace: Trace) -> tuple[int, float]:
    """Return how many blocks are gathered again, and the time of all other ops that run again, as a share."""
    more = {op: trace.runs[op.name] - 1 for op in graph.ops}
    gathers = sum(runs for op, runs in more.items() if op.type == "AllGather")
    time = sum(runs * op.time for op, runs in more.items() if op.type != "AllGather")
    return gathers, time / baseline_of(graph).time


def reshard(console: Console, names: tuple[str, ...] = tuple(MODELS)) -> None:
    """Print the table."""
    table = Table(
        "model", "rule", "peak", "overhead", "free plan", "bound", "gathers again", "made again", "with offload",
        "seconds", box=MARKDOWN,
    )  # fmt: skip
    for name in names:
        for ranks in RANKS:
            prepared = synthesize(MODELS[name], GraphOptions(device="h100", ranks=ranks, optimizer="adam"))
            graph, rules = prepared.graph, Rules(prepared.graph)
            first = f"{name}, {ranks} ranks"
            for rule, schedule in rules.all():
                trace = simulate(graph, schedule)
                start = perf_counter()
                free = planned(graph, trace.peak_bytes, None)
                seconds = perf_counter() - start
                offloading = planned(graph, trace.peak_bytes, prepared.link)
                assert free.trace is not None, "auto finds no plan at the peak of a rule"
                assert free.trace.time <= trace.time, "auto is worse than a rule"
                gathers, made = again(graph, free.trace)
                table.add_row(
                    first,
                    rule,
                    format_bytes(trace.peak_bytes),
                    format_share(overhead(graph, trace)),
                    format_share(overhead(graph, free.trace)),
                    "" if free.bound_overhead is None else format_share(free.bound_overhead),
                    str(gathers),
                    format_share(made),
                    "" if offloading.overhead is None else format_share(offloading.overhead),
                    f"{seconds:.1f}",
                )
                first = ""
    console.width = max(console.width, _WIDTH)  # names are not to be cut
    console.print(table)


if __name__ == "__main__":
    reshard(Console(), tuple(sys.argv[1:]) or tuple(MODELS))
