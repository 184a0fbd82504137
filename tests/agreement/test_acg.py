"""Division tree and stored sets of `acg` against the definitions of Feng & Huang, taken literally over plain sets."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise

import pytest

from remat_cli.planners.published.acg.division_tree import ComputationGraph, DivisionTree, Segment, SegmentKind
from remat_cli.planners.published.acg.solver import StoredChoice, StoredSets
from tests.seeds import seeds

Set = frozenset[int]
Edges = frozenset[tuple[int, int]]
# Kind, both ends, splitting or connecting vertices, and members: linear ones in order, others in any.
Division = tuple[object, ...]


def random_graph(seed: int, most: int = 9) -> ComputationGraph:
    """A graph of 2 to `most` vertices in topological order: chains with skips, series-parallel ones, and anything."""
    rng = random.Random(seed)
    count = rng.randint(2, most)
    edges = {(v - 1, v) for v in range(1, count)} if rng.random() < 0.3 else set()
    density = rng.choice([0.15, 0.3, 0.5])
    edges |= {pair for pair in combinations(range(count), 2) if rng.random() < density}
    for v in range(count - 1):
        if all(u != v for u, _ in edges):
            edges.add((v, rng.randint(v + 1, count - 1)))
    for v in range(1, count):
        if all(w != v for _, w in edges):
            edges.add((rng.randint(0, v - 1), v))
    sizes = rng.choice([[1], [0, 1, 2], range(1, 20)])
    costs = tuple(rng.choice(sizes) for _ in range(count))
    return ComputationGraph(costs, tuple(rng.sample(sorted(edges), len(edges))), 0, count - 1)


def divided(edges: Edges, source: int, target: int) -> Division:
    """The division of a segment, from section 2 of the supplement."""
    if len(edges) == 1:
        return (SegmentKind.EDGE, source, target, (), ())
    inner = {v for edge in edges for v in edge} - {source, target}
    splitting = sorted(v for v in inner if splits(edges, v))
    if splitting:
        pieces = pairwise([source, *splitting, target])
        members = [divided(frozenset(edge for edge in edges if a <= edge[0] < b), a, b) for a, b in pieces]
        return (SegmentKind.LINEAR, source, target, tuple(splitting), tuple(members))
    branches = list(components(edges, source, target))
    if len(branches) > 1:
        members = [divided(each, source, target) for each in branches]
        return (SegmentKind.BRANCH, source, target, (), in_any_order(members))
    largest = largest_segments(edges, source, target)
    connecting = {end for a, b, _ in largest for end in (a, b)} - {source, target}
    members = [divided(each, a, b) for a, b, each in largest]
    return (SegmentKind.COMPLICATE, source, target, tuple(sorted(connecting)), in_any_order(members))


def in_any_order(divisions: Iterable[Division]) -> tuple[Division, ...]:
    return tuple(sorted(divisions, key=repr))


def splits(edges: Edges, v: int) -> bool:
    """Algorithm 2: the edges among what leads to v and among what v leads to are all edges, and none is in both."""
    before, after = reached(reversed_edges(edges), v), reached(edges, v)
    inside = {edge for edge in edges if before.issuperset(edge)}, {edge for edge in edges if after.issuperset(edge)}
    return inside[0] | inside[1] == edges and not inside[0] & inside[1]


def reached(edges: Edges, start: int) -> Set:
    found = {start}
    while new := {v for u, v in edges if u in found} - found:
        found |= new
    return frozenset(found)


def reversed_edges(edges: Edges) -> Edges:
    return frozenset((v, u) for u, v in edges)


def components(edges: Edges, *removed: int) -> Iterator[Edges]:
    """The edges of each connected component without some vertices, and what joins it to these; an edge between them."""
    left = set(edges)
    while left:
        part = {min(left)}
        while new := {e for e in left - part for f in part if (set(e) & set(f)) - set(removed)}:
            part |= new
        left -= part
        yield frozenset(part)


def largest_segments(edges: Edges, source: int, target: int) -> list[tuple[int, int, Edges]]:
    """Algorithm 4: the largest segment between each two vertices, then the largest ones of these that share no edge."""
    vertices = sorted({v for edge in edges for v in edge})
    segments = []
    for a, b in combinations(vertices, 2):
        if (a, b) != (source, target) and (segment := largest_segment(edges, a, b)):
            segments.append((a, b, segment))
    segments.sort(key=lambda each: -len(each[2]))
    chosen: list[tuple[int, int, Edges]] = []
    for each in segments:
        if all(not each[2] & other[2] for other in chosen):
            chosen.append(each)
    assert frozenset[tuple[int, int]]().union(*(each[2] for each in chosen)) == edges
    return chosen


def largest_segment(edges: Edges, a: int, b: int) -> Edges:
    inside = (reached(edges, a) & reached(reversed_edges(edges), b)) - {a, b}
    while outside := {v for edge in edges for v in edge if v in inside and not set(edge) <= inside | {a, b}}:
        inside -= outside
    return frozenset(edge for edge in edges if set(edge) <= inside | {a, b})


def as_division(tree: DivisionTree, segment: Segment) -> Division:
    members = [as_division(tree, tree.segments[member]) for member in segment.members]
    is_ordered = segment.kind is SegmentKind.LINEAR
    joints = segment.joints if is_ordered else tuple(sorted(segment.joints))
    return (
        segment.kind,
        segment.source,
        segment.target,
        joints,
        tuple(members) if is_ordered else in_any_order(members),
    )


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_tree_is_the_division_by_definition(first: int) -> None:
    for seed in range(first, first + 100):
        graph = random_graph(seed, most=11)
        tree = DivisionTree.of(graph)
        assert as_division(tree, tree.root) == divided(frozenset(graph.edges), graph.source, graph.target), seed


def test_random_graphs_have_segments_of_all_kinds_at_all_depths() -> None:
    # Else the test above would say little.
    trees = [DivisionTree.of(random_graph(seed, most=11)) for seed in range(500)]
    kinds = {
        (segment.kind, tree.segments[member].kind)
        for tree in trees
        for segment in tree.segments
        for member in segment.members
    }
    composed = set(SegmentKind) - {SegmentKind.EDGE}
    assert kinds == {(a, b) for a in composed for b in SegmentKind if a is not b or a is SegmentKind.COMPLICATE}


@dataclass(frozen=True)
class Admissible:
    stored: int
    largest: int

    @property
    def cost(self) -> int:
        return self.stored + self.largest


def admissible_sets(graph: ComputationGraph) -> Iterator[Admissible]:
    """Every set each of whose pieces has one stored vertex before it and one after it, with its largest piece."""
    inner = range(1, graph.target)
    for size in range(len(inner) + 1):
        for stored in combinations(inner, size):
            largest = largest_piece(graph, stored)
            if largest is not None:
                yield Admissible(sum(graph.costs[v] for v in stored), largest)


def largest_piece(graph: ComputationGraph, stored: Iterable[int]) -> int | None:
    """The cost of the largest piece between stored vertices; None where the set is not admissible."""
    kept = {graph.source, *stored, graph.target}
    pieces = list(pieces_of(graph, kept))
    if not all(is_between_two(graph, piece, kept) for piece in pieces):
        return None
    return max((sum(graph.costs[v] for v in piece) for piece in pieces), default=0)


def pieces_of(graph: ComputationGraph, kept: set[int]) -> Iterator[set[int]]:
    left = set(range(len(graph.costs))) - kept
    while left:
        piece = {min(left)}
        while new := {v for edge in graph.edges for v in edge if v in left - piece and piece & set(edge)}:
            piece |= new
        left -= piece
        yield piece


def is_between_two(graph: ComputationGraph, piece: set[int], kept: set[int]) -> bool:
    before = {u for u, v in graph.edges if v in piece and u in kept}
    after = {v for u, v in graph.edges if u in piece and v in kept}
    return len(before) == len(after) == 1


def check_is_what_it_says(graph: ComputationGraph, sets: StoredSets, choice: StoredChoice) -> None:
    """A choice is admissible, keeps to its limit, and its figures are right."""
    stored = sets.vertices(choice)
    assert choice.stored == sum(graph.costs[v] for v in stored)
    assert choice.largest == largest_piece(graph, stored)
    assert choice.largest <= choice.limit


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_best_choice_is_the_best_of_all_admissible_sets(first: int) -> None:
    for seed in range(first, first + 100):
        graph = random_graph(seed)
        sets = StoredSets(DivisionTree.of(graph))
        check_is_what_it_says(graph, sets, sets.best)
        assert sets.best.cost == min(each.cost for each in admissible_sets(graph)), seed


@pytest.mark.parametrize("seed", seeds(100))
def test_under_every_limit_the_least_is_stored(seed: int) -> None:
    graph = random_graph(seed)
    sets = StoredSets(DivisionTree.of(graph))
    every = list(admissible_sets(graph))
    for limit in range(sum(graph.costs) + 1):
        choice = sets.within(limit)
        check_is_what_it_says(graph, sets, choice)
        assert choice.stored == min(each.stored for each in every if each.largest <= limit)


@pytest.mark.parametrize("seed", seeds(100))
def test_a_wide_spread_is_all_that_no_other_set_beats(seed: int) -> None:
    graph = random_graph(seed)
    found = {(each.stored, each.largest) for each in StoredSets(DivisionTree.of(graph)).spread(1000)}
    every = {(each.stored, each.largest) for each in admissible_sets(graph)}
    assert found == {(s, m) for s, m in every if not any(a <= s and b <= m and (a, b) != (s, m) for a, b in every)}
