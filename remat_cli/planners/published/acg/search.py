"""The search of `acg` for a plan that fits, from stored sets.

The paper's objective has no budget and no time. So stored sets are turned into plans, which are measured; unused budget
is spent on recomputing less.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.core.problem import ModelFigure, PlanResult, Status
from remat_cli.planners.published.acg.division_tree import SegmentKind
from remat_cli.planners.published.acg.solver import ForwardDivision, StoredChoice, alternating_choices
from remat_cli.planners.shared.forward_part import ForwardPart
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.rerun_removal import without_needless_reruns
from remat_cli.planners.shared.sequence import RematSequence


class SegmentRuns:
    """Orders the ops of a training graph for a stored set.

    A stored set is given as vertices of the forward part. Tensors that are not stored are dropped after their last
    forward read, and recomputed once, when the backward pass first needs them (Feng & Huang). Outputs of ops that must
    run once are never dropped.
    """

    def __init__(self, forward: ForwardPart) -> None:
        self._forward = forward
        self._after: list[list[int]] = [[] for _ in range(len(forward))]
        for u, v in forward.edges.tolist():
            self._after[u].append(v)

    def orders(self, stored: Collection[int]) -> list[RematSequence]:
        """Return one or two orders of the graph's ops.

        The first follows the input order; the second goes segment by segment, so that parallel branches do not
        alternate.

        Args:
            stored: vertices; if each component of the other vertices is merged into one vertex, there is no cycle.
        """
        forward, units = self._forward, self._units(stored)
        by_unit = sorted(range(len(units)), key=lambda v: (units[v], v))
        place = forward.places_of_backward(units, len(units))
        runs = [
            self._runs(range(len(units)), forward.backward, stored),
            self._runs(by_unit, sorted(forward.backward, key=lambda op: -place[op]), stored),
        ]
        return runs[:1] if np.array_equal(runs[0].ops, runs[1].ops) else runs

    def _runs(self, vertices: Iterable[int], backward: Sequence[int], stored: Collection[int]) -> RematSequence:
        """Return the forward ops, then the backward ops with recomputation.

        Recomputed ops run right before their backward op.
        """
        forward = self._forward
        is_there = [False] * len(forward)
        for v in (*stored, *forward.must_stay):
            is_there[v] = True
        op_of: list[int] = forward.ops.tolist()
        runs = [op_of[v] for v in vertices]
        for op in backward:
            again = forward.missing(forward.reads[op], is_there)
            for v in again:
                is_there[v] = True
                runs.append(op_of[v])
            runs.append(op)
        return RematSequence.of(forward.graph, runs).without_useless_runs()

    def _units(self, stored: Collection[int]) -> list[int]:
        """Return the position of each vertex's unit in a topological order.

        A unit is a stored vertex or a segment; the order is depth-first.
        """
        unit = self._components(set(stored))
        after: dict[int, set[int]] = {number: set() for number in unit}
        for u, successors in enumerate(self._after):
            after[unit[u]].update(unit[v] for v in successors if unit[v] != unit[u])
        waits_for = dict.fromkeys(after, 0)
        for units in after.values():
            for number in units:
                waits_for[number] += 1
        ready = sorted((number for number, count in waits_for.items() if count == 0), reverse=True)
        place: dict[int, int] = {}
        while ready:
            first = ready.pop()
            place[first] = len(place)
            for number in sorted(after[first], reverse=True):
                waits_for[number] -= 1
                if waits_for[number] == 0:
                    ready.append(number)
        return [place[number] for number in unit]

    def _components(self, stored: Collection[int]) -> list[int]:
        """Return, for each vertex, the smallest vertex of its unit."""
        unit = list(range(len(self._forward)))

        def smallest(v: int) -> int:
            while unit[v] != v:
                unit[v] = unit[unit[v]]
                v = unit[v]
            return v

        for u, successors in enumerate(self._after):
            if u not in stored:
                for v in successors:
                    if v not in stored:
                        first, second = sorted((smallest(u), smallest(v)))
                        unit[second] = first
        return [smallest(v) for v in range(len(unit))]


class ACGPlans:
    """The plans of a graph's stored sets, for every budget."""

    def __init__(self, graph: Graph, *, share_inputs: bool) -> None:
        self._graph = graph
        self._forward = ForwardPart.of(graph, "acg")
        paper = ForwardDivision.of(self._forward)
        other = paper.without_shared_inputs() if share_inputs else None
        self._divisions = [paper] if other is None else [paper, other]
        self._runs = SegmentRuns(self._forward)
        self._sequences: dict[tuple[ForwardDivision, StoredChoice], list[RematSequence]] = {}

    def plans(self, count: int) -> Iterator[tuple[list[RematSequence], ModelFigure]]:
        """Yield the plans of at most `count` stored sets, paper's optimum first.

        Each set comes in one or two orders, with the paper's cost.
        """
        for division, choice in alternating_choices(self._divisions, count):
            if (division, choice) not in self._sequences:
                self._sequences[division, choice] = self._runs.orders(division.stored(choice))
            yield self._sequences[division, choice], _paper_cost(division.cost(choice))

    @property
    def plain_cost(self) -> ModelFigure:
        """The paper's cost of the plain run, which stores everything."""
        return _paper_cost(int(self._forward.bytes.sum()))

    @property
    def stats(self) -> dict[str, int]:
        """Sizes of the paper's division tree, and counts of work."""
        counts = self._divisions[0].tree.counts
        return {
            "linear": counts[SegmentKind.LINEAR],
            "branch": counts[SegmentKind.BRANCH],
            "complicate": counts[SegmentKind.COMPLICATE],
            "limits": sum(division.sets.limits_tried for division in self._divisions),
        }


@lru_cache(maxsize=2)
def acg_plans(graph: Graph, share_inputs: bool) -> ACGPlans:
    """Return the plans of `graph`, cached for searches over budgets."""
    return ACGPlans(graph, share_inputs=share_inputs)


class ACGSearch:
    """Tries the plans of stored sets for one problem."""

    def __init__(self, incumbent: Incumbent, limits: Limits, *, share_inputs: bool, improve: bool) -> None:
        """Prepare a search.

        Args:
            incumbent: keeps the plans found.
            limits: limits after which no further stored set is tried.
            share_inputs: as in `ACGPlans`.
            improve: drop reruns if the budget has room to keep the tensors.
        """
        self._incumbent, self._limits = incumbent, limits
        self._share_inputs, self._improve = share_inputs, improve

    def run(self, candidates: int) -> PlanResult:
        """Return the best plan that fits, over so many stored sets.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part.
        """
        incumbent = self._incumbent
        graph = incumbent.problem.graph
        incumbent.observe.phase("dividing the forward pass into independent segments")
        plans = acg_plans(graph, self._share_inputs)
        if candidates == 0:
            return PlanResult(Status.UNKNOWN, reason="no candidates are allowed")
        if incumbent.fits(incumbent.offer(RematSequence.plain(graph), (plans.plain_cost,))):
            return incumbent.result()
        incumbent.observe.phase("trying stored sets")
        tried = 0
        for orders, cost in plans.plans(candidates):
            for sequence in orders:
                self._try(sequence, cost)
            tried += len(orders)
            if self._limits.is_over:
                break
        reason = "no stored set was found whose plan fits; that is no proof that there is none"
        return incumbent.result(reason, {**plans.stats, "plans": tried})

    def _try(self, sequence: RematSequence, cost: ModelFigure) -> None:
        budget = self._incumbent.problem.budget.device_bytes
        if self._improve and sequence.peak <= budget:
            sequence = without_needless_reruns(sequence, budget)
        self._incumbent.offer(sequence, (cost,))


def _paper_cost(cost: int) -> ModelFigure:
    return ModelFigure("stored + largest segment (the paper's cost)", cost, "bytes")
