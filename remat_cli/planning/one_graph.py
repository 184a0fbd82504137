"""A plan of one graph: with a request it becomes a problem, a planner makes a claim, and the judge confirms it.

Nobody else builds a `Problem`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from remat_cli.config import PlannerChoice, Request
from remat_cli.core.problem import Budget, Observer, Problem, Status
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import Trace
from remat_cli.core.solve import Solution, baseline_of, compared_with, solve
from remat_cli.errors import UsageError
from remat_cli.formats.schedule_json import schedule_bytes
from remat_cli.formats.user_files import check_user_files
from remat_cli.formats.writing import check_writes, write_file
from remat_cli.planning.given import Given
from remat_cli.planning.overhead import within_overhead
from remat_cli.planning.parts import parts_summary
from remat_cli.planning.refusal import with_closest
from remat_cli.planning.smallest_budget import SmallestBudget, smallest_budget
from remat_cli.planning.summary import Summary, graph_summary, solution_summary
from remat_cli.planning.whole_step import for_whole_step
from remat_cli.prepare import Prepared

# The seconds for the budget that a refusal suggests, if the planner has no time limit.
_SECONDS = 60.0


@dataclass(frozen=True)
class Planning:
    """The request and its verified result.

    Attributes:
        prepared: the planned graph, and how it was prepared.
        request: the request.
        solution: the result, verified by the simulator: `trace` of the plan, `closest`, `baseline`, bounds, warnings.
        search: the search for the smallest budget; None if another budget was requested.
    """

    prepared: Prepared
    request: Request
    solution: Solution
    search: SmallestBudget | None = None

    @property
    def planner(self) -> PlannerChoice:
        """The planner and its options."""
        return self.request.chosen

    @property
    def status(self) -> Status:
        """Whether there is a plan, with its proof."""
        return self.solution.status

    @property
    def trace(self) -> Trace | None:
        """The measured memory and time of the plan; None without a plan."""
        return self.solution.trace

    @property
    def schedule(self) -> Schedule | None:
        """The steps of the plan; None without a plan."""
        return self.solution.result.schedule if self.trace is not None else None

    @property
    def budget_bytes(self) -> int:
        """The requested budget, or the smallest one found."""
        return self.solution.problem.budget.device_bytes

    @property
    def peak_bytes(self) -> int | None:
        """Peak of the plan, with resident bytes and inputs; None without a plan."""
        return None if self.trace is None else self.trace.peak_bytes

    @property
    def overhead(self) -> float | None:
        """Time beyond the plain run's, as a share; None without a plan."""
        return self.solution.overhead

    @property
    def bound(self) -> float | None:
        """Lower bound on the overhead in `solution.scope`; None without a proof."""
        return self.solution.bound_overhead

    @property
    def schedule_file(self) -> bytes:
        """Content of the schedule file; without a plan, it says why there is none."""
        prepared = self.prepared
        return schedule_bytes(
            self.solution,
            prepared.mode,
            self.planner.record,
            prepared.options.recorded,
            estimated=prepared.is_estimated,
        )

    def save(self, path: str | Path) -> None:
        """Write the schedule file, whole or not at all.

        Raises:
            UsageError: there is no plan, or the file cannot be written, or is one from which the graph was read.
        """
        if self.schedule is None:
            raise UsageError(f"there is no plan to save: {self.solution.result.reason or self.status}")
        writes = {"save(...)": Path(path)}
        check_writes(writes, self.prepared.files)
        check_user_files(writes)
        write_file(Path(path), self.schedule_file)

    @property
    def _parts(self) -> Summary:
        """The parts of the plan's memory; nothing without a plan, or residents."""
        if self.schedule is None or self.trace is None:
            return {}
        return parts_summary(self.solution.problem.graph, self.schedule, self.trace)

    def summary(self) -> Summary:
        """Return the JSON values that `remat plan --json` prints.

        A missing figure is None.
        """
        return {
            "graph": graph_summary(self.prepared),
            "planner": self.planner.record,
            **solution_summary(self.solution),
            **self._parts,
            "notes": list(self.prepared.notes),
        }


def plan_again(known: Planning, prepared: Prepared, schedule: Schedule) -> Planning:
    """Judge a schedule on the same graph with other sizes or parts.

    Args:
        known: a planning for the same request.
        prepared: the other graph.
        schedule: the schedule to judge, for the same request.

    Raises:
        FalseClaim: the schedule does not run.
    """
    problem = replace(known.solution.problem, graph=prepared.graph, link=prepared.link)
    given = Given(schedule, known.solution.result.found_by)
    solution = compared_with(solve(problem, given), prepared.undivided)
    solution = within_overhead(solution, known.request.max_overhead)
    return replace(known, prepared=prepared, solution=solution)


def plan_graph(prepared: Prepared, request: Request, observe: Observer | None = None) -> Planning:
    """Plan a graph as it is for a request, and prove the plan by simulation.

    Overheads are over the plain run of the graph without parts.

    Args:
        prepared: the graph.
        request: the request with a budget; for "min", the smallest budget is searched.
        observe: receives the planner's plans and bounds.

    Raises:
        UsageError: no budget is named, the planner does not have an option, or plans may offload but the link is
            unknown.
        PlannerRefuses: the planner cannot take this graph.
        FalseClaim: one of the planner's schedules does not run.
        KeyboardInterrupt: the planner was interrupted before it found a plan.
    """
    graph, observe = prepared.graph, observe or Observer()
    planner = for_whole_step(request.chosen.built, graph)
    with observe.judging():
        baseline_of(graph)
    size = request.budget_bytes(graph)
    budget = Budget(baseline_of(graph).peak_bytes if size is None else size)
    problem = Problem(graph, budget, prepared.link, request.offload)
    if size is None:
        search = smallest_budget(problem, planner, observe, _over_its_own(prepared, request.max_overhead))
        if request.arena:
            from remat_cli.planning.addresses import smallest_arena

            placed = smallest_arena(search.solution, search.proven_bytes, request.alignment, observe)
            search = replace(search, solution=placed)
        elif request.allocator is not None:
            from remat_cli.planning.reserved import reserved_for_smallest

            search = replace(search, solution=reserved_for_smallest(search.solution, request.allocator))
        solution = compared_with(replace(search.solution, has_addresses=request.arena), prepared.undivided)
        search = replace(search, solution=solution, max_overhead=request.max_overhead)
        notes = (*prepared.notes, search.note) if search.note else prepared.notes
        return Planning(replace(prepared, notes=notes), request, solution, search)
    if request.arena:
        # Imported here because the search for addresses loads OR-tools.
        from remat_cli.planning.addresses import solve_with_addresses

        banks = tuple(request.banks.values())
        solved = solve_with_addresses(problem, planner, request.alignment, observe, banks)
    elif request.allocator is not None:
        from remat_cli.planning.reserved import solve_with_allocator

        solved = solve_with_allocator(problem, planner, request.allocator, observe)
    else:
        solved = solve(problem, planner, observe)
    seconds = getattr(planner, "time_limit", _SECONDS)
    solution = compared_with(solved, prepared.undivided)
    solution = with_closest(within_overhead(solution, request.max_overhead), observe, seconds)
    return Planning(prepared, request, replace(solution, has_addresses=request.arena))


def _over_its_own(prepared: Prepared, max_overhead: Fraction | None) -> Fraction | None:
    """Return a largest overhead over the plain run of this graph: the given one is over the graph without parts."""
    if max_overhead is None or prepared.undivided is prepared.graph:
        return max_overhead
    allowed = (1 + max_overhead) * baseline_of(prepared.undivided).time
    return allowed / max(1, baseline_of(prepared.graph).time) - 1
