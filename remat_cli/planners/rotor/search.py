"""The search of `rotor` for a plan that fits, from its table.

The chain never predicts less memory than a plan takes on the graph, and often much more. So plans for many amounts of
memory, below the budget and above it, are measured on the graph; unused budget is spent on recomputing less.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.core.problem import ModelFigure, Observer, Plan, PlanResult, Problem, Status
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.rotor.dp import RotorTable
from remat_cli.planners.rotor.needs import RotorNeeds
from remat_cli.planners.rotor.options import RotorOptions
from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.chain.linearisation import Linearised, linearise
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.rerun_removal import without_needless_reruns
from remat_cli.planners.shared.sequence import RematSequence


class RotorPlans:
    """The best plans of a graph's chain, for every budget.

    Attributes:
        linearised: the graph as a chain.
        table: table of the chain.
        slots: amounts of memory, in slots, ascending: the least for each time that the chain can take.
    """

    def __init__(self, linearised: Linearised, slots: int) -> None:
        self.linearised = linearised
        self.table = RotorTable.of(RotorNeeds.measured(linearised.gauge), slots)
        times = self.table.times
        is_faster = times < np.concatenate([[np.inf], times[:-1]])
        self.slots: list[int] = np.flatnonzero(is_faster).tolist()
        self._sequences: dict[int, RematSequence] = {}

    def __len__(self) -> int:
        """Return the approximate number of different plans."""
        return len(self.slots)

    def best(self, number: int) -> RematSequence:
        """Return the plan for `slots[number]`.

        Larger numbers take less time and more memory.
        """
        if number not in self._sequences:
            runs = self.linearised.runs(self.table.steps(self.slots[number]))
            self._sequences[number] = RematSequence.of(self.linearised.graph, (op for ops in runs for op in ops))
        return self._sequences[number]

    def model_figures(self, number: int) -> tuple[ModelFigure, ...]:
        """Return the chain's predictions for the plan in `slots[number]`."""
        slots = self.slots[number]
        return (
            ModelFigure("peak of the chain", self.linearised.base_bytes + slots * self.table.unit, "bytes"),
            ModelFigure("time of the chain", self.linearised.base_time + round(self.table.times[slots]), "time"),
        )


@lru_cache(maxsize=2)
def rotor_plans(graph: Graph, cuts: Cuts, segments: int, slots: int) -> RotorPlans:
    """Return the plans of the chain of `graph`, cached for sweeps."""
    return RotorPlans(linearise(graph, "rotor", cuts, segments), slots)


class RotorSearch:
    """Tries the plans of the chain for one problem."""

    def __init__(self, problem: Problem, options: RotorOptions, observe: Observer) -> None:
        """Begin a search; its clock starts now."""
        self._options = options
        self._limits = Limits.of(options.time_limit, options.candidates, observe=observe)
        self._incumbent = Incumbent(problem, observe)
        self._tried: dict[int, Plan] = {}  # plans by number

    def run(self) -> PlanResult:
        """Return the best plan tried that fits.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part, or cannot be cut.
        """
        incumbent, options = self._incumbent, self._options
        graph = incumbent.problem.graph
        linearised = linearise(graph, "rotor", options.cuts, options.segments)
        stats = {"segments": len(linearised) - 1, "largest_segment_ops": len(linearised.largest_segment.forward)}
        if options.candidates == 0:
            return PlanResult(Status.UNKNOWN, reason="no candidates are allowed", stats=stats)
        if incumbent.fits(incumbent.offer(RematSequence.plain(graph))):
            return incumbent.result(stats=stats)
        if len(linearised) <= 2:
            raise PlannerRefuses(
                f"rotor plans a chain of layers, but {graph.name!r} cannot be cut ({options.cuts.value} cuts): one "
                f"segment holds {linearised.largest_described}",
                hint="use approx_dp, checkmate, moccasin or dtr, which need no chain",
            )
        incumbent.observe.phase(
            f"planning a chain of {len(linearised)} layers; the largest has {linearised.largest_described}"
        )
        plans = rotor_plans(graph, options.cuts, options.segments, options.slots)
        incumbent.observe.phase("searching the plan that fits with the least overhead")
        for number in self._numbers(len(plans)):
            self._try(number, plans)
        return incumbent.result(linearised.without_plan, {**stats, "plans": len(self._tried)})

    def _try(self, number: int, plans: RotorPlans) -> None:
        self._limits.spend(1)
        incumbent, sequence = self._incumbent, plans.best(number)
        budget = incumbent.problem.budget.device_bytes
        if self._options.improve and sequence.peak <= budget:
            sequence = without_needless_reruns(sequence, budget)
        self._tried[number] = incumbent.offer(sequence, plans.model_figures(number))

    def _numbers(self, count: int) -> Iterator[int]:
        """Yield the numbers of plans to try: half evenly, then near the best."""
        most = min(self._options.candidates, count)
        evenly = np.linspace(0, count - 1, min(max(most // 2, 2), most)).round()
        for number in evenly.astype(np.int64).tolist():
            if not self._limits.is_over:
                yield number
        while len(self._tried) < most and not self._limits.is_over:
            yield self._between()

    def _between(self) -> int:
        """Return the middle of the widest gap beside the best plan.

        Without a gap there, any gap will do.
        """
        best = min(self._tried, key=lambda number: self._incumbent.merit(self._tried[number]))
        gaps = [(low, high) for low, high in pairwise(sorted(self._tried)) if high - low > 1]
        adjacent = [gap for gap in gaps if best in gap]
        low, high = max(adjacent or gaps, key=lambda gap: (gap[1] - gap[0], gap))
        return (low + high) // 2
