"""Chen's segments, worked out by hand."""

from __future__ import annotations

import pytest

from remat_cli.core.graph import Graph, Kind, Op, Phase
from remat_cli.core.problem import Budget, Observer, Problem
from remat_cli.core.solve import baseline_of, solve
from remat_cli.planners.published.lower_sets.chen import BudgetRule, Chen, all_segmentations, prefixes_at_cuts, segments
from remat_cli.planners.shared.forward_part import ForwardPart
from tests.graphs import graph_of, op, training_chain


def with_a_backward(*forward: Op) -> Graph:
    return graph_of(*forward, op("loss", forward[-1].outputs[0], "g", phase=Phase.BACKWARD), kind=Kind.TRAINING)


def prefixes(graph: Graph) -> list[list[str]]:
    forward = ForwardPart.of(graph, "a test")
    names = [graph.ops[number].name for number in forward.ops]
    return [[names[v] for v in row.nonzero()[0]] for row in prefixes_at_cuts(forward).members]


def test_a_chain_can_be_cut_after_every_inner_op() -> None:
    assert prefixes(training_chain(4)) == [[], ["f1", "f2"], ["f1", "f2", "f3"], ["f1", "f2", "f3", "f4"]]


def test_a_diamond_can_be_cut_only_where_its_branches_have_joined() -> None:
    graph = with_a_backward(
        op("a", "", "ta"), op("b", "ta", "tb"), op("c", "ta", "tc"), op("d", "tb tc", "td"), op("e", "td", "te")
    )
    assert prefixes(graph) == [[], ["a", "b", "c", "d"], ["a", "b", "c", "d", "e"]]


def test_order_finishes_one_branch_before_it_begins_the_next() -> None:
    # `head1` and `head2` hang off `a`; the input order has them after `b`.
    graph = with_a_backward(
        op("a", "", "ta"), op("b", "ta", "tb"), op("head1", "ta", "th1"), op("c", "tb", "tc"), op("head2", "th1", "th2")
    )
    assert prefixes(graph) == [[], ["a"], ["a", "b"], ["a", "b", "head1", "c"], ["a", "b", "head1", "c", "head2"]]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, [1, 2, 3]), (1, [1, 3]), (2, [2, 3]), (3, [3])],
)
def test_a_segment_ends_where_it_first_holds_more_than_its_size(size: int, expected: list[int]) -> None:
    assert segments([0, 2, 3, 4], size) == expected


def test_all_segmentations_are_those_of_every_size() -> None:
    ends = [0, 5, 6, 13, 13, 20, 22, 40]
    by_size = [segments(ends, size) for size in range(41)]
    assert all_segmentations(ends) == [chain for n, chain in enumerate(by_size) if chain not in by_size[:n]]


def test_sqrt_n_cuts_nine_equal_ops_after_the_fourth_and_the_eighth() -> None:
    # b = 9 bytes / 3, and a segment ends where it holds more than b.
    graph = training_chain(9)
    solution = solve(Problem(graph, Budget(baseline_of(graph).peak_bytes)), Chen(budget_rule=BudgetRule.SQRT_N))
    assert solution.trace is not None
    again = [name for name, runs in solution.trace.runs.items() if runs == 2]
    assert again == ["f1", "f2", "f3", "f5", "f6", "f7"]


def test_sweep_keeps_the_plan_of_least_time_that_fits() -> None:
    graph = training_chain(12)
    loose, tight = (solve(Problem(graph, Budget(budget)), Chen()) for budget in (14, 9))
    assert loose.trace is not None
    assert tight.trace is not None
    assert loose.trace.time == baseline_of(graph).time
    assert tight.trace.time > loose.trace.time


def test_candidates_are_taken_evenly() -> None:
    result = Chen(candidates=3).plan(Problem(training_chain(12), Budget(1)), Observer())
    assert result.stats["plans"] == 3
    assert result.closest is not None
