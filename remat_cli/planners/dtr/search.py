"""The search of `dtr`: from greedy runs to a plan that fits a budget.

A run keeps every tensor that it has not evicted, used again or not; the schedule made of it frees each tensor after its
last use. So the peak of the schedule is often well below the memory that the run was given, and the best run that fits
is one that was given more than the budget.
"""

from __future__ import annotations

from collections.abc import Iterable

from remat_cli.core.problem import Plan, PlanResult
from remat_cli.planners.dtr.options import Heuristic
from remat_cli.planners.dtr.run import GreedyRun, RunLimits
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.sequence import RematSequence

# Sizes that differ by a smaller share than this mostly give the same plan.
_RESOLUTION = 0.005
# This many times as many sizes are tried while no plan fits.
_WITHOUT_A_PLAN = 2


class GreedySearch:
    """Tries runs for one problem; the plain run is the first plan."""

    def __init__(self, incumbent: Incumbent, limits: Limits, most_times: float) -> None:
        """Prepare a search.

        Args:
            incumbent: keeps the plans found.
            limits: no further run is begun at their end, and the one that goes on is given up.
            most_times: a run is given up that takes so many times the plain run's time, or its ops.
        """
        self._graph = incumbent.problem.graph
        self._budget = incumbent.problem.budget.device_bytes
        self._most_times = most_times
        self._incumbent, self._limits = incumbent, limits
        self._runs = 0
        self._given_up = 0
        self._plain = self._incumbent.offer(RematSequence.plain(self._graph))

    def run(self, heuristics: Iterable[Heuristic], candidates: int) -> PlanResult:
        """Return the best plan; it proves nothing.

        Args:
            heuristics: single ones, tried in turn.
            candidates: how many memory sizes are tried for each; more while no plan fits.
        """
        for heuristic in heuristics:
            self._try_sizes(heuristic, candidates)
        reason = "no greedy run gave a plan that fits; that is no proof that there is none"
        return self._incumbent.result(reason, {"greedy_runs": self._runs, "given_up": self._given_up})

    def _try_sizes(self, heuristic: Heuristic, candidates: int) -> None:
        """Run with the budget, then with sizes up to the plain run's peak, and find where the plan just fits."""
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
            runs=int(self._most_times * len(self._graph.ops)),
            deadline=self._limits.deadline,
        )
        ops = GreedyRun(self._graph, heuristic, limits).computes()
        if ops is None:
            self._given_up += 1
            return None
        return self._incumbent.offer(RematSequence.of(self._graph, ops).without_useless_runs())

    def _most_time(self) -> int:
        """Return the most time that a run may take: that of a plan that fits, if there is one."""
        best = self._incumbent.best
        return int(self._most_times * self._plain.time) if best is None else best.time
