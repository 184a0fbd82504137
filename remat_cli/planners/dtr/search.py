"""From greedy runs to a plan that fits a budget.

A run keeps what it has not evicted, used again or not; the schedule made of it frees each tensor after its last use.
So its peak is often well below what the run was given, and the run with the least overhead that fits is one that was
given more than the budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from remat_cli.graph import Graph
from remat_cli.planners.dtr.options import Heuristic
from remat_cli.planners.dtr.run import GreedyRun, RunLimits
from remat_cli.planners.shared.useful_runs import useful_runs
from remat_cli.problem import Observer, PlanResult, Problem, Status
from remat_cli.schedule import Schedule, plain_run, with_frees
from remat_cli.simulate import simulate

# Sizes that differ by a smaller share than this give the same plan more often than not.
_RESOLUTION = 0.005
# How many times the sizes are tried as long as no plan fits.
_WITHOUT_A_PLAN = 2


@dataclass(frozen=True, slots=True)
class _Plan:
    schedule: Schedule
    peak: int
    time: int

    @classmethod
    def of(cls, graph: Graph, schedule: Schedule) -> _Plan:
        trace = simulate(graph, schedule)
        return cls(schedule, trace.peak_bytes, trace.time)


class GreedySearch:
    """Tries runs for one problem, and keeps the best plan; the plain run is the first."""

    def __init__(self, problem: Problem, limit: float, time_limit: float, observe: Observer) -> None:
        self._graph = problem.graph
        self._budget = problem.budget.device_bytes
        self._limit = limit
        self._deadline = monotonic() + time_limit
        self._observe = observe
        self._runs = 0
        self._given_up = 0
        self._best = self._plain = _Plan.of(self._graph, plain_run(self._graph))
        self._keep(self._plain)

    def try_sizes(self, heuristic: Heuristic, candidates: int) -> None:
        """Run with the budget, then with other sizes up to the plain run's peak, to where its plan just fits."""
        low = size = self._budget
        high = self._plain.peak
        for tried in range(_WITHOUT_A_PLAN * candidates):
            is_enough = tried >= candidates and self._fits(self._best)
            if is_enough or size >= high or monotonic() >= self._deadline:
                return
            plan = self._run(heuristic, size)
            if plan is not None and plan.peak > self._budget:
                high = size
            else:
                low = size
            size = (low + high) // 2
            if plan is not None and plan.peak <= self._budget:
                # With more memory the plan's peak grows about in proportion.
                size = min(size, low * self._budget // max(plan.peak, 1))
            if size - low <= _RESOLUTION * low:
                return

    def result(self) -> PlanResult:
        """Return the best plan; it proves nothing."""
        stats = {"greedy_runs": self._runs, "given_up": self._given_up}
        if self._fits(self._best):
            return PlanResult(Status.FEASIBLE, schedule=self._best.schedule, stats=stats)
        return PlanResult(
            Status.UNKNOWN,
            closest=self._best.schedule,
            reason="no greedy run gave a plan that fits; that is no proof that there is none",
            stats=stats,
        )

    def _run(self, heuristic: Heuristic, size: int) -> _Plan | None:
        """Return the plan of a run that was given `size` bytes; None where it was given up."""
        self._observe.phase(f"evicting by {heuristic}")
        self._runs += 1
        limits = RunLimits(
            bytes=size - self._graph.fixed_bytes,
            time=self._most_time(),
            runs=int(self._limit * len(self._graph.ops)),
            deadline=self._deadline,
        )
        ops = GreedyRun(self._graph, heuristic, limits).computes()
        if ops is None:
            self._given_up += 1
            return None
        computes = useful_runs(self._graph, [self._graph.ops[op].name for op in ops])
        plan = _Plan.of(self._graph, with_frees(self._graph, computes))
        self._keep(plan)
        return plan

    def _most_time(self) -> int:
        """Return the most time that a run may take: what is slower than a plan that fits is of no use."""
        if self._fits(self._best):
            return self._best.time
        return int(self._limit * self._plain.time)

    def _keep(self, plan: _Plan) -> None:
        if self._merit(plan) < self._merit(self._best) or plan is self._plain:
            self._best = plan
            if self._fits(plan):
                self._observe.found(plan.schedule)

    def _merit(self, plan: _Plan) -> tuple[int, int, int]:
        """Order plans: those that fit by time, before those that do not by their peak."""
        return (0, plan.time, plan.peak) if self._fits(plan) else (1, plan.peak, plan.time)

    def _fits(self, plan: _Plan) -> bool:
        return plan.peak <= self._budget
