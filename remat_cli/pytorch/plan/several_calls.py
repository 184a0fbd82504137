"""Plans for several calls of a model before a backward pass."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.solve import baseline_of
from remat_cli.planning import Planning, plan
from remat_cli.pytorch.plan.record import GraphRecord, kept_between
from remat_cli.pytorch.plan.refusals import no_plan

# The number of plans, by bisection of what is left free for the other calls.
_MOST_PLANS = 6


@dataclass(frozen=True)
class SeveralCalls:
    """Several calls of a model before a backward pass.

    Attributes:
        calls: number of calls.
        accumulate: gradients are in memory before the step, which adds to them.
        inputs: names of the tensors that each call is given.
    """

    calls: int
    accumulate: bool
    inputs: Set[str] = frozenset()

    def planned(self, alone: Planning, free_bytes: int) -> GraphRecord:
        """Return a plan for several calls before a backward pass.

        While one call runs, the others keep what the plan keeps between its passes. That much is left free: the least
        that is enough is searched, as a call with more memory takes less time.

        Args:
            alone: plan of one call within the budget.
            free_bytes: bytes left free that count as always in memory, for the refusal.

        Raises:
            DoesNotFit: no plan that was found leaves enough free.
        """
        assert alone.schedule is not None
        together = self.together(alone.prepared.graph, alone.schedule, alone.budget_bytes)
        if alone.search is not None:  # the smallest budget is what they come to
            return replace(together, budget_bytes=together.predicted_peak_bytes)
        if together.predicted_peak_bytes <= alone.budget_bytes:
            return together
        graph, best, low = alone.prepared.graph, None, 0
        high = self.others_bytes(graph, alone.schedule)
        for _ in range(_MOST_PLANS):
            free = (low + high) // 2
            leaving = graph.edited(resident_bytes=graph.resident_bytes + free).checked()
            planning = plan(replace(alone.prepared, graph=leaving), alone.request)
            fits = False
            if planning.schedule is not None:
                together = self.together(graph, planning.schedule, alone.budget_bytes)
                fits = together.predicted_peak_bytes <= alone.budget_bytes
                best = together if fits else best
            low, high = (low, free) if fits or planning.schedule is None else (free, high)
        if best is None:
            raise no_plan(planning.solution, free_bytes)
        return best

    def kept(self, alone: GraphRecord, budget_bytes: int | None) -> GraphRecord | None:
        """Return a kept plan with the memory of all calls; None if it is above the budget.

        Args:
            alone: the plan with the memory of one call.
            budget_bytes: budget in bytes; None stands for the smallest, which the calls come to.
        """
        together = self.together(alone.graph, alone.schedule, budget_bytes or 0)
        if budget_bytes is None:
            return replace(together, budget_bytes=together.predicted_peak_bytes)
        return together if together.predicted_peak_bytes <= budget_bytes else None

    def together(self, graph: Graph, schedule: Schedule, budget_bytes: int) -> GraphRecord:
        """Return the record of a plan with the memory of all calls before a backward pass."""
        others, plain = (self.others_bytes(graph, each) for each in (schedule, plain_run(graph)))
        all_calls = graph.edited(resident_bytes=graph.resident_bytes + others).checked()
        planned = GraphRecord.of(all_calls, schedule, budget_bytes=budget_bytes)
        return replace(planned, plain_peak_bytes=baseline_of(graph).peak_bytes + plain)

    def others_bytes(self, graph: Graph, schedule: Schedule) -> int:
        """Return the memory of other calls while one of them runs its backward pass.

        They keep inputs and other tensors between their passes, or have left gradients.
        """
        if self.calls == 1:
            return 0
        kept = kept_between(graph, schedule)
        kept += sum(tensor.bytes for name, tensor in graph.tensors.items() if name in self.inputs)
        gradients = sum(graph.tensors[name].bytes for name in graph.outputs if name in graph.producer)
        if self.accumulate:  # they are counted already
            gradients = 0
        return max((self.calls - 1) * kept, (self.calls - 2) * kept + gradients)
