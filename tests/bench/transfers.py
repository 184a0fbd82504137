"""What the link to the host buys: recomputation alone, offloading alone, both, and two ways of choosing by others.

Overheads in % of the plain run's time, as replayed; `bound`: no plan has less, in any order and with any transfers.

The two ways of others are written anew here, for any graph, with our memory model and our layout of transfers, so that
the choice alone differs:

- `hidden`: as in torchtitan (pull request 4636), tensors are offloaded as long as their copies hide behind compute;
  what still does not fit is recomputed.
- `additive`: as in POET (Patil et al., ICML 2022), a copy costs its time on the link, whatever runs meanwhile, and the
  sum of copies and reruns is minimised. POET solves an integer program; here it is the best choice at the moment that
  lacks most memory, and minimum cuts for what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Phase
from remat_cli.core.problem import Budget, Planner, Problem
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import Solution, baseline_of, solve
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.auto.planner import Auto
from remat_cli.planners.min_cut.fitting import STARTS, fit
from remat_cli.planners.min_cut.priced_cut import CutPoint
from remat_cli.planners.pofo.planner import Pofo
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Bools
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.transfers import OffloadSequence
from remat_cli.prepare import prepare
from tests.bench.portfolio import percent

DEVICES = ("a100", "h100", "laptop-cpu", "edge-npu")
SHARES = (0.8, 0.6, 0.45, 0.3)
SECONDS = 5.0
_MOST_CUTS = 200
_SCALE = 2**40


def transfers(console: Console, files: Iterable[tuple[Path, GraphOptions]]) -> None:
    """Print the table for the graphs in these files."""
    table = Table(title=f"the link to the host: overhead %, {SECONDS:g} s each", title_justify="left")
    columns = ("recompute", "offload", "both", "bound", "waiting", "busy", "pofo", "hidden", "additive")
    for column in ("graph", "device", "budget", *columns):
        table.add_column(column, justify="left" if column in ("graph", "device") else "right")
    for path, options in files:
        for device in DEVICES:
            prepared = prepare(path, replace(options, device=device))
            for share in SHARES:
                budget = Budget(int(share * baseline_of(prepared.graph).peak_bytes))
                problem = Problem(prepared.graph, budget, prepared.link, offload=True)
                table.add_row(Path(path.name.rpartition(":")[2]).stem, device, f"{share:.0%}", *_cells(problem))
    console.print(table)


def _cells(problem: Problem) -> list[str]:
    recomputing = solve(replace(problem, offload=False), Auto(time_limit=SECONDS))
    both = solve(problem, Auto(time_limit=SECONDS))
    plain = baseline_of(problem.graph).time
    waiting, busy = "", ""
    if both.trace is not None:
        waiting = f"{100 * both.trace.idle_time / plain:.2f}"
        busy = f"{100 * sum(each.end - each.start for each in both.trace.transfers) / both.trace.time:.0f} %"
    return [
        _percent(recomputing),
        _of_choice(problem, lambda: np.ones(len(problem.graph.tensors), dtype=np.bool_), reruns=False),
        _percent(both),
        "" if both.bound_overhead is None else f"{100 * both.bound_overhead:.2f}",
        waiting,
        busy,
        _of_planner(problem, Pofo(time_limit=SECONDS)),
        _of_choice(problem, lambda: hidden(problem)),
        _of_choice(problem, lambda: additive(problem)),
    ]


def _of_planner(problem: Problem, planner: Planner) -> str:
    try:
        return _percent(solve(problem, planner))
    except PlannerRefuses:
        return "refuses"


def _percent(solution: Solution) -> str:
    return percent(solution.overhead, solution, digits=2)


def _of_choice(problem: Problem, choose: Callable[[], Bools], *, reruns: bool = True) -> str:
    """Return the overhead of a choice of tensors that are offloaded, with what must be run again beside it."""
    sequence = _sequence(problem, choose())
    budget = problem.budget.device_bytes
    if sequence.least_bytes > budget and not reruns:
        return "-"
    if reruns and sequence.peak > budget:
        fitting = [fit(sequence, budget, prices, Limits(), _MOST_CUTS) for prices in STARTS[:3]]
        fitting = [each for each in fitting if each.peak <= budget]
        if not fitting:
            return "-"
        sequence = min(fitting, key=lambda each: each.time)
    times = [
        simulate(problem.graph, sequence.schedule_within(budget, early), link=problem.link).time
        for early in (True, False)
    ]
    return f"{100 * (min(times) / baseline_of(problem.graph).time - 1):.2f}"


def _sequence(problem: Problem, may_move: Bools) -> OffloadSequence:
    assert problem.link is not None
    return OffloadSequence.moving(RematSequence.plain(problem.graph), may_move, 1 / float(problem.link.bytes_per_time))


def hidden(problem: Problem) -> Bools:
    """Choose tensors as long as their copies hide behind compute: torchtitan's way."""
    assert problem.link is not None
    graph = problem.graph
    arrays = graph.arrays
    turn = next((number for number, op in enumerate(graph.ops) if op.phase is Phase.BACKWARD), len(graph.ops))
    last_read = np.full(len(graph.tensors), -1)
    for number, inputs in enumerate(arrays.inputs):
        last_read[list(inputs)] = number
    chosen = np.zeros(len(graph.tensors), dtype=np.bool_)
    time = busy_until = 0.0
    for number in range(turn):
        time += float(arrays.op_time[number])
        for tensor in arrays.outputs[number]:
            end = max(busy_until, time) + float(arrays.tensor_bytes[tensor] / problem.link.bytes_per_time)
            rest = float(arrays.op_time[number + 1 : turn].sum())
            if last_read[tensor] >= turn and end <= time + rest:
                chosen[tensor], busy_until = True, end
    return chosen


def additive(problem: Problem) -> Bools:
    """Choose by the sum of copies and reruns at the moment that lacks most memory: POET's costs."""
    assert problem.link is not None
    plain = RematSequence.plain(problem.graph)
    point = CutPoint(plain, int(plain.memory.argmax()))
    count = len(point.is_needed)
    sizes = np.where(point.is_here, 0, plain.bytes[:count])
    room = problem.budget.device_bytes - point.own_bytes
    copying = 2 / float(problem.link.bytes_per_time)  # of a byte, out and back
    chosen = np.zeros(len(problem.graph.tensors), dtype=np.bool_)
    low, high = 0.0, copying
    for _ in range(30):
        price = (low + high) / 2
        scale = _SCALE / max(1.0, float(plain.time), copying * float(sizes.sum()))
        again = np.floor(scale * plain.run_time[point.may_run_again]).astype(np.int64)
        _, is_had, _ = point.minimum_cut(again, np.floor(scale * price * sizes).astype(np.int64))
        low, high = (low, price) if int(sizes[is_had].sum()) <= room else (price, high)
    if high < copying:  # reruns alone are cheaper
        return chosen
    # At the price of a copy, the largest leave first.
    had = np.flatnonzero(is_had)
    for instance in had[np.argsort(-sizes[had], kind="stable")].tolist():
        if int(sizes[had].sum()) - int(sizes[chosen[plain.instances[1][:count]] & is_had].sum()) <= room:
            break
        chosen[plain.instances[1][instance]] = True
    return chosen
