"""The division tree: the nested independent segments of a graph.

An independent segment is a part of the graph between two vertices through which all edges enter and leave (Feng &
Huang). The tree is built by series and parallel reductions; where they end, `division_core` finds the irreducible
segments, and each becomes one edge, smallest first. The result is the SPQR tree of the undirected graph, rooted at the
edge between source and target, so it is unique.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from remat_cli.planners.published.acg.division_core import core_segments


class SegmentKind(StrEnum):
    """The division of a segment."""

    EDGE = "edge"  # not divided: its ends follow each other
    LINEAR = "linear"  # divided at vertices on every path, into segments in series
    BRANCH = "branch"  # divided into parallel segments between the same two vertices
    COMPLICATE = "complicate"  # neither: divided into its largest segments


@dataclass(frozen=True, eq=False)
class ComputationGraph:
    """An arbitrary computation graph: acyclic, with one source and one target.

    Attributes:
        costs: [V] int, 0 or more; bytes, or any other cost.
        edges: pairs (u, v): v is computed from u.
        source: the vertex without a predecessor.
        target: the vertex without a successor.

    Raises:
        ValueError: a cost is negative, an edge has an unknown end, there is a cycle, or another source or target.
    """

    costs: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    source: int
    target: int

    def __post_init__(self) -> None:
        vertices = range(len(self.costs))
        if min(self.costs, default=0) < 0:
            raise ValueError("a cost is negative")
        if not all(u in vertices and v in vertices for u, v in self.edges):
            raise ValueError(f"an edge leads to no vertex: there are {len(vertices)}")
        starts = set(vertices).difference(v for _, v in self.edges)
        ends = set(vertices).difference(u for u, _ in self.edges)
        if starts != {self.source} or ends != {self.target} or self.source == self.target:
            raise ValueError(f"the source is not {self.source} alone, or the target not {self.target} alone")
        if len(self.order) < len(vertices):
            raise ValueError("there is a cycle")

    @classmethod
    def with_ends(cls, costs: Sequence[int], edges: Sequence[tuple[int, int]]) -> ComputationGraph:
        """Return the graph with an extra source and an extra target.

        They cost nothing, and are vertices V and V + 1.
        """
        vertices = range(len(costs))
        starts = sorted(set(vertices).difference(v for _, v in edges))
        ends = sorted(set(vertices).difference(u for u, _ in edges))
        source, target = len(costs), len(costs) + 1
        outer = [*((source, v) for v in starts), *((v, target) for v in ends)]
        return cls((*costs, 0, 0), (*edges, *outer), source, target)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The vertices in a topological order."""
        after: list[list[int]] = [[] for _ in self.costs]
        waits_for = [0] * len(self.costs)
        for u, v in self.edges:
            after[u].append(v)
            waits_for[v] += 1
        order = [v for v, count in enumerate(waits_for) if count == 0]
        for u in order:
            for v in after[u]:
                waits_for[v] -= 1
                if waits_for[v] == 0:
                    order.append(v)
        return tuple(order)


@dataclass(frozen=True, slots=True)
class Segment:
    """Everything between two vertices, which are not part of it.

    Attributes:
        kind: how it is divided.
        source: the vertex through which everything enters.
        target: the vertex through which everything leaves.
        members: numbers of the segments that it is divided into; of a linear one, from source to target.
        joints: the vertices between members: splitting vertices of a linear segment, in order, and connecting vertices
            of a complicate one.
        size: number of vertices inside.
        cost: of all vertices inside.
    """

    kind: SegmentKind
    source: int
    target: int
    members: tuple[int, ...]
    joints: tuple[int, ...]
    size: int
    cost: int


@dataclass(frozen=True, eq=False)
class DivisionTree:
    """The nested independent segments of a graph.

    Attributes:
        graph: the graph.
        segments: each after its members; the last is the whole graph.
    """

    graph: ComputationGraph
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, graph: ComputationGraph) -> DivisionTree:
        """Divide a graph, in O(V + E) apart from complicate segments."""
        parts = _Reduction(graph).parts()
        return cls(graph, _segments(graph, parts))

    @property
    def root(self) -> Segment:
        """The whole graph."""
        return self.segments[-1]

    @cached_property
    def counts(self) -> dict[SegmentKind, int]:
        """Number of segments of each kind."""
        counted = Counter(segment.kind for segment in self.segments)
        return {kind: counted[kind] for kind in SegmentKind}


class _TreePart(NamedTuple):
    """A segment during reduction, with two members if linear or branch.

    Members may be of the same kind.
    """

    kind: SegmentKind
    source: int
    target: int
    members: tuple[int, ...]


class _Reduction:
    """A graph that is reduced to one edge.

    Each edge stands for a part, and two vertices have at most one edge.
    """

    def __init__(self, graph: ComputationGraph) -> None:
        self._order = graph.order
        self._parts: list[_TreePart] = []
        self._out: list[dict[int, int]] = [{} for _ in graph.costs]  # [u][v]: the part from u to v
        self._into: list[dict[int, int]] = [{} for _ in graph.costs]  # [v][u]: the same
        self._waiting = list(reversed(self._order))  # vertices that may now be the middle of a chain
        for u, v in graph.edges:
            self._connect(_TreePart(SegmentKind.EDGE, u, v, ()))

    def parts(self) -> list[_TreePart]:
        """Return all parts, each after its members, the whole graph last."""
        self._reduce_chains()
        core = [v for v in self._order if self._into[v] or self._out[v]]
        number = {v: place for place, v in enumerate(core)}
        for segment in core_segments([[number[v] for v in self._out[u]] for u in core]):
            # The rest is irreducible, and its smaller segments are edges already.
            if left := [core[place] for place in segment.inside if self._into[core[place]]]:
                self._collapse(core[segment.source], core[segment.target], left)
                self._reduce_chains()
        return self._parts

    def _connect(self, part: _TreePart) -> None:
        """Add an edge for a part, merged with a parallel edge."""
        u, v, number = part.source, part.target, len(self._parts)
        self._parts.append(part)
        parallel = self._out[u].get(v)
        if parallel is not None:
            number += 1
            self._parts.append(_TreePart(SegmentKind.BRANCH, u, v, (parallel, number - 1)))
            self._waiting += (v, u)
        self._out[u][v] = self._into[v][u] = number

    def _reduce_chains(self) -> None:
        """Remove vertices with one edge in and one out; join the two edges."""
        while self._waiting:
            vertex = self._waiting.pop()
            if len(self._into[vertex]) != 1 or len(self._out[vertex]) != 1:
                continue
            ((u, before),) = self._into[vertex].items()
            ((v, behind),) = self._out[vertex].items()
            self._take_away(vertex)
            self._connect(_TreePart(SegmentKind.LINEAR, u, v, (before, behind)))

    def _collapse(self, source: int, target: int, inside: Sequence[int]) -> None:
        """Replace a complicate segment by one edge."""
        members = [part for v in inside for part in self._into[v].values()]
        members += [self._out[v][target] for v in inside if target in self._out[v]]
        for vertex in inside:
            self._take_away(vertex)
        self._connect(_TreePart(SegmentKind.COMPLICATE, source, target, tuple(members)))
        self._waiting += (target, source)

    def _take_away(self, vertex: int) -> None:
        for u in self._into[vertex]:
            del self._out[u][vertex]
        for v in self._out[vertex]:
            del self._into[v][vertex]
        self._into[vertex], self._out[vertex] = {}, {}


def _segments(graph: ComputationGraph, parts: Sequence[_TreePart]) -> tuple[Segment, ...]:
    """Return the segments of the parts.

    A linear part within a linear part, or a branch within a branch, is merged with that segment.
    """
    dissolves = [False] * len(parts)
    for part in parts:
        if part.kind is not SegmentKind.COMPLICATE:
            for member in part.members:
                dissolves[member] = parts[member].kind is part.kind
    segments: list[Segment] = []
    number: dict[int, int] = {}  # number of each part's segment
    for place, part in enumerate(parts):
        if not dissolves[place]:
            number[place] = len(segments)
            members = tuple(number[member] for member in _undissolved(parts, dissolves, part))
            segments.append(_segment(graph, part, members, segments))
    return tuple(segments)


def _undissolved(parts: Sequence[_TreePart], dissolves: Sequence[bool], part: _TreePart) -> Iterator[int]:
    stack = list(reversed(part.members))
    while stack:
        member = stack.pop()
        if dissolves[member]:
            stack.extend(reversed(parts[member].members))
        else:
            yield member


def _segment(
    graph: ComputationGraph, part: _TreePart, members: tuple[int, ...], segments: Sequence[Segment]
) -> Segment:
    ends = dict.fromkeys(end for member in members for end in (segments[member].source, segments[member].target))
    joints = tuple(vertex for vertex in ends if vertex not in (part.source, part.target))
    return Segment(
        kind=part.kind,
        source=part.source,
        target=part.target,
        members=members,
        joints=joints,
        size=len(joints) + sum(segments[member].size for member in members),
        cost=sum(graph.costs[joint] for joint in joints) + sum(segments[member].cost for member in members),
    )
