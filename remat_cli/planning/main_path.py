"""The main path: a graph and a request become a problem, a planner is asked, the judge confirms, a `Planning` results.

Command line, Python API, checks, batch, studies and PyTorch all come through `plan`. Nobody else builds a `Problem`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from remat_cli.config import PlannerChoice, Request
from remat_cli.core.problem import Budget, Observer, Problem, Status
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import Trace
from remat_cli.core.solve import Solution, baseline_of, solve
from remat_cli.errors import UsageError
from remat_cli.formats.schedule_json import schedule_bytes
from remat_cli.formats.writing import write_file
from remat_cli.planning.given import Given
from remat_cli.planning.overhead import within_overhead
from remat_cli.planning.refusal import with_closest
from remat_cli.planning.smallest_budget import SmallestBudget, smallest_budget
from remat_cli.planning.summary import Summary, graph_summary, solution_summary
from remat_cli.prepare import Prepared

# For what a refusal says beside the budget, where the planner has no time limit.
_SECONDS = 60.0


@dataclass(frozen=True)
class Planning:
    """What was asked, and what came of it.

    Attributes:
        prepared: the graph that was planned, and how it came to be.
        request: what was asked for.
        solution: verified by the simulator: `trace` of the plan, `closest`, `baseline`, bounds, warnings.
        search: where the smallest budget was asked for: how far it was proven and found; else None.
    """

    prepared: Prepared
    request: Request
    solution: Solution
    search: SmallestBudget | None = None

    @property
    def planner(self) -> PlannerChoice:
        """Who was asked."""
        return self.request.chosen

    @property
    def status(self) -> Status:
        """Whether there is a plan, and what is proven."""
        return self.solution.status

    @property
    def trace(self) -> Trace | None:
        """What the simulator measured of the plan; None without one."""
        return self.solution.trace

    @property
    def schedule(self) -> Schedule | None:
        """The steps; None without a plan."""
        return self.solution.result.schedule if self.trace is not None else None

    @property
    def budget_bytes(self) -> int:
        """The budget; where the smallest was asked for, the one that was found."""
        return self.solution.problem.budget.device_bytes

    @property
    def peak_bytes(self) -> int | None:
        """Peak of the plan, resident bytes and inputs included; None without one."""
        return None if self.trace is None else self.trace.peak_bytes

    @property
    def overhead(self) -> float | None:
        """Time beyond the plain run's, as a share of it; None without a plan."""
        return self.solution.overhead

    @property
    def bound(self) -> float | None:
        """No plan in `solution.scope` has less overhead; None where nothing is proven."""
        return self.solution.bound_overhead

    @property
    def schedule_file(self) -> bytes:
        """Content of the schedule file; without a plan, it says why there is none."""
        read_with, planner = self.prepared.options.recorded, self.planner
        return schedule_bytes(
            self.solution,
            self.prepared.mode,
            planner.name,
            planner.all_options(),
            read_with,
            estimated=self.prepared.is_estimated,
        )

    def save(self, path: str | Path) -> None:
        """Write the schedule file, whole or not at all.

        Raises:
            UsageError: there is no plan, or the file cannot be written.
        """
        if self.schedule is None:
            raise UsageError(f"there is no plan to save: {self.solution.result.reason or self.status}")
        write_file(Path(path), self.schedule_file)

    def summary(self) -> Summary:
        """Return what `remat plan --json` prints, as JSON values; a missing figure is None."""
        return {
            "graph": graph_summary(self.prepared),
            "planner": {"name": self.planner.name, "options": self.planner.all_options()},
            **solution_summary(self.solution),
            "notes": list(self.prepared.notes),
        }


def plan_again(known: Planning, prepared: Prepared, schedule: Schedule) -> Planning:
    """Return what a schedule that came of one graph is worth on the same graph with other sizes.

    Args:
        known: the planning that came to it: as a plan, or as what came closest to one.
        prepared: the graph with other sizes.
        schedule: is judged here, for the same request.

    Raises:
        FalseClaim: it does not run.
    """
    problem = replace(known.solution.problem, graph=prepared.graph, link=prepared.link)
    given = Given(schedule, known.solution.result.found_by)
    solution = within_overhead(solve(problem, given), known.request.max_overhead)
    return replace(known, prepared=prepared, solution=solution)


def plan(prepared: Prepared, request: Request, observe: Observer | None = None) -> Planning:
    """Plan a graph as it is asked for, and prove the plan by simulation.

    Args:
        prepared: the graph.
        request: names a budget; where that is the smallest, it is searched.
        observe: is told what the planner finds.

    Raises:
        UsageError: no budget is named, the planner does not have an option, or plans may offload over a link that is
            not known.
        PlannerRefuses: the planner cannot take this graph.
        FalseClaim: a schedule of the planner's does not run.
        KeyboardInterrupt: interrupted before any plan was found.
    """
    graph, planner, observe = prepared.graph, request.chosen.built, observe or Observer()
    with observe.judging():
        baseline_of(graph)
    size = request.budget_bytes(graph)
    budget = Budget(baseline_of(graph).peak_bytes if size is None else size)
    problem = Problem(graph, budget, prepared.link, request.offload)
    if size is None:
        search = smallest_budget(problem, planner, observe, request.max_overhead)
        if request.arena:
            from remat_cli.planning.addresses import smallest_arena

            placed = smallest_arena(search.solution, search.proven_bytes, request.alignment, observe)
            search = replace(search, solution=placed)
        solution = replace(search.solution, has_addresses=request.arena)
        return Planning(prepared, request, solution, replace(search, solution=solution))
    if request.arena:
        # Only here, as the search for addresses loads OR-tools.
        from remat_cli.planning.addresses import solve_with_addresses

        banks = tuple(request.banks.values())
        solved = solve_with_addresses(problem, planner, request.alignment, observe, banks)
    else:
        solved = solve(problem, planner, observe)
    seconds = getattr(planner, "time_limit", _SECONDS)
    solution = with_closest(within_overhead(solved, request.max_overhead), observe, seconds)
    return Planning(prepared, request, replace(solution, has_addresses=request.arena))
