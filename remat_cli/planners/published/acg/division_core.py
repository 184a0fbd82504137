"""Complicate segments: the irreducible parts of a computation graph.

Series and parallel reductions cannot reduce them. A segment's source dominates all vertices inside, and its target
post-dominates them. So the search for segments that begin at a vertex covers the vertices that it dominates, up to its
immediate post-dominator. Such a segment is connected to the rest through one vertex. A depth-first search finds that
vertex by low points, as in the search for articulation points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class CoreSegment(NamedTuple):
    """A segment of a reduced graph.

    Attributes:
        source: the vertex through which all edges enter.
        target: the vertex through which all edges leave.
        walk: a list that contains its vertices, without source and target.
        start: start of its vertices in the list.
        stop: end of its vertices in the list.
    """

    source: int
    target: int
    walk: Sequence[int]
    start: int
    stop: int

    @property
    def inside(self) -> list[int]:
        """The segment's vertices, ascending, without source and target."""
        return sorted(self.walk[self.start : self.stop])


def core_segments(after: Sequence[Sequence[int]]) -> list[CoreSegment]:
    """Return segments of a graph, smallest first.

    All complicate segments are among them. The others are linear: they vanish when the complicate segments within are
    replaced by edges, and chains of edges by one edge. Takes O(E d), where d is the largest number of vertices that
    dominate an edge within its region.

    Args:
        after: successors of each vertex; vertices are numbered in a topological order, with one source, one target, and
            no inner vertex with one edge in and one out.
    """
    last = len(after) - 1
    before: list[list[int]] = [[] for _ in after]
    for u, successors in enumerate(after):
        for v in successors:
            before[v].append(u)
    dominated: list[list[int]] = [[] for _ in after]  # immediately dominated vertices
    for v, dominator in enumerate(_immediate_dominators(before)):
        if v > 0:
            dominated[dominator].append(v)
    mirrored = [[last - v for v in successors] for successors in reversed(after)]
    post_dominator = [last - v for v in reversed(_immediate_dominators(mirrored))]
    segments: list[CoreSegment] = []
    for source in range(last):
        region = [source]
        for u in region:
            # A segment that extends beyond the immediate post-dominator is split by it, so it is linear.
            region += [v for v in dominated[u] if v < post_dominator[source]]
        segments += _Region(source, region[1:], before, after).segments()
    return sorted(segments, key=lambda segment: (segment.stop - segment.start, segment.source, segment.target))


def _immediate_dominators(before: Sequence[Sequence[int]]) -> list[int]:
    """Return the immediate dominator of each vertex.

    That is the last other vertex on every path from vertex 0. Source: Cooper, Harvey, Kennedy, A Simple, Fast Dominance
    Algorithm, 2001; one pass is enough without cycles.
    """
    dominators = [0]
    for predecessors in before[1:]:
        common = predecessors[0]
        for other in predecessors[1:]:
            while common != other:
                if common > other:
                    common = dominators[common]
                else:
                    other = dominators[other]
        dominators.append(common)
    return dominators


class _Region:
    """A depth-first walk over vertices entered from one source outside.

    The walk follows edges forwards and backwards.
    """

    def __init__(
        self, source: int, region: Sequence[int], before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]
    ) -> None:
        members = set(region)
        self._source = source
        self._region = region
        self._near = {v: [u for u in (*before[v], *after[v]) if u in members] for v in region}
        self._exits = {v: [u for u in after[v] if u not in members] for v in region}
        self._walk: list[int] = []  # the vertices in order of the walk
        self._place: dict[int, int] = {}  # position of each vertex in the walk
        self._low: dict[int, int] = {}  # the first position reached from below a vertex; -1: outside

    def segments(self) -> Iterator[CoreSegment]:
        """Yield each part that one vertex connects to the rest."""
        for start in self._region:
            if start in self._place or not self._exits[start]:
                continue
            yield from self._segments_below(start)
            first = self._place[start]
            ways_out = {u for v in self._walk[first:] for u in self._exits[v]}
            if len(ways_out) == 1:
                yield self._segment(ways_out.pop(), first)

    def _segment(self, target: int, first: int) -> CoreSegment:
        return CoreSegment(self._source, target, self._walk, first, len(self._walk))

    def _segments_below(self, start: int) -> Iterator[CoreSegment]:
        low, place = self._low, self._place
        path = [self._enter(start)]
        while path:
            vertex, neighbours = path[-1]
            unreached = self._scan_neighbours(vertex, neighbours)
            if unreached is not None:
                path.append(self._enter(unreached))
                continue
            path.pop()
            if path:
                above = path[-1][0]
                if low[vertex] >= place[above]:
                    yield self._segment(above, place[vertex])
                low[above] = min(low[above], low[vertex])

    def _enter(self, vertex: int) -> tuple[int, Iterator[int]]:
        self._place[vertex] = len(self._walk)
        self._low[vertex] = -1 if self._exits[vertex] else len(self._walk)
        self._walk.append(vertex)
        return vertex, iter(self._near[vertex])

    def _scan_neighbours(self, vertex: int, neighbours: Iterator[int]) -> int | None:
        """Return the next unreached neighbour; update low points by the others."""
        for neighbour in neighbours:
            if neighbour not in self._place:
                return neighbour
            self._low[vertex] = min(self._low[vertex], self._place[neighbour])
        return None
