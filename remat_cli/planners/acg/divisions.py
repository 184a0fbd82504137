"""The divisions of a training graph's forward part whose stored sets are tried: the paper's, and one beside it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from remat_cli.planners.acg.division_tree import ComputationGraph, DivisionTree, SegmentKind
from remat_cli.planners.acg.solver import Choice, StoredSets
from remat_cli.planners.shared.forward_part import ForwardPart


@dataclass(frozen=True, eq=False)
class Division:
    """A division tree, and what is stored whatever it says.

    Attributes:
        tree: of the forward part, with a source that stands for the graph inputs and a target that stands for what
            reads the results.
        sets: its stored sets.
        always: vertices that are stored whatever the choice, and that the tree takes for graph inputs of no cost.
        always_cost: of these.
    """

    tree: DivisionTree
    sets: StoredSets
    always: tuple[int, ...] = ()
    always_cost: int = 0

    @classmethod
    def of(cls, forward: ForwardPart) -> Division:
        """Divide as in the paper."""
        edges = [(u, v) for u, v in forward.edges.tolist()]
        tree = DivisionTree.of(ComputationGraph.with_ends(forward.bytes.tolist(), edges))
        return cls(tree, StoredSets(tree))

    def without_shared_inputs(self) -> Division | None:
        """Divide as if what is computed from graph inputs alone were a graph input; None where that changes nothing.

        An attention mask that all layers read makes them one complicate segment, of which all connecting vertices are
        stored or none. Stored itself, it no longer ties them together.
        """
        graph, segments = self.tree.graph, self.tree.segments
        shared = {
            segments[member].target
            for segment in segments
            if segment.kind is SegmentKind.COMPLICATE and segment.source == graph.source
            for member in segment.members
            if segments[member].source == graph.source and segments[member].target != segment.target
        }
        if not shared:
            return None
        count = len(graph.costs) - 2
        costs = [0 if v in shared else cost for v, cost in enumerate(graph.costs[:count])]
        edges = [(u, v) for u, v in graph.edges if u < count and v < count and u not in shared]
        tree = DivisionTree.of(ComputationGraph.with_ends(costs, edges))
        return Division(tree, StoredSets(tree), tuple(sorted(shared)), sum(graph.costs[v] for v in shared))

    def choices(self, count: int) -> list[Choice]:
        """Return about `count` choices, the one of least cost first."""
        best = self.sets.best
        return [best, *(choice for choice in self.sets.spread(count) if choice.largest != best.largest)]

    def stored(self, choice: Choice) -> list[int]:
        """Return all vertices that are stored."""
        return sorted({*self.always, *self.sets.vertices(choice)})

    def cost(self, choice: Choice) -> int:
        """Return the paper's cost: of the stored vertices and the largest segment."""
        return self.always_cost + choice.cost


def alternating_choices(divisions: list[Division], count: int) -> list[tuple[Division, Choice]]:
    """Return at most `count` choices, evenly from all divisions."""
    share = -(-count // len(divisions))
    rows = zip_longest(*([(each, choice) for choice in each.choices(share)] for each in divisions))
    return [pair for row in rows for pair in row if pair is not None][:count]
