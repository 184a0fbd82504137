"""From the table of rotor to a plan that fits a budget.

The chain predicts no less memory than a plan takes on the graph, and often a good deal more. So plans of many amounts
of memory, below the budget and above it, are measured on the graph, and what each has to spare is used to run less
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from remat_cli.errors import PlannerRefuses
from remat_cli.graph import Graph
from remat_cli.planners.rotor.dp import RotorTable
from remat_cli.planners.rotor.needs import RotorNeeds
from remat_cli.planners.shared.chain.linearisation import Linearised, linearise
from remat_cli.planners.shared.chain.options import Cuts, RotorOptions
from remat_cli.planners.shared.liveness import phase_peaks
from remat_cli.planners.shared.rerun_removal import without_needless_reruns
from remat_cli.problem import ModelFigure, Observer, PlanResult, Problem, Status
from remat_cli.schedule import Schedule, input_order, plain_run, with_frees


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan of the graph.

    Attributes:
        ops: [R] int32 numbers of the ops in the order in which they run.
        peak: in bytes.
        time: in the graph's time unit.
    """

    ops: NDArray[np.int32]
    peak: int
    time: int

    @classmethod
    def of(cls, graph: Graph, ops: list[int]) -> Plan:
        """Measure a plan."""
        (peak,) = phase_peaks(graph, [ops])
        return cls(np.array(ops, dtype=np.int32), peak, int(graph.arrays.op_time[ops].sum()))


class RotorPlans:
    """The plans of a graph's chain, each the best in some amount of memory; they serve every budget.

    Attributes:
        linearised: the graph as a chain.
        table: of the chain.
        slots: amounts of memory, in slots, ascending: the least for each time that the chain can take.
    """

    def __init__(self, linearised: Linearised, slots: int) -> None:
        self.linearised = linearised
        self.table = RotorTable.of(RotorNeeds.measured(linearised.gauge), slots)
        times = self.table.times
        is_faster = times < np.concatenate([[np.inf], times[:-1]])
        self.slots: list[int] = np.flatnonzero(is_faster).tolist()
        self._plans: dict[int, Plan] = {}

    def __len__(self) -> int:
        """Return how many different plans there are, or nearly."""
        return len(self.slots)

    def best(self, number: int) -> Plan:
        """Return the plan in `slots[number]`; the larger the number, the less time and the more memory it takes."""
        if number not in self._plans:
            runs = self.linearised.runs(self.table.steps(self.slots[number]))
            self._plans[number] = Plan.of(self.linearised.graph, [op for ops in runs for op in ops])
        return self._plans[number]

    def model_figures(self, number: int) -> tuple[ModelFigure, ...]:
        """Return what the chain predicts of the plan in `slots[number]`."""
        slots = self.slots[number]
        return (
            ModelFigure("peak of the chain", self.linearised.base_bytes + slots * self.table.unit, "bytes"),
            ModelFigure("time of the chain", self.linearised.base_time + round(self.table.times[slots]), "time"),
        )


@lru_cache(maxsize=2)
def rotor_plans(graph: Graph, cuts: Cuts, segments: int, slots: int) -> RotorPlans:
    """Return the plans of the chain of `graph`; kept, so that searches and sweeps over budgets make them once."""
    return RotorPlans(linearise(graph, "rotor", cuts, segments), slots)


@dataclass
class RotorSearch:
    """Plans one problem.

    Attributes:
        problem: what is planned.
        options: of the planner.
        observe: is told of each phase, and of each better plan that fits.
        deadline: `time.monotonic()` at which no further plan is begun.
    """

    problem: Problem
    options: RotorOptions
    observe: Observer
    deadline: float
    _tried: dict[int, Plan] = field(default_factory=dict)  # by number
    _best: int | None = None

    @classmethod
    def of(cls, problem: Problem, options: RotorOptions, observe: Observer) -> RotorSearch:
        """Begin a search; its clock starts now."""
        return cls(problem, options, observe, monotonic() + options.time_limit)

    def run(self) -> PlanResult:
        """Return the best plan that fits, of those that are tried.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part, or cannot be cut.
        """
        graph, options = self.problem.graph, self.options
        linearised = linearise(graph, "rotor", options.cuts, options.segments)
        stats = {"segments": len(linearised) - 1, "largest_segment_ops": len(linearised.largest_segment.forward)}
        if options.candidates == 0:
            return PlanResult(Status.UNKNOWN, reason="no candidates are allowed", stats=stats)
        plain = Plan.of(graph, [graph.arrays.op_index[name] for name in input_order(graph)])
        if self._fits(plain):
            return PlanResult(Status.FEASIBLE, schedule=plain_run(graph), stats=stats)
        if len(linearised) <= 2:
            raise PlannerRefuses(
                f"rotor plans a chain of layers, but {graph.name!r} cannot be cut ({options.cuts.value} cuts): one "
                f"segment holds {linearised.largest_described}",
                hint="use approx_dp, checkmate, moccasin or dtr, which need no chain",
            )
        self.observe.phase(
            f"planning a chain of {len(linearised)} layers; the largest has {linearised.largest_described}"
        )
        plans = rotor_plans(graph, options.cuts, options.segments, options.slots)
        self.observe.phase("searching the plan that fits with the least overhead")
        for number in self._numbers(len(plans)):
            self._try(number, plans.best(number))
        return self._result(plans, stats)

    def _fits(self, plan: Plan) -> bool:
        return plan.peak <= self.problem.budget.device_bytes

    def _merit(self, number: int) -> tuple[int, int, int]:
        """Order plans: those that fit by time, before those that do not by their peak."""
        plan = self._tried[number]
        return (0, plan.time, plan.peak) if self._fits(plan) else (1, plan.peak, plan.time)

    def _try(self, number: int, plan: Plan) -> None:
        graph, budget = self.problem.graph, self.problem.budget.device_bytes
        if self.options.improve and self._fits(plan):
            plan = Plan.of(graph, without_needless_reruns(graph, plan.ops.tolist(), budget))
        self._tried[number] = plan
        if self._best is None or self._merit(number) < self._merit(self._best):
            self._best = number
            if self._fits(plan):
                self.observe.found(self._schedule(plan))

    def _numbers(self, count: int) -> Iterator[int]:
        """Yield the numbers of the plans to try, of `count`: half of them evenly, then around the best."""
        most = min(self.options.candidates, count)
        evenly = np.linspace(0, count - 1, min(max(most // 2, 2), most)).round()
        for number in evenly.astype(np.int64).tolist():
            if monotonic() < self.deadline:
                yield number
        while len(self._tried) < most and monotonic() < self.deadline:
            yield self._between()

    def _between(self) -> int:
        """Return a number in the middle of the widest gap beside the best plan; of any gap, where there is none."""
        tried = sorted(self._tried)
        gaps = [(low, high) for low, high in pairwise(tried) if high - low > 1]
        beside = [gap for gap in gaps if self._best in gap]
        low, high = max(beside or gaps, key=lambda gap: (gap[1] - gap[0], gap))
        return (low + high) // 2

    def _schedule(self, plan: Plan) -> Schedule:
        graph = self.problem.graph
        return with_frees(graph, (graph.ops[op].name for op in plan.ops))

    def _result(self, plans: RotorPlans, stats: dict[str, int]) -> PlanResult:
        stats = {**stats, "plans": len(self._tried)}
        if self._best is None:
            reason = "the chain fits into none of the amounts of memory that were tried"
            return PlanResult(Status.UNKNOWN, closest=plain_run(self.problem.graph), reason=reason, stats=stats)
        best, figures = self._tried[self._best], plans.model_figures(self._best)
        if self._fits(best):
            return PlanResult(Status.FEASIBLE, schedule=self._schedule(best), stats=stats, model_figures=figures)
        return PlanResult(
            Status.UNKNOWN,
            closest=self._schedule(best),
            reason=plans.linearised.without_plan,
            stats=stats,
            model_figures=figures,
        )
