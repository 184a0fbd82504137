"""The division tree: its kinds of segments on graphs whose division can be seen, and graphs of a size that hurts."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest

from remat_cli.planners.published.acg.division_core import core_segments
from remat_cli.planners.published.acg.division_tree import ComputationGraph, DivisionTree, SegmentKind

EDGE, LINEAR, BRANCH, COMPLICATE = SegmentKind
# A bridge between two branches: neither series nor parallel.
BRIDGE = ((0, 1), (0, 2), (1, 2), (1, 3), (2, 3))


def tree_of(*edges: tuple[int, int], costs: tuple[int, ...] | None = None) -> DivisionTree:
    """The tree of a graph from vertex 0 to the last; a vertex costs 1 unless `costs` says otherwise."""
    count = 1 + max(chain.from_iterable(edges))
    return DivisionTree.of(ComputationGraph(costs or (1,) * count, edges, 0, count - 1))


def path(*vertices: int) -> list[tuple[int, int]]:
    return list(pairwise(vertices))


def bridged(edges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a bridge with a graph in place of its last edge."""
    inner = [(u + 2, v + 2) for u, v in edges]
    return [(0, 1), (0, 2), (1, 2), (1, max(v for _, v in inner)), *inner]


def test_an_edge_is_not_divided() -> None:
    root = tree_of((0, 1)).root
    assert (root.kind, root.members, root.joints, root.size, root.cost) == (EDGE, (), (), 0, 0)


def test_a_chain_is_linear_and_its_joints_are_in_order() -> None:
    root = tree_of(*path(0, 1, 2, 3), costs=(9, 2, 5, 9)).root
    assert (root.kind, root.joints, root.size, root.cost) == (LINEAR, (1, 2), 2, 7)


def test_two_ways_are_branches() -> None:
    tree = tree_of(*path(0, 1, 3), *path(0, 2, 3), costs=(9, 2, 5, 9))
    assert (tree.root.kind, tree.root.joints, tree.root.cost) == (BRANCH, (), 7)
    assert sorted(tree.segments[member].joints for member in tree.root.members) == [(1,), (2,)]


def test_a_skip_is_a_branch_of_its_own() -> None:
    tree = tree_of(*path(0, 1, 2, 3), (1, 3))
    assert [tree.segments[member].kind for member in tree.root.members] == [EDGE, BRANCH]
    branches = tree.segments[tree.root.members[1]].members
    assert sorted(tree.segments[member].kind for member in branches) == [EDGE, LINEAR]


def test_branches_beside_branches_are_all_members_of_one() -> None:
    tree = tree_of(*path(0, 1, 4), *path(0, 2, 4), *path(0, 3, 4), (0, 4))
    assert (tree.root.kind, len(tree.root.members)) == (BRANCH, 4)


def test_the_same_edge_twice_is_two_branches() -> None:
    tree = tree_of((0, 1), (0, 1))
    assert (tree.root.kind, len(tree.root.members), tree.root.cost) == (BRANCH, 2, 0)


def test_a_bridge_is_complicate_with_nothing_but_edges() -> None:
    tree = tree_of(*BRIDGE)
    assert (tree.root.kind, sorted(tree.root.joints), len(tree.root.members)) == (COMPLICATE, [1, 2], 5)
    assert tree.counts == {EDGE: 5, LINEAR: 0, BRANCH: 0, COMPLICATE: 1}


def test_a_complicate_segment_within_a_complicate_one() -> None:
    tree = tree_of(*bridged(bridged([(0, 1)])))
    kinds = [tree.segments[member].kind for member in tree.root.members]
    assert (tree.root.kind, sorted(tree.root.joints), tree.root.size) == (COMPLICATE, [1, 2], 4)
    assert sorted(kinds) == [COMPLICATE, EDGE, EDGE, EDGE, EDGE]


def test_complicate_segments_behind_each_other() -> None:
    tree = tree_of(*((u + 3 * n, v + 3 * n) for n in range(4) for u, v in BRIDGE))
    assert tree.root.joints == (3, 6, 9)
    assert [tree.segments[member].kind for member in tree.root.members] == [COMPLICATE] * 4


def test_every_segment_comes_after_its_members() -> None:
    tree = tree_of(*((u + 3 * n, v + 3 * n) for n in range(4) for u, v in BRIDGE), *path(0, 13, 12, 14))
    assert all(member < number for number, segment in enumerate(tree.segments) for member in segment.members)


def test_vertices_may_be_numbered_in_any_order() -> None:
    graph = ComputationGraph((1, 2, 4, 8), ((2, 3), (3, 0), (0, 1)), source=2, target=1)
    assert DivisionTree.of(graph).root.joints == (3, 0)


def test_ends_of_its_own_join_what_has_several() -> None:
    graph = ComputationGraph.with_ends([1, 2, 4], [(0, 2), (1, 2)])
    assert (graph.source, graph.target, graph.costs[3:]) == (3, 4, (0, 0))
    assert DivisionTree.of(graph).root.cost == 7


@pytest.mark.parametrize(
    ("costs", "edges", "ends", "message"),
    [
        ((1, -1), [(0, 1)], (0, 1), "negative"),
        ((1, 1), [(0, 2)], (0, 1), "leads to no vertex"),
        ((1, 1, 1), [(0, 2), (1, 2)], (0, 2), "source is not 0 alone"),
        ((1, 1, 1), [(0, 1), (0, 2)], (0, 2), "the target not 2 alone"),
        ((1,), [], (0, 0), "the target not 0 alone"),
        ((), [], (0, 0), "the target not 0 alone"),
        ((1, 1, 1, 1), [(0, 1), (1, 2), (2, 1), (2, 3)], (0, 3), "cycle"),
    ],
)
def test_what_is_no_computation_graph_is_refused(
    costs: tuple[int, ...], edges: list[tuple[int, int]], ends: tuple[int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ComputationGraph(costs, tuple(edges), *ends)


class TestSizes:
    """Nothing recurses: Python's limit is 1,000 levels."""

    def test_a_chain_of_10_000(self) -> None:
        root = tree_of(*path(*range(10_000))).root
        assert (root.kind, len(root.members), root.cost) == (LINEAR, 9999, 9998)

    def test_skips_within_skips(self) -> None:
        depth = 3000
        tree = tree_of(*path(*range(2 * depth)), *((n, 2 * depth - 1 - n) for n in range(depth - 1)))
        assert tree.counts == {EDGE: 3 * depth - 2, LINEAR: depth - 1, BRANCH: depth - 1, COMPLICATE: 0}

    def test_complicate_segments_within_complicate_ones(self) -> None:
        edges = [(0, 1)]
        for _ in range(50):
            edges = bridged(edges)
        assert tree_of(*edges).counts == {EDGE: 201, LINEAR: 0, BRANCH: 0, COMPLICATE: 50}

    def test_complicate_segments_in_a_row(self) -> None:
        tree = tree_of(*((u + 3 * n, v + 3 * n) for n in range(1000) for u, v in BRIDGE))
        assert tree.counts == {EDGE: 5000, LINEAR: 1, BRANCH: 0, COMPLICATE: 1000}


class TestCore:
    @staticmethod
    def found(*after: list[int]) -> list[tuple[int, int, list[int]]]:
        return [(segment.source, segment.target, segment.inside) for segment in core_segments(after)]

    def test_the_whole_graph_where_there_is_none_within(self) -> None:
        assert self.found([1, 2], [2, 3], [3], []) == [(0, 3, [1, 2])]

    def test_segments_behind_each_other(self) -> None:
        found = self.found([1, 2], [2, 3], [3], [4, 5], [5, 6], [6], [])
        assert found[:2] == [(0, 3, [1, 2]), (3, 6, [4, 5])]

    def test_a_segment_within_one_comes_first(self) -> None:
        # The bridge of 1, 2, 3, 4, in place of an edge from 1 to 4 in a larger one.
        assert self.found([1, 4], [2, 3, 5], [3, 4], [4], [5], []) == [(1, 4, [2, 3]), (0, 5, [1, 2, 3, 4])]

    def test_an_edge_has_none(self) -> None:
        assert self.found([1], []) == []
