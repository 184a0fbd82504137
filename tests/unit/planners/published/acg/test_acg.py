"""`acg`: stored sets on graphs that can be worked out by hand, and what becomes of them as plans."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given

from remat_cli.core.graph import Graph, Kind, Phase
from remat_cli.core.problem import Budget, ModelFigure, Observer, Problem, Status
from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of, solve
from remat_cli.errors import PlannerRefuses, UsageError
from remat_cli.planners.published.acg.division_tree import ComputationGraph, DivisionTree
from remat_cli.planners.published.acg.planner import ACG
from remat_cli.planners.published.acg.search import SegmentRuns
from remat_cli.planners.published.acg.solver import ForwardDivision, StoredSets
from remat_cli.planners.shared.forward_part import ForwardPart
from tests.graphs import chain, graph_of, op, training_chain, training_graphs, training_unet


def sets_of(costs: tuple[int, ...], *edges: tuple[int, int]) -> StoredSets:
    return StoredSets(DivisionTree.of(ComputationGraph(costs, edges, 0, len(costs) - 1)))


def chain_sets(*costs: int) -> StoredSets:
    return sets_of(costs, *pairwise(range(len(costs))))


class TestStoredSets:
    def test_the_example_of_the_paper(self) -> None:
        # Figure 2 of the supplement; its 42 counts the two ends as well, 10 each.
        sets = chain_sets(10, 8, 9, 6, 7, 10)
        assert (sets.vertices(sets.best), sets.best.stored, sets.best.largest) == ([2], 9, 13)

    def test_two_vertices(self) -> None:
        sets = chain_sets(5, 5)
        assert (sets.vertices(sets.best), sets.best.cost) == ([], 0)

    def test_of_a_complicate_segment_all_connecting_vertices_are_stored_or_none(self) -> None:
        sets = sets_of((9, 3, 4, 9), (0, 1), (0, 2), (1, 2), (1, 3), (2, 3))
        assert [(choice.stored, choice.largest) for choice in sets.spread(10)] == [(0, 7), (7, 0)]
        assert sets.best.cost == 7
        assert sets.vertices(sets.within(6)) == [1, 2]

    def test_branches_between_the_same_stored_vertices_are_segments_of_their_own(self) -> None:
        sets = sets_of((1, 5, 6, 1), (0, 1), (0, 2), (1, 3), (2, 3))
        assert (sets.vertices(sets.best), sets.best.stored, sets.best.largest) == ([], 0, 6)

    def test_a_branch_too_large_has_both_its_ends_stored(self) -> None:
        # 0 - 1 - (2 | 3) - 4 - 5, where the branches together cost more than the limit, each alone does not.
        sets = sets_of((0, 1, 6, 6, 1, 0), (0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5))
        choice = sets.within(8)
        assert (sets.vertices(choice), choice.largest) == ([1, 4], 6)

    def test_equal_costs_up_to_a_limit(self) -> None:
        choice = chain_sets(*[1] * 12).within(3)
        assert (choice.stored, choice.largest) == (2, 3)  # ten vertices inside: 3 + 1 + 3 + 1 + 2

    def test_a_chain_of_10_000_vertices(self) -> None:
        rng = random.Random(0)
        costs = [rng.randrange(1, 10**6) for _ in range(10_000)]
        sets = chain_sets(*costs)
        best = sets.best
        stored = sets.vertices(best)
        segments = [sum(costs[a + 1 : b]) for a, b in pairwise([0, *stored, 9999])]
        assert (best.stored, best.largest) == (sum(costs[v] for v in stored), max(segments))
        assert sets.limits_tried < 200

    def test_a_spread_keeps_to_its_number_and_has_both_ends(self) -> None:
        choices = chain_sets(*range(1, 200)).spread(10)
        assert len(choices) <= 10
        assert choices[0].stored == 0
        assert choices[-1].largest == 0
        assert all(a.stored < b.stored and a.largest > b.largest for a, b in pairwise(choices))


def masked_layers(count: int) -> Graph:
    """The training step of a chain of layers of two ops; all but the first read one mask."""
    forward = [op("mask", "x", "m")]
    backward = []
    for i in range(1, count + 1):
        forward += [op(f"wide{i}", f"a{i - 1} m" if i > 1 else "x", f"w{i}"), op(f"narrow{i}", f"w{i} m", f"a{i}")]
        backward += [
            op(f"grad_wide{i}", f"w{i} gw{i}", f"g{i - 1}", phase=Phase.BACKWARD, grad_of=f"wide{i}"),
            op(f"grad_narrow{i}", f"a{i} g{i} m", f"gw{i}", phase=Phase.BACKWARD, grad_of=f"narrow{i}"),
        ]
    loss = op("loss", f"a{count}", f"g{count}", phase=Phase.BACKWARD)
    sizes = {f"w{i}": 10 for i in range(1, count + 1)}
    return graph_of(*forward, loss, *reversed(backward), sizes=sizes, kind=Kind.TRAINING)


class TestPlans:
    def test_the_plan_of_the_paper_on_a_chain(self) -> None:
        graph = training_chain(10, size=10)
        solution = solve(Problem(graph, Budget(70)), ACG(candidates=1, improve=False))
        assert solution.trace is not None
        # Two of ten are stored between three segments, of 3, 3 and 2.
        assert [figure.value for figure in solution.result.model_figures] == [50]
        assert max(solution.trace.runs.values()) == 2

    def test_what_the_budget_has_room_for_is_not_recomputed(self) -> None:
        problem = Problem(training_chain(10, size=10), Budget(100))
        paper, improved = (solve(problem, ACG(improve=improve)) for improve in (False, True))
        assert paper.trace is not None
        assert improved.trace is not None
        assert improved.trace.time < paper.trace.time

    def test_the_plain_run_where_it_fits(self) -> None:
        graph = training_unet(3)
        problem = Problem(graph, Budget(baseline_of(graph).peak_bytes))
        result = ACG().plan(problem, Observer())
        assert (result.status, result.schedule) == (Status.OPTIMAL, plain_run(graph))
        made = sum(graph.tensors[name].bytes for each in graph.ops if each.grad_of is None for name in each.outputs)
        loss = graph.tensors["gu1"].bytes
        assert result.model_figures == (
            ModelFigure("stored + largest segment (the paper's cost)", made - loss, "bytes"),
        )

    def test_below_all_its_plans_it_shows_the_closest(self) -> None:
        result = ACG().plan(Problem(training_chain(12, size=10), Budget(1)), Observer())
        assert result.status is Status.UNKNOWN
        assert result.closest is not None
        assert "no proof" in result.reason

    def test_a_mask_that_all_layers_read_does_not_tie_them_together(self) -> None:
        graph = masked_layers(8)
        tied, free = (
            simulate(graph, result.closest).peak_bytes
            for share_inputs in (False, True)
            if (result := ACG(share_inputs=share_inputs).plan(Problem(graph, Budget(1)), Observer())).closest
        )
        assert free < tied <= baseline_of(graph).peak_bytes

    def test_a_graph_without_a_backward_is_refused(self) -> None:
        with pytest.raises(PlannerRefuses, match="acg plans training graphs"):
            ACG().plan(Problem(chain(1, 1), Budget(1)), Observer())

    @pytest.mark.parametrize("options", [{"candidates": -1}, {"time_limit": -1.0}])
    def test_options_below_their_least_are_refused(self, options: dict[str, int]) -> None:
        with pytest.raises(UsageError, match=next(iter(options))):
            ACG(**options)  # type: ignore[arg-type]


class TestOrders:
    def test_branches_are_not_mixed(self) -> None:
        names = ["a1", "b1", "a2", "b2"]
        graph = graph_of(
            *(op(name, "x" if name[1] == "1" else f"t{name[0]}1", f"t{name}") for name in names),
            op("join", "ta2 tb2", "y"),
            op("loss", "y", "gy", phase=Phase.BACKWARD),
            *(
                op(f"grad_{name}", f"t{name} gy", f"g{name}", phase=Phase.BACKWARD, grad_of=name)
                for name in reversed(names)
            ),
            kind=Kind.TRAINING,
        )
        forward = ForwardPart.of(graph, "a test")
        orders = SegmentRuns(forward).orders([4])
        firsts = [order.names[:5] for order in orders]
        assert [[name for name in first if name != "join"][:4] for first in firsts] == [names, ["a1", "a2", "b1", "b2"]]
        grads = [name for name in orders[1].names if name.startswith("grad")]
        assert grads == ["grad_b2", "grad_b1", "grad_a2", "grad_a1"]

    @given(graph=training_graphs(max_forward_ops=8))
    def test_every_stored_set_becomes_plans_that_run_nothing_three_times(self, graph: Graph) -> None:
        forward = ForwardPart.of(graph, "a test")
        paper = ForwardDivision.of(forward)
        other = paper.without_shared_inputs()
        runs = SegmentRuns(forward)
        for division in [paper] if other is None else [paper, other]:
            for choice in division.choices(20):
                for order in runs.orders(division.stored(choice)):
                    trace = simulate(graph, order.schedule())
                    assert max(trace.runs.values()) <= 2
                    assert all(trace.runs[graph.ops[forward.ops[v]].name] == 1 for v in division.stored(choice))
