"""What recomputation takes at the least, on graphs small enough to count; tests/agreement has the oracle's word."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Basis, Status
from remat_cli.core.solve import baseline_of
from remat_cli.planners.retention.any_order_bound import Ancestry, any_order_bound
from remat_cli.planners.retention.cover_bound import NO_BOUND, CoverGaps, RerunBound, cheapest_cover, cover_bound
from remat_cli.planners.retention.cut_bound import CutSearch
from remat_cli.planners.shared import cp_sat
from remat_cli.planners.shared.cp_sat import SolverOutcome
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import sums
from remat_cli.planners.shared.stages import Stages
from tests.graphs import diamond, graph_of, op, scaled, small_graphs, training_chain

AMPLE = Limits.of(1e5)


def test_of_two_bounds_the_one_that_says_more_is_stronger() -> None:
    none_fits, two, three = RerunBound(None, Basis.TWO_SOLVERS), RerunBound(2), RerunBound(3, Basis.ONE_SOLVER)
    assert two.stronger(three) is three.stronger(two) is three
    assert none_fits.stronger(three) is three.stronger(none_fits) is none_fits


@pytest.mark.parametrize(
    ("outcome", "bound"),
    [
        (SolverOutcome(Status.INFEASIBLE, basis=Basis.TWO_SOLVERS), RerunBound(None, Basis.TWO_SOLVERS)),
        (SolverOutcome(Status.OPTIMAL, bound=7), RerunBound(7, Basis.ONE_SOLVER)),
        (SolverOutcome(Status.UNKNOWN), RerunBound(0, Basis.ONE_SOLVER)),
    ],
)
def test_what_a_model_proves_is_a_bound(outcome: SolverOutcome, bound: RerunBound) -> None:
    assert RerunBound.of(outcome) == bound


@pytest.mark.parametrize("factor", [1, 10**9, 2**40])
def test_a_chain_in_one_byte_less_runs_one_op_again(factor: int) -> None:
    graph = scaled(training_chain(4), factor)
    room = baseline_of(graph).peak_bytes - graph.fixed_bytes - 1
    stages = Stages.of(graph)
    for bound in (
        cover_bound(stages, room, AMPLE),
        CutSearch.in_fixed_order(stages, room).turn(AMPLE).confirmed(AMPLE),
        CutSearch.in_any_order(stages, room).turn(AMPLE).confirmed(AMPLE),
        any_order_bound(graph, room, AMPLE),
    ):
        assert bound.extra == 1
    assert cover_bound(stages, room + 1, AMPLE) == NO_BOUND


def test_what_must_not_run_again_makes_it_impossible() -> None:
    graph = graph_of(
        op("a", "", "x", recomputable=False),
        op("b", "x", "y", recomputable=False),
        op("c", "y", "z", recomputable=False),
        op("d", "x z", "w"),
        sizes={"x": 5, "y": 5, "z": 5},
    )
    assert cover_bound(Stages.of(graph), 14, AMPLE).extra is None
    assert any_order_bound(graph, 14, AMPLE).extra is None
    assert cover_bound(Stages.of(graph), 15, AMPLE).extra == 0


def test_the_cheapest_gaps_that_save_enough_are_chosen() -> None:
    graph = graph_of(
        op("a", "", "ta", time=3), op("b", "", "tb", time=5), op("c", "ta tb", "tc"), sizes={"ta": 4, "tb": 4, "tc": 1}
    )
    stages = Stages.of(graph)
    gaps = CoverGaps(*(np.array(values) for values in ([0, 1], [1, 1], [2, 2], [0, 0])))
    for lacking, least in ((0, 0), (1, 3), (4, 3), (5, 8), (8, 8), (9, None)):
        assert cheapest_cover(stages, gaps, np.array([0, lacking, 0]), AMPLE).extra == least


def test_bytes_below_two_to_the_53_add_up_to_whole_numbers_above() -> None:
    # Of floating-point numbers, 2^53 and 1 make 2^53.
    values = np.array([2**53, 1, 1, 2**61, 3])
    assert sums(np.array([0, 0, 0, 1, 1]), values, 3).tolist() == [2**53 + 2, 2**61 + 3, 0]


@given(graph=small_graphs())
def test_ancestors_are_those_from_which_a_path_leads(graph: Graph) -> None:
    ancestry = Ancestry(Stages.of(graph), 0)
    before: list[set[int]] = []
    for each in graph.ops:
        makers = {graph.arrays.op_index[graph.producer[t].name] for t in each.inputs if t in graph.producer}
        before.append(makers.union(*(before[maker] for maker in makers)))
    for number, ancestors in enumerate(before):
        assert set(np.flatnonzero(ancestry.members(ancestry.ancestors[number])).tolist()) == ancestors
        after = {later for later, those in enumerate(before) if number in those}
        assert set(np.flatnonzero(ancestry.members(ancestry.descendants[number])).tolist()) == after


def test_what_is_needed_later_in_any_order_is_lacking() -> None:
    # While b runs, ta (4) is there and tb (2) is made; c may come later. While d runs: both, and its own byte.
    lacking = Ancestry(Stages.of(diamond()), 5).lacking
    assert lacking.tolist() == [4 - 5, 6 - 5, 6 - 5, 5 - 5]
    assert Ancestry(Stages.of(diamond()), 5).path.tolist()[:1] != []


@pytest.mark.parametrize("limits", [Limits.of(0.0), Limits.of(1e5, 0)], ids=["clock", "work"])
def test_where_no_room_is_left_bounds_end_without_asking_a_solver(
    limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cp_sat._CpSatSearch, "run", lambda self: pytest.fail("the solver was asked"))
    graph = training_chain(30)
    room = baseline_of(graph).peak_bytes // 2
    stages = Stages.of(graph)
    for bound in (
        cover_bound(stages, room, limits),
        CutSearch.in_fixed_order(stages, room).turn(limits).confirmed(limits),
        CutSearch.in_any_order(stages, room).turn(limits).confirmed(limits),
        any_order_bound(graph, room, limits),
    ):
        assert bound.extra is not None
        assert bound.extra <= 30
