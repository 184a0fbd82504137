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
    def leaves_out_transfers(self) -> bool:
        """Whether its proof says nothing of plans that move tensors to the host, though there can be such plans."""
        if self.problem.bytes_per_time is None or self.result.scope is Scope.PLANNER:
            return False
        if self.status is Status.INFEASIBLE:
            return self.problem.budget.device_bytes >= self.working_set.bytes
        return bool(self.bound_overhead)

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
    """Passes everything on, and keeps the best plan and bound so far, which outlive an interruption."""

    def __init__(self, problem: Problem, observe: Observer) -> None:
        self._problem = problem
        self._observe = observe
        self.best: Schedule | None = None
        self.trace: Trace | None = None
        self.time_bound: int | None = None
        self.scope = Scope.PLANNER
        self._planner: str | None = None
        self._found_by: str | None = None

    def phase(self, text: str) -> None:
        self._observe.phase(text)

    def asks(self, planner: str) -> None:
        self._planner = planner
        self._observe.asks(planner)

    def found(self, schedule: Schedule) -> None:
        trace = _replay(self._problem, schedule)
        if trace.peak_bytes <= self._problem.budget.device_bytes and (
            self.trace is None or trace.time < self.trace.time
        ):
            self.best, self.trace, self._found_by = schedule, trace, self._planner
            self._observe.found(schedule)
            self._tell_standing()

    def bound(self, time: int, scope: Scope) -> None:
        if self.time_bound is None or time > self.time_bound:
            self.time_bound, self.scope = time, scope
            self._observe.bound(time, scope)
            self._tell_standing()

    def _tell_standing(self) -> None:
        if self.trace is None:
            return
        plain = self._problem.graph.total_time
        bound = plain if self.time_bound is None or self.time_bound > self.trace.time else self.time_bound
        self._observe.standing(share_over(self.trace.time, plain), share_over(bound, plain), self._found_by)

    def is_better_than(self, trace: Trace | None) -> bool:
        """Tell whether a plan was found that takes less time than this one, or any where this is none."""
        return self.trace is not None and (trace is None or self.trace.time < trace.time)

    def result(self) -> PlanResult:
        """Return the best plan as a result of its own; there must be one.

        A bound above its time is one on a smaller scope, which says nothing of a plan from outside that.
        """
        assert self.trace is not None
        holds = self.time_bound is not None and self.time_bound <= self.trace.time
        return PlanResult(
            Status.FEASIBLE,
            self.scope,
            schedule=self.best,
            time_bound=self.time_bound if holds else None,
            found_by=self._found_by,
        )


def solve(problem: Problem, planner: Planner, observe: Observer | None = None) -> Solution:
    """Run `planner` on `problem` and replay what it claims.

    A budget below the largest working set is proven infeasible without asking the planner. Ctrl-C keeps the best plan
    found until then, and a better plan that the planner told the observer of is never lost to a worse result.

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
        result = incumbent.result()
        interrupted = True
    trace = None if result.schedule is None else _judge(problem, result, result.schedule)
    closest = None if result.closest is None else _replay(problem, result.closest)
    if result.status is Status.INFEASIBLE:
        _check_nothing_fits(problem, result, incumbent.best, closest, baseline)
    if incumbent.is_better_than(trace):
        result, trace, closest = incumbent.result(), incumbent.trace, None
    if trace is not None:
        result = _with_plain_bound(result, trace, baseline)
    return Solution(problem, result, trace, baseline, closest, working_set, interrupted)


def _with_plain_bound(result: PlanResult, trace: Trace, baseline: Trace) -> PlanResult:
    """Apply what holds for every plan: each op runs at least once, so none is faster than the plain run."""
    if trace.time == baseline.time:
        return replace(result, status=Status.OPTIMAL, scope=Scope.ANY_ORDER, time_bound=trace.time)
    if result.time_bound is None or result.time_bound <= baseline.time:
        return replace(result, scope=Scope.ANY_ORDER, time_bound=baseline.time)
    return result


def _replay(problem: Problem, schedule: Schedule) -> Trace:
    try:
        return simulate(problem.graph, schedule, bytes_per_time=problem.bytes_per_time)
    except InvalidSchedule as error:
        raise FalseClaim(f"the planner returned a schedule that does not run: {error.message}") from error


def _check_nothing_fits(
    problem: Problem, result: PlanResult, found: Schedule | None, closest: Trace | None, baseline: Trace
) -> None:
    """Hold a claim that no plan in scope fits against the plans that are known."""
    budget_bytes = problem.budget.device_bytes
    if found is not None:
        raise FalseClaim("the planner claims that no plan fits, after it found one")
    if closest is not None and closest.peak_bytes <= budget_bytes:
        raise FalseClaim("the planner claims that no plan fits, but its closest one does")
    if result.scope is not Scope.PLANNER and baseline.peak_bytes <= budget_bytes:
        raise FalseClaim("the planner claims that no plan fits, but the plain run does")


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
