"""The search of `dtr` for a plan that fits, from greedy runs.

A run keeps every tensor until its eviction, used again or not; the schedule of the run frees each tensor after its last
use. So the peak of the schedule is often well below the memory of the run, and the best run that fits often has more
memory than the budget.
"""

from __future__ import annotations

from collections.abc import Iterable

from remat_cli.core.problem import Plan, PlanResult
from remat_cli.planners.dtr.options import Heuristic
from remat_cli.planners.dtr.run import EvictingDevice, RunLimits
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.sequence import RematSequence

# Sizes that differ by a smaller share than this mostly give the same plan.
_RESOLUTION = 0.005
# The factor on the number of sizes to try while no plan fits.
_WITHOUT_A_PLAN = 2


class GreedySearch:
    """Tries greedy runs for one problem, after the plain run."""

    def __init__(self, incumbent: Incumbent, limits: Limits, most_times: float) -> None:
        """Prepare a search.

        Args:
            incumbent: keeps the plans found.
            limits: limits after which no run is begun, and the current run is given up.
            most_times: largest time and number of ops of a run, as multiples of the plain run's.
        """
        self._graph = incumbent.problem.graph
        self._budget = incumbent.problem.budget.device_bytes
        self._most_times = most_times
        self._incumbent, self._limits = incumbent, limits
        self._runs = 0
        self._given_up = 0
        self._plain = self._incumbent.offer(RematSequence.plain(self._graph))

    def run(self, heuristics: Iterable[Heuristic], candidates: int) -> PlanResult:
        """Return the best plan, without a proof.

        Args:
            heuristics: single heuristics to try in turn.
            candidates: number of memory sizes to try for each; more while no plan fits.
        """
        for heuristic in heuristics:
            self._try_sizes(heuristic, candidates)
        reason = "no greedy run gave a plan that fits; that is no proof that there is none"
        return self._incumbent.result(reason, {"greedy_runs": self._runs, "given_up": self._given_up})

    def _try_sizes(self, heuristic: Heuristic, candidates: int) -> None:
        """Run with the budget, then with more memory up to the plain peak.

        The search closes in on the size whose plan just fits.
        """
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
        """Return the plan of a run with `size` bytes; None if given up."""
        self._incumbent.observe.phase(f"evicting by {heuristic}")
        self._runs += 1
        limits = RunLimits(
            bytes=size - self._graph.fixed_bytes,
            time=self._most_time(),
            runs=int(self._most_times * len(self._graph.ops)),
            deadline=self._limits.deadline,
        )
        ops = EvictingDevice(self._graph, heuristic, limits).computes()
        if ops is None:
            self._given_up += 1
            return None
        return self._incumbent.offer(RematSequence.of(self._graph, ops).without_useless_runs())

    def _most_time(self) -> int:
        """Return the time limit of a run: that of the best plan, if any."""
        best = self._incumbent.best
        return int(self._most_times * self._plain.time) if best is None else best.time
