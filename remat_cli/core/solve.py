"""Planner and judge together: only verified plans leave this module.

No other module calls planners, except planners that ask others.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache

from remat_cli.core.allocator import Reserved
from remat_cli.core.arena import Arena, check_arena
from remat_cli.core.bounds import WorkingSet, largest_working_set
from remat_cli.core.graph import Graph
from remat_cli.core.problem import (
    Basis,
    Bound,
    ModelFigure,
    Observer,
    PassingObserver,
    Plan,
    Planner,
    PlanResult,
    Problem,
    Scope,
    Status,
)
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import Trace, simulate
from remat_cli.errors import FalseClaim, InvalidSchedule, PlannerFails, RematError
from remat_cli.units import BudgetSpec

_LOG = logging.getLogger("remat")
_LOG.addHandler(logging.NullHandler())  # the caller decides where the log goes


@dataclass(frozen=True)
class Solution:
    """The verified result of a planner's run.

    Attributes:
        problem: the problem given to the planner.
        result: the planner's claim as corrected by the judge: without refuted bounds, with bounds that the judge adds.
        trace: the simulator's measurement of the plan; None without a plan.
        baseline: the plain run, measured; that of the graph without parts if the problem's graph has parts.
        closest: without a plan: the measured schedule of the smallest peak found.
        working_set: the memory below which no plan can go.
        interrupted: the user stopped the planner; the plan is the best one until then.
        warnings: false claims of the planner, one sentence each.
        arena: checked addresses for the plan; None if none were asked for.
        sum_time: with an arena or an allocator: time of the fastest plan found whose sum of bytes fits.
        closest_arena_bytes: without a plan: the smallest arena found for plans whose sum of bytes fits; None if no
            addresses were asked for, or no sum fits.
        has_addresses: whether addresses were asked for; the budget is then that of the arena.
        reserved: bytes that the allocator reserves for the plan; None without an allocator.
        closest_reserved_bytes: without a plan: the least bytes that the allocator reserves for plans whose peak fits;
            None without an allocator, or if no peak fits.
        undivided: the graph without parts; None if the problem's graph has no parts.
    """

    problem: Problem
    result: PlanResult
    trace: Trace | None
    baseline: Trace
    closest: Trace | None
    working_set: WorkingSet
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    arena: Arena | None = None
    sum_time: int | None = None
    closest_arena_bytes: int | None = None
    has_addresses: bool = False
    reserved: Reserved | None = None
    closest_reserved_bytes: int | None = None
    undivided: Graph | None = None

    @property
    def plain_graph(self) -> Graph:
        """The graph of the plain run: the model as the user gave it."""
        return self.undivided or self.problem.graph

    @property
    def uncounted_bytes(self) -> int:
        """Bytes that the user's budget does not count.

        These are the resident bytes if the budget is that of an arena.
        """
        return self.problem.graph.resident_bytes if self.has_addresses else 0

    @property
    def needed_bytes(self) -> int | None:
        """The smallest budget that the plan fits.

        This is its peak; with an allocator, the reserved bytes; in one block, the arena plus resident bytes.
        """
        if self.trace is None:
            return None
        if self.reserved is not None:
            return self.reserved.bytes
        in_block = self.arena is not None and not self.arena.banks
        return (
            self.problem.graph.resident_bytes + self.arena.bytes if in_block and self.arena else self.trace.peak_bytes
        )

    @property
    def fragmentation_bytes(self) -> int | None:
        """Bytes of the arena beyond its largest content; None without an arena."""
        if self.arena is None or self.trace is None:
            return None
        return self.arena.bytes - (self.trace.peak_bytes - self.problem.graph.resident_bytes)

    @property
    def fragmentation_overhead(self) -> float | None:
        """Extra time of the plan because its arena must fit.

        The comparison is with the fastest plan whose sum of bytes fits, as a share of the plain run's time.
        """
        if self.sum_time is None or self.trace is None:
            return None
        return share_over(self.trace.time, self.baseline.time) - share_over(self.sum_time, self.baseline.time)

    @property
    def leaves_out_transfers(self) -> bool:
        """Whether the proof excludes plans with transfers although a link exists."""
        return self.problem.link is not None and self.scope.leaves_out_transfers

    @property
    def status(self) -> Status:
        """How the planner's run ended."""
        return self.result.status

    @property
    def scope(self) -> Scope:
        """The plans that the foremost proof covers."""
        bound = self.result.bound
        return self.result.scope if bound is None else bound.scope

    @property
    def basis(self) -> Basis:
        """The evidence behind the foremost proof."""
        bound = self.result.bound
        return self.result.basis if bound is None else bound.basis

    @cached_property
    def overhead(self) -> float | None:
        """Extra time over the plain run, as a share; None without a plan."""
        return None if self.trace is None else share_over(self.trace.time, self.baseline.time)

    @cached_property
    def bound_overhead(self) -> float | None:
        """Lower bound on the overhead of plans in `scope`; None without a proof."""
        bound = self.result.bound
        return None if bound is None else self.overhead_of(bound)

    @property
    def gap(self) -> float | None:
        """Overhead beyond the bound; None without a plan or a bound.

        It is a share of the plain run's time.
        """
        bound = self.result.bound
        if self.trace is None or bound is None:
            return None
        return share_over(self.trace.time, self.baseline.time) - share_over(bound.time, self.baseline.time)

    def overhead_of(self, bound: Bound) -> float:
        """Return the overhead over the plain run at this bound."""
        return max(0.0, share_over(bound.time, self.baseline.time))


def share_over(time: int, baseline: int) -> float:
    """Return time / baseline - 1.

    A graph whose ops take no time has no overhead.
    """
    return time / baseline - 1 if baseline else 0.0


@lru_cache(maxsize=4)
def baseline_of(graph: Graph) -> Trace:
    """Measure the plain run, the baseline of overheads and percentages."""
    return simulate(graph, plain_run(graph))


@dataclass(frozen=True)
class Activations:
    """The plain run's memory, divided into activations and the rest.

    Attributes:
        other_bytes: parameters, gradients, optimizer state and inputs.
        bytes: the peak of the activations.
    """

    other_bytes: int
    bytes: int

    def share(self, budget_bytes: int) -> Fraction:
        """Return the share of the activations that fits this budget."""
        return Fraction(budget_bytes - self.other_bytes, max(1, self.bytes))


@lru_cache(maxsize=4)
def activations_of(graph: Graph) -> Activations:
    """Measure the activations of the plain run.

    Gradients count as present from start to end.
    """
    sizes = {name: graph.tensors[name].bytes for name in graph.gradients}
    if not any(sizes.values()):
        return Activations(graph.fixed_bytes, baseline_of(graph).peak_bytes - graph.fixed_bytes)
    tensors = {**graph.tensors, **{name: replace(graph.tensors[name], bytes=0) for name in sizes}}
    alone = replace(graph, tensors=tensors)
    peak = simulate(alone, plain_run(alone)).peak_bytes
    return Activations(graph.fixed_bytes + sum(sizes.values()), peak - graph.fixed_bytes)


def bytes_of_budget(budget: BudgetSpec, graph: Graph, leaving_out: int = 0) -> int:
    """Convert a budget for a graph to bytes.

    Args:
        budget: the budget as the user gave it.
        graph: the graph to plan.
        leaving_out: resident bytes that the budget does not count: shares are of the peak without them.

    Raises:
        ValueError: "min" has no size.
    """
    activations = activations_of(graph) if budget.of_activations else Activations(0, 0)
    peak = baseline_of(graph).peak_bytes - leaving_out
    return budget.bytes_of(peak, max(0, activations.other_bytes - leaving_out), activations.bytes)


def solve(problem: Problem, planner: Planner, observe: Observer | None = None) -> Solution:
    """Run `planner` on `problem`, and replay its claims.

    A budget below the largest working set is proven infeasible without asking the planner. Ctrl-C keeps the best plan
    found until then, and a better plan that the planner reported to the observer is never lost to a worse result. A
    claim that a plan refutes is dropped, with a warning; the plan stays.

    Raises:
        FalseClaim: one of the planner's schedules does not run.
        PlannerRefuses: the planner cannot take this graph.
        PlannerFails: a planner of another package breaks down before it has a plan.
        KeyboardInterrupt: interrupted before any plan was found.
    """
    observe = observe or Observer()
    observe.begins()
    # Only plans with transfers may keep residents on the host.
    residents_stay = bool(problem.graph.residents) and not problem.offload
    working_set = largest_working_set(problem.graph, residents_stay=residents_stay)
    if problem.budget.device_bytes < working_set.bytes:
        culprit = "the outputs" if working_set.op is None else f"op {working_set.op!r}"
        reason = f"{culprit} alone cannot fit: no plan in any order can"
        scope = Scope.ANY_ORDER if residents_stay else Scope.ANY_PLAN
        proof = PlanResult(Status.INFEASIBLE, scope=scope, reason=reason)
        return Solution(problem, proof, None, baseline_of(problem.graph), None, working_set)
    judge = _Judge(problem, observe)
    interrupted = False
    try:
        claim = _claim_of(planner, problem, judge)
    except KeyboardInterrupt:
        if judge.best is None:
            raise
        claim = judge.best_claim()
        interrupted = True
    verdict = judge.verdict(claim)
    closest = None if verdict.closest is None or verdict.schedule is not None else judge.trace(verdict.closest)
    trace = None if verdict.schedule is None else judge.trace(verdict.schedule)
    warnings = tuple(judge.warnings)
    return Solution(problem, verdict, trace, judge.baseline, closest, working_set, interrupted, warnings)


def _claim_of(planner: Planner, problem: Problem, judge: _Judge) -> PlanResult:
    """Ask a planner for its claim; if one of another package fails, take its best plan.

    Raises:
        PlannerFails: it has no plan.
    """
    package, _, _ = type(planner).__module__.partition(".")
    try:
        claim = planner.plan(problem, judge)
        if isinstance(claim, PlanResult):
            return claim
        error: Exception = TypeError(f"plan returned {type(claim).__name__}, not PlanResult")
    except (RematError, MemoryError):
        raise
    except Exception as raised:
        if package == "remat_cli":
            raise
        error = raised
    if judge.best is not None:
        judge.warn(f"the planner broke down after it had found this plan: {type(error).__name__}: {error}")
        return judge.best_claim()
    raise PlannerFails(
        f"planner {type(planner).__name__} of {package} broke down: {type(error).__name__}: {error}",
        hint="tell its authors: this is no fault of remat; 'remat --debug ...' shows the traceback",
    ) from error


def compared_with(solution: Solution, undivided: Graph) -> Solution:
    """Return a solution whose baseline is the plain run of the graph without parts.

    A bound on the plans of one division is none on those of others. What holds for the model is that each op runs at
    least once.

    Args:
        solution: the solution, perhaps of a graph with parts.
        undivided: the graph without parts.
    """
    if undivided is solution.problem.graph:
        return solution
    baseline, result = baseline_of(undivided), solution.result
    if solution.trace is not None:
        time = solution.trace.time
        bounds = (Bound(baseline.time, Scope.ANY_PLAN),) if time >= baseline.time else ()
        status = Status.OPTIMAL if time == baseline.time else Status.FEASIBLE
        result = replace(result, status=status, bounds=bounds)
    return replace(solution, result=result, baseline=baseline, undivided=undivided)


def with_arena(solution: Solution, schedule: Schedule, arena: Arena) -> Solution:
    """Return a solution with a plan that lies in an arena.

    The judge checks plan and arena. The solution's proofs still hold: an arena is never smaller than the sum of bytes.

    Args:
        solution: a solution whose sum of bytes fits the budget.
        schedule: the solution's own plan, or another in its place.
        arena: the arena of that plan.

    Raises:
        FalseClaim: the plan does not run, tensors that are in memory together overlap, or the arena does not fit.
    """
    problem = solution.problem
    placed = _with_other_plan(solution, schedule)
    try:
        check_arena(problem.graph, schedule, arena)
    except InvalidSchedule as error:
        raise FalseClaim(f"the addresses that were found are wrong: {error.message}") from error
    # Each bank has a size of its own.
    if not arena.banks and problem.graph.resident_bytes + arena.bytes > problem.budget.device_bytes:
        raise FalseClaim(f"an arena of {arena.bytes} bytes was taken for one that fits the budget")
    return replace(placed, arena=arena)


def with_reserved(solution: Solution, schedule: Schedule, reserved: Reserved) -> Solution:
    """Return a solution with another plan, or the same, for which an allocator reserves no more than the budget.

    What was proven for the solution stays proven: an allocator never reserves less than the peak.

    Args:
        solution: has a plan whose peak fits the budget.
        schedule: the plan that takes its place.
        reserved: for that plan.

    Raises:
        FalseClaim: the plan does not run, or what is reserved is above the budget or below the peak.
    """
    placed = replace(_with_other_plan(solution, schedule), reserved=reserved)
    assert placed.trace is not None
    if not placed.trace.peak_bytes <= reserved.bytes <= solution.problem.budget.device_bytes:
        raise FalseClaim(f"{reserved.bytes} reserved bytes were taken for what lies between peak and budget")
    return placed


def _with_other_plan(solution: Solution, schedule: Schedule) -> Solution:
    """Return a solution with another plan, or the same, that costs more time than the one whose peak fits."""
    old = solution.trace
    assert old is not None
    judge = _Judge(solution.problem, Observer())
    trace = judge.trace(schedule)
    sum_time = min(old.time, trace.time)
    if schedule is solution.result.schedule:
        return replace(solution, sum_time=sum_time)
    judge.best = _Known(schedule, trace, is_of_planner=False)
    claim = PlanResult(Status.UNKNOWN, bounds=solution.result.bounds)
    other = replace(solution, result=judge.verdict(claim), trace=trace, sum_time=sum_time)
    return replace(other, warnings=(*solution.warnings, *judge.warnings))


def with_plan_of(solution: Solution, other: Solution) -> Solution:
    """Return a solution with the plan of another, faster solution.

    The other solution's plan fits this budget. The judge checks the bounds of `solution` against that plan, if both are
    for the same graph; otherwise one of them has regions in parts, and nothing that was proven is taken over.
    """
    if other.problem.graph is not solution.problem.graph:
        return replace(other, problem=replace(other.problem, budget=solution.problem.budget))
    assert other.trace is not None
    assert other.result.schedule is not None
    judge = _Judge(solution.problem, Observer())
    result = other.result
    # The plan may lie outside of this planner's search.
    judge.best = _Known(other.result.schedule, other.trace, result.model_figures, result.found_by, is_of_planner=False)
    verdict = judge.verdict(solution.result)
    warnings = (*solution.warnings, *judge.warnings)
    sum_times = [time for time in (solution.sum_time, other.sum_time) if time is not None]
    return replace(
        other,
        problem=solution.problem,
        result=verdict,
        interrupted=solution.interrupted,
        warnings=warnings,
        sum_time=min(sum_times, default=None),
    )


@dataclass(frozen=True)
class _Known:
    """A plan that fits, with its replay."""

    schedule: Schedule
    trace: Trace
    figures: tuple[ModelFigure, ...] = ()
    found_by: str | None = None
    is_of_planner: bool = True

    def as_judged(self) -> Plan:
        return Plan(self.trace.time, self.trace.peak_bytes, lambda: self.schedule, self.figures, self.found_by)


class _Judge(PassingObserver):
    """Replays the plans of one run, keeps the best, and checks claims.

    Attributes:
        best: the fastest plan that fits, of those that the planner reported; None before there is one.
        baseline: the plain run, measured.
        warnings: false claims, one sentence each.
    """

    def __init__(self, problem: Problem, observe: Observer) -> None:
        super().__init__(observe)
        self.best: _Known | None = None
        self.baseline = baseline_of(problem.graph)
        self.warnings: list[str] = []
        self._problem = problem
        self._bounds: dict[Scope, Bound] = {}
        self._planner: str | None = None
        self._judged: tuple[Schedule, Trace] | None = None  # the last replay: most often it is asked for again

    def asks(self, planner: str) -> None:
        self._planner = planner
        self.observe.asks(planner)

    def found(self, plan: Plan) -> None:
        trace = self.trace(plan.schedule)
        if self._fits(trace) and (self.best is None or trace.time < self.best.trace.time):
            self.best = _Known(plan.schedule, trace, plan.figures, plan.found_by or self._planner)
            self.observe.found(self.best.as_judged())
            self._tell_standing()

    def bound(self, bound: Bound) -> None:
        known = self._bounds.get(bound.scope)
        if known is None or bound.time > known.time:
            self._bounds[bound.scope] = bound
            self.observe.bound(bound)
            self._tell_standing()

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The reported bounds, widest scope first."""
        return tuple(self._bounds[scope] for scope in Scope if scope in self._bounds)

    def best_claim(self) -> PlanResult:
        """Return the best plan as a result.

        There must be one.
        """
        assert self.best is not None
        best = self.best
        return PlanResult(
            Status.FEASIBLE, best.schedule, self.bounds, model_figures=best.figures, found_by=best.found_by
        )

    def trace(self, schedule: Schedule) -> Trace:
        """Replay a schedule.

        Raises:
            FalseClaim: the schedule does not run.
        """
        if schedule is plain_run(self._problem.graph):
            return self.baseline
        if self._judged is None or self._judged[0] is not schedule:
            try:
                with self.observe.judging():
                    trace = simulate(self._problem.graph, schedule, link=self._problem.link)
            except InvalidSchedule as error:
                raise FalseClaim(f"the planner returned a schedule that does not run: {error.message}") from error
            self._judged = schedule, trace
        return self._judged[1]

    def verdict(self, claim: PlanResult) -> PlanResult:
        """Correct a claim, and give it the best known plan.

        Raises:
            FalseClaim: one of its schedules does not run.
        """
        known = [plan for plan in (self._claimed(claim), self.best) if plan is not None]
        nothing_fits = claim.status is Status.INFEASIBLE and not self._is_refuted(claim, known)
        best = None if nothing_fits else min(known, key=lambda plan: plan.trace.time, default=None)
        if best is None:
            return self._without_plan(claim)
        bounds = self._true_bounds(claim.bounds, known, best)
        is_met = bounds[0].time == best.trace.time
        # A faster plan that it did not search says nothing against it.
        if claim.status is Status.OPTIMAL and best.is_of_planner and not is_met and not self.warnings:
            self.warn("the planner calls its plan optimal, but its time is above the bound")
        return PlanResult(
            Status.OPTIMAL if is_met else Status.FEASIBLE,
            best.schedule,
            bounds,
            stats=claim.stats,
            model_figures=best.figures,
            found_by=best.found_by,
            note=claim.note,
        )

    def _claimed(self, claim: PlanResult) -> _Known | None:
        """Judge the claimed plan; None without a plan that fits."""
        if claim.schedule is None:
            return None
        trace = self.trace(claim.schedule)
        if self._fits(trace):
            return _Known(claim.schedule, trace, claim.model_figures, claim.found_by)
        budget = self._problem.budget.device_bytes
        self.warn(f"the planner returned a plan that peaks at {trace.peak_bytes} bytes, above the budget of {budget}")
        return None

    def _is_refuted(self, claim: PlanResult, known: list[_Known]) -> bool:
        """Tell whether a plan in scope fits although the claim denies that.

        Plans that fit are added to `known`.
        """
        if claim.closest is not None and self._fits(trace := self.trace(claim.closest)):
            known.append(_Known(claim.closest, trace))
        if self._fits(self.baseline):
            known.append(_Known(plain_run(self._problem.graph), self.baseline, is_of_planner=False))
        if not any(self._is_in_scope(plan, claim.scope) for plan in known):
            return False
        self.warn(f"the proof that no plan fits ({claim.scope}) is wrong: there is one, and it is kept")
        return True

    def _without_plan(self, claim: PlanResult) -> PlanResult:
        """Return the claim without a plan."""
        if claim.schedule is None:
            return claim
        return PlanResult(Status.UNKNOWN, closest=claim.schedule, reason="no plan was found that fits")

    def _true_bounds(self, bounds: tuple[Bound, ...], known: list[_Known], best: _Known) -> tuple[Bound, ...]:
        """Drop refuted bounds; add that each op runs at least once."""
        plain = Bound(self.baseline.time, Scope.ANY_PLAN)
        if best.trace.time == plain.time:
            return (plain,)
        true = []
        for bound in bounds:
            if any(plan.trace.time < bound.time and self._is_in_scope(plan, bound.scope) for plan in known):
                self.warn(f"a bound ({bound.scope}) is wrong: a plan takes {best.trace.time}, less than {bound.time}")
            else:
                true.append(bound if bound.time > plain.time else plain)
        met: list[Bound] = []
        others: list[Bound] = []
        for bound in true:
            # A bound on plans without transfers does not limit a plan with transfers.
            says_nothing = best.schedule.has_transfers and bound.scope.leaves_out_transfers
            (others if says_nothing or bound.time > best.trace.time else met).append(bound)
        # Bounds whose scope excludes the best plan. Readers can use their scope, except PLANNER.
        beyond = [bound for bound in others if bound.scope is not Scope.PLANNER]
        return (*dict.fromkeys(met or [plain]), *beyond)

    def _is_in_scope(self, plan: _Known, scope: Scope) -> bool:
        """Tell whether a proof over this scope covers the plan."""
        if scope is Scope.PLANNER:
            return plan.is_of_planner
        if scope is Scope.ANY_PLAN:
            return True
        if plan.schedule.has_transfers:
            return False
        order = tuple(op.name for op in self._problem.graph.ops)
        return scope is Scope.ANY_ORDER or tuple(dict.fromkeys(plan.schedule.computes)) == order

    def _fits(self, trace: Trace) -> bool:
        return trace.peak_bytes <= self._problem.budget.device_bytes

    def _tell_standing(self) -> None:
        if self.best is None:
            return
        plain, time = self.baseline.time, self.best.trace.time
        bound = next((bound.time for bound in self.bounds if bound.time <= time), plain)
        self.observe.standing(share_over(time, plain), share_over(bound, plain), self.best.found_by)

    def warn(self, text: str) -> None:
        """Log a warning, and keep it for the solution."""
        self.warnings.append(text)
        _LOG.warning("%s", text)
