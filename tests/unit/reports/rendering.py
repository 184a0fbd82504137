"""Renders reports as a pipe would get them, and makes the results that they are about."""

from __future__ import annotations

import io
from dataclasses import dataclass, make_dataclass, replace
from fractions import Fraction

from rich.console import Console, RenderableType

from remat_cli.config import PlannerChoice
from remat_cli.core.graph import Graph
from remat_cli.core.link import Duplex, Link
from remat_cli.core.problem import Budget, Observer, PlanResult, Problem, Status
from remat_cli.core.schedule import Compute, Free, Offload, Prefetch, Schedule, Step, Wait, input_order, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import Solution, compared_with, solve
from remat_cli.planning import Planning, Request, SmallestBudget
from remat_cli.prepare import Prepared
from remat_cli.reports.timeline import Run
from tests.graphs import chain
from tests.plans import prepared


def rendered(report: RenderableType, width: int = 80) -> str:
    """Return what a pipe of `width` columns would get."""
    output = io.StringIO()
    Console(width=width, file=output).print(report)
    return output.getvalue()


def planning(
    solution: Solution,
    ready: Prepared | None = None,
    *,
    request: Request | None = None,
    search: SmallestBudget | None = None,
    **options: object,
) -> Planning:
    """Return a result as what came of a request; without one, a planner named "hand" was asked, with these options."""
    if request is None:
        choice = PlannerChoice("hand", options)
        vars(choice)["built"] = make_dataclass("Hand", options)(**options)
        request = Request(planner=choice)
    return Planning(ready or prepared(solution.problem.graph), request, solution, search)


@dataclass(frozen=True)
class Claims:
    """A planner that returns what it is given."""

    result: PlanResult

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        return self.result


def solved(graph: Graph, budget_bytes: int, result: PlanResult) -> Solution:
    """Return what `solve` makes of a planner's claim."""
    return solve(Problem(graph, Budget(budget_bytes)), Claims(result))


def solved_in_parts() -> Solution:
    """Return the plan of a chain whose second op runs in two parts, beside the chain as the user gave it."""
    whole = chain(4 * 10**6, 10**6)
    parts = chain(4 * 10**6, 10**6, 10**6)
    ops = ("f1", "f2_part0", "f2_part1")
    named = [one.edited(name=name) for one, name in zip(parts.ops, ops, strict=True)]
    divided = parts.edited(ops=tuple(named)).checked()
    result = PlanResult(Status.FEASIBLE, schedule=with_frees(divided, ops))
    return compared_with(solved(divided, 2**40, result), whole)


def run_of(graph: Graph, *computes: str) -> Run:
    """Return the run of some computes, each tensor freed as early as can be."""
    schedule = with_frees(graph, computes)
    return Run(graph, schedule, simulate(graph, schedule))


def two_again(graph: Graph) -> Schedule:
    """Return the schedule in which the first two of six forward ops run again, which takes the peak from 7 to 5."""
    order = input_order(graph)
    return with_frees(graph, [*order[:10], "f1", "f2", *order[10:]])


def moving(duplex: Duplex, unit: str = "unit") -> Run:
    """Return a run in which t1, of 4 MB, goes to the host and comes back, at 1 MB per unit of time.

    f1 runs from 0 to 1, the copy out from 1 to 5, f2 meanwhile; the copy back runs from 5 to 9, and f3 at the end.
    """
    graph = replace(chain(4 * 10**6, 10**6, 10**6), time_unit=unit)
    away: list[Step] = [Offload("t1"), Compute("f2"), Wait("t1"), Free("t1"), Prefetch("t1"), Wait("t1"), Free("t1")]
    schedule = Schedule((Compute("f1"), *away, Compute("f3"), Free("t2")))
    return Run(graph, schedule, simulate(graph, schedule, link=Link(Fraction(10**6), duplex)))
