"""From admissible stored sets to a plan that fits a budget.

The paper's objective knows no budget, and no time. So stored sets from one end of the trade to the other are turned
into plans, which are measured, and what each has to spare is used to recompute less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic

from remat_cli.graph import Graph
from remat_cli.planners.acg.division_tree import SegmentKind
from remat_cli.planners.acg.divisions import Division, alternating_choices
from remat_cli.planners.acg.options import ACGOptions
from remat_cli.planners.acg.runs import SegmentRuns
from remat_cli.planners.acg.solver import Choice
from remat_cli.planners.shared.forward_part import ForwardPart
from remat_cli.planners.shared.liveness import phase_peaks
from remat_cli.planners.shared.rerun_removal import without_needless_reruns
from remat_cli.problem import ModelFigure, Observer, PlanResult, Problem, Status
from remat_cli.schedule import Schedule, plain_run, with_frees

_FIGURE = "stored + largest segment (the paper's cost)"


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan of the graph.

    Attributes:
        ops: numbers of the ops in the order in which they run.
        peak: in bytes.
        time: in the graph's time unit.
        model_cost: the paper's cost of the stored set that it was made from, in bytes.
    """

    ops: Sequence[int]
    peak: int
    time: int
    model_cost: int

    @classmethod
    def of(cls, graph: Graph, ops: Sequence[int], model_cost: int) -> Plan:
        """Measure a plan."""
        (peak,) = phase_peaks(graph, [ops])
        return cls(tuple(ops), peak, int(graph.arrays.op_time[list(ops)].sum()), model_cost)


class ACGPlans:
    """The plans of a graph's stored sets; they serve every budget."""

    def __init__(self, graph: Graph, *, share_inputs: bool) -> None:
        self._graph = graph
        self._forward = ForwardPart.of(graph, "acg")
        paper = Division.of(self._forward)
        other = paper.without_shared_inputs() if share_inputs else None
        self._divisions = [paper] if other is None else [paper, other]
        self._runs = SegmentRuns(self._forward)
        self._plans: dict[tuple[Division, Choice], list[Plan]] = {}

    def plans(self, count: int) -> Iterator[list[Plan]]:
        """Yield the plans of at most `count` stored sets, the paper's optimum first; each in one or two orders."""
        for division, choice in alternating_choices(self._divisions, count):
            if (division, choice) not in self._plans:
                orders = self._runs.orders(division.stored(choice))
                cost = division.cost(choice)
                self._plans[division, choice] = [Plan.of(self._graph, ops, cost) for ops in orders]
            yield self._plans[division, choice]

    @property
    def plain(self) -> Plan:
        """The plain run, for which everything is stored."""
        return Plan.of(self._graph, range(len(self._graph.ops)), int(self._forward.bytes.sum()))

    @property
    def stats(self) -> dict[str, int]:
        """Sizes of the paper's division tree, and work done on all."""
        counts = self._divisions[0].tree.counts
        return {
            "linear": counts[SegmentKind.LINEAR],
            "branch": counts[SegmentKind.BRANCH],
            "complicate": counts[SegmentKind.COMPLICATE],
            "limits": sum(division.sets.limits_tried for division in self._divisions),
        }


@lru_cache(maxsize=2)
def acg_plans(graph: Graph, share_inputs: bool) -> ACGPlans:
    """Return the plans of `graph`; kept, so that searches over budgets make them once."""
    return ACGPlans(graph, share_inputs=share_inputs)


class ACGSearch:
    """Tries the plans of stored sets for one problem, and keeps the best."""

    def __init__(self, problem: Problem, options: ACGOptions, observe: Observer) -> None:
        self._graph = problem.graph
        self._budget = problem.budget.device_bytes
        self._options = options
        self._deadline = monotonic() + options.time_limit
        self._observe = observe
        self._best: Plan | None = None
        self._tried = 0

    def run(self) -> PlanResult:
        """Return the best plan that fits, of those that are tried.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part.
        """
        self._observe.phase("dividing the forward pass into independent segments")
        plans = acg_plans(self._graph, self._options.share_inputs)
        if self._options.candidates == 0:
            return PlanResult(Status.UNKNOWN, reason="no candidates are allowed")
        plain = plans.plain
        if self._fits(plain):
            return PlanResult(Status.FEASIBLE, schedule=plain_run(self._graph), model_figures=_figures(plain))
        self._observe.phase("trying stored sets")
        for orders in plans.plans(self._options.candidates):
            for plan in orders:
                self._try(plan)
            if monotonic() >= self._deadline:
                break
        return self._result(plans.stats)

    def _try(self, plan: Plan) -> None:
        self._tried += 1
        if self._options.improve and self._fits(plan):
            ops = without_needless_reruns(self._graph, plan.ops, self._budget)
            plan = Plan.of(self._graph, ops, plan.model_cost)
        if self._best is None or self._merit(plan) < self._merit(self._best):
            self._best = plan
            if self._fits(plan):
                self._observe.found(self._schedule(plan))

    def _merit(self, plan: Plan) -> tuple[int, int, int]:
        """Order plans: those that fit by time, before those that do not by their peak."""
        return (0, plan.time, plan.peak) if self._fits(plan) else (1, plan.peak, plan.time)

    def _fits(self, plan: Plan) -> bool:
        return plan.peak <= self._budget

    def _schedule(self, plan: Plan) -> Schedule:
        return with_frees(self._graph, (self._graph.ops[op].name for op in plan.ops))

    def _result(self, stats: dict[str, int]) -> PlanResult:
        best, stats = self._best, {**stats, "plans": self._tried}
        if best is not None and self._fits(best):
            return PlanResult(Status.FEASIBLE, schedule=self._schedule(best), stats=stats, model_figures=_figures(best))
        return PlanResult(
            Status.UNKNOWN,
            closest=None if best is None else self._schedule(best),
            reason="no stored set was found whose plan fits; that is no proof that there is none",
            stats=stats,
            model_figures=() if best is None else _figures(best),
        )


def _figures(plan: Plan) -> tuple[ModelFigure, ...]:
    return (ModelFigure(_FIGURE, plan.model_cost, "bytes"),)
