"""Stored sets of least stored cost plus largest segment.

The objective is that of Feng & Huang. For a limit on the segments' cost, one sweep over the division tree gives the
least stored cost. Branch and bound finds the best limit: the larger the limit, the less is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import accumulate, zip_longest

from remat_cli.planners.published.acg.division_tree import ComputationGraph, DivisionTree, Segment, SegmentKind
from remat_cli.planners.shared.forward_part import ForwardPart

# The number of limits that `StoredSets.spread` may try for each returned choice.
_TRIES = 4


@dataclass(frozen=True, slots=True)
class StoredChoice:
    """The stored set under a limit on segments.

    The graph's source and target are always stored, and not counted.

    Attributes:
        limit: largest cost of a segment between stored vertices.
        stored: cost of the stored vertices: the least under the limit.
        largest: cost of the largest segment.
    """

    limit: int
    stored: int
    largest: int

    @property
    def cost(self) -> int:
        """The paper's objective."""
        return self.stored + self.largest


@dataclass(frozen=True, slots=True)
class _SegmentDP:
    """The dynamic program of a linear segment.

    It finds the best choice up to each stored splitting vertex.

    Attributes:
        stored: cost of the stored vertices inside the segment.
        largest: the largest segment.
        previous: for each position, the position of the stored vertex before.
    """

    stored: int
    largest: int
    previous: list[int]


class StoredSets:
    """The stored sets that leave independent segments between stored vertices."""

    def __init__(self, tree: DivisionTree) -> None:
        self._tree = tree
        self._divided = [n for n, segment in enumerate(tree.segments) if segment.members]
        self._cost = [segment.cost for segment in tree.segments]
        # Between stored ends, each undivided branch is a segment of its own.
        self._unentered_largest = [
            max(self._cost[member] for member in segment.members)
            if segment.kind is SegmentKind.BRANCH
            else segment.cost
            for segment in tree.segments
        ]
        self._choices: dict[int, StoredChoice] = {}

    @property
    def limits_tried(self) -> int:
        """Number of limits for which the tree was swept."""
        return len(self._choices)

    def within(self, limit: int) -> StoredChoice:
        """Return the choice that stores least under a limit."""
        if limit not in self._choices:
            self._choices[limit] = self._sweep(limit)[0]
        return self._choices[limit]

    def vertices(self, choice: StoredChoice) -> list[int]:
        """Return the vertices of a choice, ascending, without source and target."""
        segments, limit = self._tree.segments, choice.limit
        _, runs = self._sweep(limit)
        stored: list[int] = []
        entered = [len(segments) - 1]
        while entered:
            number = entered.pop()
            segment = segments[number]
            if segment.cost <= limit:
                continue
            if segment.kind is SegmentKind.LINEAR:
                stored += _stored_joints(segment, runs[number])
            else:
                stored += segment.joints
            # If a member of a linear segment costs more than the limit, its ends are stored.
            entered += segment.members
        return sorted(stored)

    @cached_property
    def best(self) -> StoredChoice:
        """The choice of least cost, by branch and bound.

        The search splits open intervals of limits. A choice within an interval stores at least as much as the choice at
        its upper end, and its largest segment is above the lower end; else it belongs to the interval below.
        """
        best = top = self.within(self._tree.root.cost)
        cells = [(top.stored, -1, top.largest)]  # ordered by the least possible cost in the interval
        while cells and cells[0][0] < best.cost:
            _, floor, ceiling = heappop(cells)
            upper = self.within(ceiling - 1)
            best = min(best, upper, key=lambda choice: choice.cost)
            middle = (floor + upper.largest) // 2
            if middle <= floor:
                continue
            lower = self.within(middle)
            best = min(best, lower, key=lambda choice: choice.cost)
            for low, high in ((middle, upper), (floor, lower)):
                if high.largest - low > 1:
                    heappush(cells, (high.stored + low + 1, low, high.largest))
        return best

    def spread(self, count: int) -> list[StoredChoice]:
        """Return about `count` Pareto-optimal choices, largest segments first.

        The search fills the widest gaps first; the two extremes are always among them.
        """
        top, bottom = self.within(self._tree.root.cost), self.within(0)
        choices = {choice.largest: choice for choice in (bottom, top)}
        gaps: list[tuple[int, int, int, int]] = []  # widest first

        def add_gap(floor: int, upper: StoredChoice, lower: StoredChoice) -> None:
            """Add the gap from `floor` to the largest segment of `upper`."""
            if upper.largest - floor > 1 and lower.stored > upper.stored:
                width = (upper.largest - floor) * (lower.stored - upper.stored)
                heappush(gaps, (-width, floor, upper.largest, lower.largest))

        add_gap(bottom.largest, top, bottom)
        for _ in range(_TRIES * count):
            if len(choices) >= count or not gaps:
                break
            _, floor, ceiling, below = heappop(gaps)
            upper, lower, middle = choices[ceiling], choices[below], (floor + ceiling) // 2
            choice = self.within(middle)
            if choice.largest > floor:
                choices[choice.largest] = choice
                add_gap(floor, choice, lower)
                add_gap(middle, upper, choice)
            else:
                add_gap(middle, upper, lower)
        return list(_undominated(choices[largest] for largest in sorted(choices)))[::-1]

    def _sweep(self, limit: int) -> tuple[StoredChoice, dict[int, _SegmentDP]]:
        """Return the choice under a limit, with the linear segments' programs.

        Only segments that cost more than the limit have one.
        """
        stored = [0] * len(self._cost)  # cost stored inside each segment
        largest = self._unentered_largest.copy()
        runs: dict[int, _SegmentDP] = {}
        for number in self._divided:
            if self._cost[number] <= limit:
                continue
            segment = self._tree.segments[number]
            if segment.kind is SegmentKind.LINEAR:
                runs[number] = run = self._run(number, limit, stored, largest)
                stored[number], largest[number] = run.stored, run.largest
            else:
                joints = sum(self._tree.graph.costs[joint] for joint in segment.joints)
                stored[number] = joints + sum(stored[member] for member in segment.members)
                largest[number] = max(largest[member] for member in segment.members)
        return StoredChoice(limit, stored[-1], largest[-1]), runs

    def _run(self, number: int, limit: int, stored: Sequence[int], largest: Sequence[int]) -> _SegmentDP:
        """Choose the splitting vertices to store in a linear segment.

        Args:
            number: number of the segment.
            limit: limit on the cost between stored vertices.
            stored: cost stored inside each member that exceeds the limit, and needs both its ends stored.
            largest: largest segment in each member whose ends are stored.
        """
        joint_costs, ends = self._linear[number]
        best, worst, previous = [0], [0], [0]
        window = deque([0])  # positions that can be the previous stored one, best first
        for position, member in enumerate(self._tree.segments[number].members, start=1):
            cost = self._cost[member]
            if cost > limit:
                start = position - 1
            else:
                # Everything from the end of that vertex to the beginning of this vertex lies between.
                furthest = ends[position - 1] + cost - limit
                while ends[window[0]] < furthest:
                    window.popleft()
                start = window[0]
            between = largest[member] if start == position - 1 else ends[position - 1] + cost - ends[start]
            best.append(best[start] + stored[member] + joint_costs[position])
            worst.append(max(worst[start], between))
            previous.append(start)
            while window and best[window[-1]] >= best[position]:
                window.pop()
            window.append(position)
        return _SegmentDP(best[-1], worst[-1], previous)

    @cached_property
    def _linear(self) -> dict[int, tuple[list[int], list[int]]]:
        """For each linear segment, the costs of its splitting vertices.

        The lists have the cost of each vertex by position, and the cost of all vertices up to and including it.

        Position 0 is the segment's source and the last its target, which cost nothing here.
        """
        costs = self._tree.graph.costs
        linear = {}
        for number in self._divided:
            segment = self._tree.segments[number]
            if segment.kind is SegmentKind.LINEAR:
                joint_costs = [0, *(costs[joint] for joint in segment.joints), 0]
                members = [0, *(self._cost[member] for member in segment.members)]
                linear[number] = joint_costs, list(accumulate(map(sum, zip(joint_costs, members, strict=True))))
        return linear


def _stored_joints(segment: Segment, run: _SegmentDP) -> Iterator[int]:
    position = run.previous[len(segment.members)]
    while position > 0:
        yield segment.joints[position - 1]
        position = run.previous[position]


def _undominated(choices: Iterator[StoredChoice]) -> Iterator[StoredChoice]:
    """Yield the choices that store less than all choices before."""
    least = None
    for choice in choices:
        if least is None or choice.stored < least:
            least = choice.stored
            yield choice


@dataclass(frozen=True, eq=False)
class ForwardDivision:
    """A division tree, and the vertices stored in any case.

    Attributes:
        tree: tree of the forward part, with a source for the graph inputs and a target for the readers of the results.
        sets: its stored sets.
        always: vertices stored with every choice; the tree treats them as graph inputs without cost.
        always_cost: their cost.
    """

    tree: DivisionTree
    sets: StoredSets
    always: tuple[int, ...] = ()
    always_cost: int = 0

    @classmethod
    def of(cls, forward: ForwardPart) -> ForwardDivision:
        """Divide as in the paper."""
        edges = [(u, v) for u, v in forward.edges.tolist()]
        tree = DivisionTree.of(ComputationGraph.with_ends(forward.bytes.tolist(), edges))
        return cls(tree, StoredSets(tree))

    def without_shared_inputs(self) -> ForwardDivision | None:
        """Divide as if tensors computed from graph inputs were inputs.

        This concerns tensors that are computed from graph inputs alone; None if there are none. An attention mask that
        all layers read merges the layers into one complicate segment, whose connecting vertices are all stored or none.
        A stored mask does not connect the layers.
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
        return ForwardDivision(tree, StoredSets(tree), tuple(sorted(shared)), sum(graph.costs[v] for v in shared))

    def choices(self, count: int) -> list[StoredChoice]:
        """Return about `count` choices, the one of least cost first."""
        best = self.sets.best
        return [best, *(choice for choice in self.sets.spread(count) if choice.largest != best.largest)]

    def stored(self, choice: StoredChoice) -> list[int]:
        """Return all stored vertices."""
        return sorted({*self.always, *self.sets.vertices(choice)})

    def cost(self, choice: StoredChoice) -> int:
        """Return the paper's cost: stored vertices plus largest segment."""
        return self.always_cost + choice.cost


def alternating_choices(divisions: list[ForwardDivision], count: int) -> list[tuple[ForwardDivision, StoredChoice]]:
    """Return at most `count` choices, alternating between the divisions."""
    share = -(-count // len(divisions))
    rows = zip_longest(*([(each, choice) for choice in each.choices(share)] for each in divisions))
    return [pair for row in rows for pair in row if pair is not None][:count]
