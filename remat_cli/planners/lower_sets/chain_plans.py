"""Plans of chains of lower sets: what each really costs, and which is the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from remat_cli.planners.lower_sets.canonical import CanonicalStrategy
from remat_cli.planners.lower_sets.families import LowerSets
from remat_cli.planners.shared.liveness import phase_peaks, with_late_frees
from remat_cli.problem import Observer, PlanResult, Problem, Status
from remat_cli.schedule import Schedule, with_frees
from remat_cli.simulate import simulate

# The power of a phase's peak over the budget: high enough that phases well below count for nothing.
_PRESSURE = 24


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """The plan of a chain.

    Attributes:
        phases: numbers of the graph's ops in the order in which they run, see `CanonicalStrategy.phases`.
        peak: bytes, simulated.
        time: of all runs.
        pressure: how far the phases are from fitting, see `ChainPlans.urgency`.
    """

    phases: tuple[tuple[int, ...], ...]
    peak: int
    time: int
    pressure: float


@dataclass
class ChainPlans:
    """Measures the plans of one problem, and keeps the best.

    Attributes:
        problem: what is planned.
        sets: the family that chains are taken from.
        liveness: whether tensors are freed right after their last use, or only where a phase ends.
        observe: is told of each better plan that fits.
    """

    problem: Problem
    sets: LowerSets
    liveness: bool
    observe: Observer
    _best: ChainPlan | None = None  # the best that fits; as long as none does, the closest to fitting
    _best_chain: tuple[int, ...] = ()
    _measured: dict[tuple[int, ...], ChainPlan] = field(default_factory=dict)  # by chain

    @cached_property
    def _canonical(self) -> CanonicalStrategy:
        return CanonicalStrategy(self.sets.forward, self.sets)

    def measure(self, chain: Sequence[int]) -> ChainPlan:
        """Measure the plan of one chain; keep it if it is the best so far.

        Args:
            chain: numbers of the sets L_1 to L_k = V.
        """
        key = tuple(chain)
        if key not in self._measured:
            phases = self._canonical.phases(chain)
            time = sum(int(self.problem.graph.arrays.op_time[list(phase)].sum()) for phase in phases)
            peaks = self._peaks(phases)
            budget = self.problem.budget.device_bytes
            pressure = sum((peak / max(budget, 1)) ** _PRESSURE for peak in peaks)
            self._measured[key] = ChainPlan(phases, max(peaks), time, pressure)
            self._keep(key, self._measured[key])
        return self._measured[key]

    def merit(self, plan: ChainPlan) -> tuple[int, int, int]:
        """Order plans: those that fit by time, before those that do not by their peak."""
        if self._fits(plan):
            return (0, plan.time, plan.peak)
        return (1, plan.peak, plan.time)

    def urgency(self, plan: ChainPlan) -> tuple[int, float, int]:
        """Order plans for local search: as `merit`, but those that do not fit by all phases that are too large.

        Often several phases peak alike, and a step that lowers one of them leaves the largest as it is. A high power of
        each phase's peak, summed, sees the step.
        """
        if self._fits(plan):
            return self.merit(plan)
        return (1, plan.pressure, plan.peak)

    @property
    def any_fits(self) -> bool:
        """Whether one of the plans fits the budget."""
        return self._best is not None and self._fits(self._best)

    @property
    def best(self) -> ChainPlan | None:
        """The plan of least time that fits; as long as none does, that of the smallest peak."""
        return self._best

    @property
    def best_chain(self) -> tuple[int, ...]:
        """The chain of the best plan; empty before any was measured."""
        return self._best_chain

    @property
    def count(self) -> int:
        """How many plans were measured."""
        return len(self._measured)

    @property
    def best_schedule(self) -> Schedule | None:
        """The schedule of the best plan."""
        return None if self._best is None else self._schedule(self._best.phases)

    def result(self, reason: str, **stats: int) -> PlanResult:
        """Return the best plan as a result that proves nothing; without one that fits, `reason` says why."""
        stats = {**stats, "plans": self.count}
        if self.any_fits:
            return PlanResult(Status.FEASIBLE, schedule=self.best_schedule, stats=stats)
        return PlanResult(Status.UNKNOWN, closest=self.best_schedule, reason=reason, stats=stats)

    def _keep(self, chain: tuple[int, ...], plan: ChainPlan) -> None:
        if self._best is None or self.merit(plan) < self.merit(self._best):
            self._best, self._best_chain = plan, chain
            if self._fits(plan):
                self.observe.found(self._schedule(plan.phases))

    def _fits(self, plan: ChainPlan) -> bool:
        return plan.peak <= self.problem.budget.device_bytes

    def _peaks(self, phases: Sequence[Sequence[int]]) -> list[int]:
        graph = self.problem.graph
        if self.liveness:
            return phase_peaks(graph, phases)
        return [simulate(graph, with_late_frees(graph, phases)).peak_bytes]

    def _schedule(self, phases: Sequence[Sequence[int]]) -> Schedule:
        graph = self.problem.graph
        if self.liveness:
            return with_frees(graph, (graph.ops[op].name for phase in phases for op in phase))
        return with_late_frees(graph, phases)
