"""How `auto` divides its time among planners, and what it keeps of their results."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

from remat_cli.errors import PlannerRefuses
from remat_cli.graph import Phase
from remat_cli.planners.auto.options import AutoOptions
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.lower_sets.approx_dp import ApproxDP
from remat_cli.planners.retention.planner import Retention
from remat_cli.planners.rotor.planner import Rotor
from remat_cli.problem import Observer, Planner, PlanResult, Problem, Scope, Status
from remat_cli.schedule import Schedule, plain_run
from remat_cli.simulate import simulate

# Up to how many ops each planner is worth its time.
_MOST_FOR_APPROX_DP = 3_000
_MOST_FOR_RETENTION = 5_000
# What may take how much of the time that is left when its turn comes.
_SHARE_OF_QUICK = 0.15
_UNLIMITED = 1e9


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

    def phase(self, text: str) -> None:
        """Pass it on, with the planner's name."""
        self._observe.phase(f"{self._planner}: {text}")

    def found(self, schedule: Schedule) -> None:
        """Keep a plan that is faster than the best so far, and of those that do not fit the one of the least peak."""
        trace = simulate(self._problem.graph, schedule)
        if trace.peak_bytes > self._problem.budget.device_bytes:
            if self._closest_bytes is None or trace.peak_bytes < self._closest_bytes:
                self._closest, self._closest_bytes = schedule, trace.peak_bytes
        elif self._best_time is None or trace.time < self._best_time:
            self._best, self._best_time, self._found_by = schedule, trace.time, self._planner
            self._observe.found(schedule)

    def bound(self, time: int, scope: Scope) -> None:
        """Keep nothing: a planner's bounds hold for its own order or family, and other plans are beyond them."""

    def run(self) -> PlanResult:
        """Ask one planner after the other, until nothing can be better or the time is up."""
        graph = self._problem.graph
        plain = plain_run(graph)
        self._planner = "keep_all"
        self.found(plain)
        for name, planner in self._members():
            if self._is_done() or monotonic() >= self._end:
                break
            self._planner = name
            self._ask(planner)
        return self._result()

    def _members(self) -> Iterator[tuple[str, Planner]]:
        graph = self._problem.graph
        yield "dtr", DTR(time_limit=self._seconds(_SHARE_OF_QUICK))
        is_training = any(op.phase is Phase.BACKWARD for op in graph.ops)
        if is_training and len(graph.ops) <= _MOST_FOR_APPROX_DP:
            yield "rotor", Rotor(time_limit=self._seconds(_SHARE_OF_QUICK))
            yield "approx_dp", ApproxDP(time_limit=self._seconds(_SHARE_OF_QUICK))
        if len(graph.ops) <= _MOST_FOR_RETENTION:
            options = self._options
            yield (
                "retention",
                Retention(
                    time_limit=self._seconds(1.0),
                    work_limit=options.work_limit,
                    workers=options.workers,
                    seed=options.seed,
                ),
            )

    def _ask(self, planner: Planner) -> None:
        try:
            if isinstance(planner, Retention):
                start = None if self._best is None else self._best.computes
                result = planner.plan(self._problem, self, start)
            else:
                result = planner.plan(self._problem, self)
        except PlannerRefuses as refusal:
            self.phase(refusal.message)
            return
        for schedule in (result.schedule, result.closest):
            if schedule is not None:
                self.found(schedule)

    def _seconds(self, share: float) -> float:
        """Return the seconds that a planner may take of those that are left."""
        if self._options.work_limit is not None:
            return _UNLIMITED
        return max(0.0, self._end - monotonic()) * share

    def _is_done(self) -> bool:
        return self._best_time == self._problem.graph.total_time

    def _result(self) -> PlanResult:
        if self._best is None:
            reason = "no plan was found within the limits, which proves nothing"
            return PlanResult(Status.UNKNOWN, closest=self._closest, reason=reason)
        status = Status.OPTIMAL if self._is_done() else Status.FEASIBLE
        total = self._problem.graph.total_time
        return PlanResult(status, Scope.ANY_ORDER, schedule=self._best, time_bound=total, found_by=self._found_by)
