"""How `auto` divides its time among planners, and what it keeps of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from time import monotonic

from remat_cli.cores import usable_cores
from remat_cli.errors import PlannerRefuses
from remat_cli.graph import Phase
from remat_cli.planners.auto.options import AutoOptions
from remat_cli.planners.dtr.options import Heuristic
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.lower_sets.approx_dp import ApproxDP
from remat_cli.planners.min_cut.options import SearchLimits
from remat_cli.planners.min_cut.planner import MinCut
from remat_cli.planners.min_cut.search import improve
from remat_cli.planners.pofo.planner import Pofo
from remat_cli.planners.retention.any_order_bound import any_order_bound
from remat_cli.planners.retention.options import RetentionOptions
from remat_cli.planners.retention.search import Known, RetentionSearch
from remat_cli.planners.rotor.planner import Rotor
from remat_cli.planners.shared.cp_sat import SolverLimits
from remat_cli.planners.shared.rerun_removal import without_needless_reruns
from remat_cli.problem import Observer, PlanResult, Problem, Scope, Status
from remat_cli.schedule import Offload, Schedule, plain_run, with_frees
from remat_cli.simulate import simulate

# Up to how many ops each planner is worth its time.
_MOST_FOR_OFFLOADING = 1_500
_MOST_FOR_HEURISTICS = 3_000
_MOST_FOR_RETENTION = 5_000
_MOST_FOR_SMALL_GAPS = 1_000
# The solver's counted work for the bound.
_WORK_OF_BOUND = 0.5
# Nearer to the bound than this, rotor and approx_dp have nothing to add, and retention little for its time.
_GAP_FOR_HEURISTICS = 0.002
# What a quick planner may take of the time that is left when its turn comes. On graphs of usual size none needs it, and
# what they find does not depend on the clock.
_SHARE_OF_QUICK = 0.25
_SHARE_OF_OFFLOADING = 0.6
# A greedy run is given up after so many times the plain time.
_SLOWEST_EVICTION = 1.5


class Portfolio(Observer):
    """One run of `auto`; as the observer of its planners it knows the best plan so far."""

    def __init__(self, problem: Problem, options: AutoOptions, observe: Observer) -> None:
        self._problem = problem
        self._options = options
        self._observe = observe
        self._end = monotonic() + options.time_limit
        self._planner = ""
        self._best: Schedule | None = None
        self._best_time: int | None = None
        self._closest: Schedule | None = None
        self._closest_bytes: int | None = None
        self._found_by: str | None = None
        # Of plans that move nothing to the host.
        self._time_bound = problem.graph.total_time
        self._may_offload = options.offload and problem.bytes_per_time is not None

    def phase(self, text: str) -> None:
        """Pass it on, with the planner's name."""
        self._observe.phase(f"{self._planner}: {text}")

    def found(self, schedule: Schedule) -> None:
        """Keep a plan that is faster than the best so far, and of those that do not fit the one of the least peak."""
        trace = simulate(self._problem.graph, schedule, bytes_per_time=self._problem.bytes_per_time)
        if trace.peak_bytes > self._problem.budget.device_bytes:
            if self._closest_bytes is None or trace.peak_bytes < self._closest_bytes:
                self._closest, self._closest_bytes = schedule, trace.peak_bytes
        elif self._best_time is None or trace.time < self._best_time:
            self._best, self._best_time, self._found_by = schedule, trace.time, self._planner
            self._observe.found(schedule)

    def bound(self, time: int, scope: Scope) -> None:
        """Keep what holds for plans in any order: a planner's other bounds do not hold for the others' plans."""
        if scope is Scope.ANY_ORDER and time > self._time_bound:
            self._time_bound = time
            if not self._may_offload:
                self._observe.bound(time, scope)

    def run(self) -> PlanResult:
        """Ask one planner after the other, until nothing can be better or the time is up."""
        self._ask("keep_all")
        self.found(plain_run(self._problem.graph))
        if not self._is_over() and not self._prove() and not self._may_offload:
            reason = "what must be there together in any order does not fit, whatever is recomputed"
            return PlanResult(Status.INFEASIBLE, Scope.ANY_ORDER, closest=self._closest, reason=reason)
        for name, ask in self._members():
            if self._is_over():
                break
            self._ask(name)
            try:
                self._keep(ask())
            except PlannerRefuses as refusal:
                self.phase(refusal.message)
        return self._result()

    def _ask(self, planner: str) -> None:
        self._planner = planner
        self._observe.asks(planner)

    def _prove(self) -> bool:
        """Bound what plans in any order cost; tell whether any can fit."""
        graph = self._problem.graph
        self._observe.phase("proving a bound")
        room = self._problem.budget.device_bytes - graph.fixed_bytes
        extra = any_order_bound(graph, room, SolverLimits(self._seconds(_SHARE_OF_QUICK), work_limit=_WORK_OF_BOUND))
        if extra is not None:
            self.bound(graph.total_time + extra, Scope.ANY_ORDER)
        return extra is not None

    def _members(self) -> Iterator[tuple[str, Callable[[], PlanResult]]]:
        """Yield the planners in turn; each begins with what is left of the time when its turn comes."""
        count = len(self._problem.graph.ops)
        if count <= _MOST_FOR_HEURISTICS:
            yield "dtr", self._evict
        if self._may_offload and count <= _MOST_FOR_OFFLOADING and self._is_training:
            yield "pofo", lambda: Pofo(time_limit=self._seconds(_SHARE_OF_OFFLOADING)).plan(self._problem, self)
        yield "min_cut", self._search_min_cuts
        if count <= _MOST_FOR_HEURISTICS and self._is_training and self._gap > _GAP_FOR_HEURISTICS:
            yield "rotor", lambda: Rotor(time_limit=self._seconds(_SHARE_OF_QUICK)).plan(self._problem, self)
            yield "approx_dp", lambda: ApproxDP(time_limit=self._seconds(_SHARE_OF_QUICK)).plan(self._problem, self)
        if count <= (_MOST_FOR_RETENTION if self._gap > _GAP_FOR_HEURISTICS else _MOST_FOR_SMALL_GAPS):
            yield "retention", self._retain
        if self._found_by != "min_cut":
            yield "min_cut", self._improve_by_min_cuts

    @property
    def _is_training(self) -> bool:
        return any(op.phase is Phase.BACKWARD for op in self._problem.graph.ops)

    def _evict(self) -> PlanResult:
        """Evict greedily for a plan at once; on tangled graphs that goes from bad to worse, and is soon given up."""
        seconds = self._seconds(_SHARE_OF_QUICK)
        planner = DTR(Heuristic.LOCAL, candidates=1, limit=_SLOWEST_EVICTION, time_limit=seconds)
        return planner.plan(self._problem, self)

    def _search_min_cuts(self) -> PlanResult:
        # Without a backward pass much depends on the order, which only retention changes: it should have its time.
        share = 1.0 if self._is_training else _SHARE_OF_QUICK
        given = self._options
        planner = MinCut(self._seconds(share), gap=given.gap, seed=given.seed, jobs=self._jobs)
        return planner.plan(self._problem, self)

    def _improve_by_min_cuts(self) -> PlanResult:
        if self._best is None or _offloads(self._best):
            return self._result()
        limits = SearchLimits(self._seconds(1.0), gap=self._options.gap, seed=self._options.seed, jobs=self._jobs)
        self.found(improve(self._problem, self._best, limits, self))
        return self._result()

    @property
    def _jobs(self) -> int:
        return self._options.workers or usable_cores()

    def _retain(self) -> PlanResult:
        given = self._options
        options = RetentionOptions(
            time_limit=self._seconds(1.0),
            work_limit=given.work_limit,
            patience=given.patience,
            seed=given.seed,
        )
        start = () if self._best is None or _offloads(self._best) else self._best.computes
        known = Known(start, self._time_bound)
        return RetentionSearch(self._problem, options, self, known).run()

    def _keep(self, result: PlanResult) -> None:
        """Keep what a planner found, and what becomes of it without needless reruns."""
        for schedule in (result.schedule, result.closest):
            if schedule is not None:
                self.found(schedule)
        is_small = len(self._problem.graph.ops) <= _MOST_FOR_RETENTION
        if is_small and result.schedule is not None and not _offloads(result.schedule):
            self._improve(result.schedule.computes)

    def _improve(self, computes: Sequence[str]) -> None:
        """Leave out of a plan what the budget has room to do without."""
        graph = self._problem.graph
        index = graph.arrays.op_index
        runs = without_needless_reruns(graph, [index[name] for name in computes], self._problem.budget.device_bytes)
        self.found(with_frees(graph, (graph.ops[number].name for number in runs)))

    def _seconds(self, share: float) -> float:
        """Return the seconds that a planner may take of those that are left."""
        return max(0.0, self._end - monotonic()) * share

    def _is_over(self) -> bool:
        return self._is_done() or monotonic() >= self._end

    def _is_done(self) -> bool:
        return self._gap <= self._options.gap

    @property
    def _gap(self) -> float:
        """Time beyond the bound, as a share of the plain run's; without a plan there is no end to it."""
        if self._best_time is None:
            return inf
        return (self._best_time - self._time_bound) / max(self._problem.graph.total_time, 1)

    def _result(self) -> PlanResult:
        if self._best is None:
            reason = "no plan was found within the limits, which proves nothing"
            return PlanResult(Status.UNKNOWN, closest=self._closest, reason=reason)
        bound = self._problem.graph.total_time if self._may_offload else self._time_bound
        return PlanResult(
            Status.OPTIMAL if self._best_time == bound else Status.FEASIBLE,
            Scope.ANY_ORDER,
            schedule=self._best,
            time_bound=bound,
            found_by=self._found_by,
        )


def _offloads(schedule: Schedule) -> bool:
    """Tell whether a plan moves tensors to the host: without that it would not fit."""
    return any(isinstance(step, Offload) for step in schedule.steps)
