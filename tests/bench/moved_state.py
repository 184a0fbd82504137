"""The other half of memory on paper: an 8B Llama with AdamW on cards of 24 and 80 GB, by the judge.

`plan` is `auto` with `--update --offload`; `in backward` moves nothing, and updates each parameter as its gradient is
final, as torchtune's `optimizer_in_bwd`; `state away` has all of the optimizer's state on the host between updates, as
DeepSpeed's ZeRO-Offload has it, with the same transfers beside the computing and the same planner for the rest.
Overheads are over eager's order: all updates after the backward pass.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Residency
from remat_cli.core.problem import Budget, Problem
from remat_cli.core.simulate import Trace, simulate
from remat_cli.core.solve import baseline_of, share_over, solve
from remat_cli.generate.llama import Llama
from remat_cli.planners.auto.planner import Auto
from remat_cli.planning.resident_moves import ResidentMoves
from remat_cli.planning.step_views import movable_residents, with_early_updates, with_late_updates, without_residents
from remat_cli.planning.whole_step import WholeStep
from remat_cli.prepare import Prepared
from remat_cli.synthesis import synthesize

BUDGETS_GB = {"a10": (6.5, 8, 10, 12, 16, 20, 24), "a100": (16, 24, 32, 40, 48, 56, 64)}
SECONDS = 12.0
_GB = 10**9


def moved_state(console: Console) -> None:
    """Print the table for both cards."""
    table = Table(title=f"8B Llama, AdamW, 2,048 tokens: overhead %, {SECONDS:g} s each", title_justify="left")
    for column in (
        "device",
        "budget GB",
        "plan",
        "bound",
        "moved GB",
        "rerun ops",
        "waiting",
        "in backward",
        "state away",
    ):
        table.add_column(column, justify="left" if column == "device" else "right")
    for device, budgets in BUDGETS_GB.items():
        prepared = synthesize(Llama(sequence=2048), GraphOptions(device=device, optimizer="adamw", update=True))
        for budget in budgets:
            table.add_row(device, f"{budget:g}", *_cells(prepared, int(budget * _GB)))
    console.print(table)


def _cells(prepared: Prepared, budget: int) -> Iterator[str]:
    graph, planner = prepared.graph, WholeStep(Auto(time_limit=SECONDS))
    problem = Problem(graph, Budget(budget), prepared.link, offload=True)
    planned = solve(problem, planner)
    yield _percent(prepared, planned.trace)
    yield "" if planned.bound_overhead is None else f"{100 * planned.bound_overhead:.2f}"
    trace = planned.trace
    yield "" if trace is None else f"{sum(each.bytes for each in trace.transfers) / _GB:.1f}"
    yield "" if trace is None else f"{trace.recomputations:,}"
    yield "" if trace is None else f"{100 * trace.idle_time / baseline_of(graph).time:.2f}"
    yield _percent(prepared, solve(replace(problem, offload=False), planner).trace)
    yield _percent(prepared, _with_state_away(problem))


def _with_state_away(problem: Problem) -> Trace | None:
    """Return the replay of the plan that moves all state in every step, and nothing else."""
    graph, budget, link = problem.graph, problem.budget.device_bytes, problem.link
    away = [name for name in movable_residents(graph) if graph.tensors[name].resident is Residency.STATE]
    view = without_residents(with_early_updates(graph), away)
    schedule = solve(Problem(view, problem.budget, link), Auto(time_limit=SECONDS)).result.schedule
    late = None if schedule is None else with_late_updates(graph, schedule)
    if late is None or link is None:
        return None
    # No memory is left for a resident to stay.
    woven = ResidentMoves(graph, late, away, budget, link).woven(reserve_bytes=sys.maxsize // 2, cross=False)
    trace = simulate(graph, woven, link=link)
    return trace if trace.peak_bytes <= budget else None


def _percent(prepared: Prepared, trace: Trace | None) -> str:
    return "-" if trace is None else f"{100 * share_over(trace.time, baseline_of(prepared.graph).time):.2f}"
