"""Planner and judge together: the only caller of planners. What passes here is verified; nothing else circulates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from remat_cli.bounds import WorkingSet, largest_working_set
from remat_cli.errors import FalseClaim, InvalidSchedule
from remat_cli.graph import Graph
from remat_cli.problem import Observer, Planner, PlanResult, Problem, Scope, Status
from remat_cli.schedule import Schedule, plain_run
from remat_cli.simulate import Trace, simulate


@dataclass(frozen=True)
class Solution:
    """A verified result.

    Attributes:
        problem: what was asked.
        result: the planner's claim, corrected where the judge could prove more than the planner.
        trace: what the simulator measured; there if and only if there is a plan.
        baseline: the plain run, measured.
        closest: without a plan: the schedule of the smallest peak that was found, measured.
        working_set: the memory below which no plan can go.
        interrupted: the planner was stopped by the user; the plan is the best one until then.
    """

    problem: Problem
    result: PlanResult
    trace: Trace | None
    baseline: Trace
    closest: Trace | None
    working_set: WorkingSet
    interrupted: bool = False

    @property
    def status(self) -> Status:
        """How it ended."""
        return self.result.status

    @cached_property
    def overhead(self) -> float | None:
        """Extra time over the plain run, as a share of its time; None without a plan."""
        return None if self.trace is None else share_over(self.trace.time, self.baseline.time)

    @cached_property
    def bound_overhead(self) -> float | None:
        """No plan in the result's scope has less overhead; None where nothing was proven."""
        bound = self.result.time_bound
        return None if bound is None else max(0.0, share_over(bound, self.baseline.time))

    @property
    def gap(self) -> float | None:
        """Overhead beyond the bound, as a share of the plain run's time; None without a plan or a bound."""
        if self.trace is None or self.result.time_bound is None:
            return None
        return share_over(self.trace.time, self.baseline.time) - share_over(self.result.time_bound, self.baseline.time)


def share_over(time: int, baseline: int) -> float:
    """Return time / baseline - 1; a graph whose ops take no time has no overhead."""
    return time / baseline - 1 if baseline else 0.0


@lru_cache(maxsize=4)
def baseline_of(graph: Graph) -> Trace:
    """Measure the plain run of `graph`: the baseline of every overhead and percentage."""
    return simulate(graph, plain_run(graph))


class _Incumbent(Observer):
    """Passes everything on, and keeps the best plan found so far should the run be interrupted."""

    def __init__(self, problem: Problem, observe: Observer) -> None:
        self._problem = problem
        self._observe = observe
        self.best: Schedule | None = None
        self._best_time: int | None = None

    def phase(self, text: str) -> None:
        self._observe.phase(text)

    def found(self, schedule: Schedule) -> None:
        trace = _replay(self._problem, schedule)
        if trace.peak_bytes <= self._problem.budget.device_bytes and (
            self._best_time is None or trace.time < self._best_time
        ):
            self.best, self._best_time = schedule, trace.time
            self._observe.found(schedule)

    def bound(self, time: int, scope: Scope) -> None:
        self._observe.bound(time, scope)


def solve(problem: Problem, planner: Planner, observe: Observer | None = None) -> Solution:
    """Run `planner` on `problem` and replay what it claims.

    A budget below the largest working set is proven infeasible without asking the planner. Ctrl-C keeps the best plan
    found until then.

    Raises:
        FalseClaim: the simulator does not confirm what the planner claims.
        PlannerRefuses: the planner cannot take this graph.
        KeyboardInterrupt: interrupted before any plan was found.
    """
    working_set = largest_working_set(problem.graph)
    baseline = baseline_of(problem.graph)
    if problem.budget.device_bytes < working_set.bytes:
        culprit = "the outputs" if working_set.op is None else f"op {working_set.op!r}"
        proof = PlanResult(
            Status.INFEASIBLE, Scope.ANY_ORDER, reason=f"{culprit} alone cannot fit: no plan in any order can"
        )
        return Solution(problem, proof, None, baseline, None, working_set)
    incumbent = _Incumbent(problem, observe or Observer())
    interrupted = False
    try:
        result = planner.plan(problem, incumbent)
    except KeyboardInterrupt:
        if incumbent.best is None:
            raise
        result = PlanResult(Status.FEASIBLE, schedule=incumbent.best)
        interrupted = True
    trace = None if result.schedule is None else _judge(problem, result, result.schedule)
    closest = None if result.closest is None else _replay(problem, result.closest)
    if trace is not None and trace.time == baseline.time:
        # Every op runs at least once, so nothing can be faster, in any order.
        result = replace(result, status=Status.OPTIMAL, scope=Scope.ANY_ORDER, time_bound=trace.time)
    elif trace is not None and result.time_bound is None:
        result = replace(result, scope=Scope.ANY_ORDER, time_bound=baseline.time)
    return Solution(problem, result, trace, baseline, closest, working_set, interrupted)


def _replay(problem: Problem, schedule: Schedule) -> Trace:
    try:
        return simulate(problem.graph, schedule, bytes_per_time=problem.bytes_per_time)
    except InvalidSchedule as error:
        raise FalseClaim(f"the planner returned a schedule that does not run: {error.message}") from error


def _judge(problem: Problem, result: PlanResult, schedule: Schedule) -> Trace:
    """Replay a claimed plan, and hold budget and bound against what it really costs."""
    trace = _replay(problem, schedule)
    if trace.peak_bytes > problem.budget.device_bytes:
        raise FalseClaim(
            f"the planner's schedule peaks at {trace.peak_bytes} bytes, above the budget of "
            f"{problem.budget.device_bytes}"
        )
    if result.time_bound is not None and result.time_bound > trace.time:
        raise FalseClaim(f"the planner's bound {result.time_bound} is above its schedule's time {trace.time}")
    if result.status is Status.OPTIMAL and result.time_bound != trace.time:
        raise FalseClaim(
            f"the planner claims an optimal schedule, but its time {trace.time} is above its bound {result.time_bound}"
        )
    return trace
