"""The search of `dtr`: from greedy runs to a plan that fits a budget.

A run keeps what it has not evicted, used again or not; the schedule made of it frees each tensor after its last use.
So its peak is often well below what the run was given, and the run with the least overhead that fits is one that was
given more than the budget.
"""

from __future__ import annotations

from remat_cli.planners.dtr.planner import DTR, Heuristic
from remat_cli.planners.dtr.run import GreedyRun, RunLimits
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.problem import Observer, Plan, PlanResult, Problem

# Sizes that differ by a smaller share than this give the same plan more often than not.
_RESOLUTION = 0.005
# How many times the sizes are tried as long as no plan fits.
_WITHOUT_A_PLAN = 2


class GreedySearch:
    """Tries runs for one problem; the plain run is the first plan."""

    def __init__(self, problem: Problem, options: DTR, observe: Observer) -> None:
        """Begin a search; its clock starts now."""
        self._graph = problem.graph
        self._budget = problem.budget.device_bytes
        self._options = options
        self._limits = Limits.of(options.time_limit, observe=observe)
        self._incumbent = Incumbent(problem, observe)
        self._runs = 0
        self._given_up = 0
        self._plain = self._incumbent.offer(RematSequence.plain(self._graph))

    def run(self) -> PlanResult:
        """Return the best plan; it proves nothing."""
        for heuristic in self._options.heuristic.single:
            self._try_sizes(heuristic, self._options.candidates)
        reason = "no greedy run gave a plan that fits; that is no proof that there is none"
        return self._incumbent.result(reason, {"greedy_runs": self._runs, "given_up": self._given_up})

    def _try_sizes(self, heuristic: Heuristic, candidates: int) -> None:
        """Run with the budget, then with other sizes up to the plain run's peak, to where its plan just fits."""
        low = size = self._budget
        high = self._plain.peak_bytes
        for tried in range(_WITHOUT_A_PLAN * candidates):
            is_enough = tried >= candidates and self._incumbent.best is not None
            if is_enough or size >= high or self._limits.is_over:
                return
            plan = self._run(heuristic, size)
            if plan is not None and plan.peak_bytes > self._budget:
                high = size
            else:
                low = size
            size = (low + high) // 2
            if plan is not None and plan.peak_bytes <= self._budget:
                # With more memory the plan's peak grows about in proportion.
                size = min(size, low * self._budget // max(plan.peak_bytes, 1))
            if size - low <= _RESOLUTION * low:
                return

    def _run(self, heuristic: Heuristic, size: int) -> Plan | None:
        """Return the plan of a run that was given `size` bytes; None where it was given up."""
        self._incumbent.observe.phase(f"evicting by {heuristic}")
        self._runs += 1
        limits = RunLimits(
            bytes=size - self._graph.fixed_bytes,
            time=self._most_time(),
            runs=int(self._options.limit * len(self._graph.ops)),
            deadline=self._limits.deadline,
        )
        ops = GreedyRun(self._graph, heuristic, limits).computes()
        if ops is None:
            self._given_up += 1
            return None
        return self._incumbent.offer(RematSequence.of(self._graph, ops).without_useless_runs())

    def _most_time(self) -> int:
        """Return the most time that a run may take: what is slower than a plan that fits is of no use."""
        best = self._incumbent.best
        return int(self._options.limit * self._plain.time) if best is None else best.time
