"""Cuts: where they are taken, what a model of them finds, and what it costs; tests/agreement has the oracle's word."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from remat_cli.core.problem import Basis
from remat_cli.core.simulate import simulate
from remat_cli.planners.retention import any_order_bound
from remat_cli.planners.retention.any_order_bound import Ancestry
from remat_cli.planners.retention.cover_bound import NO_BOUND, RerunBound
from remat_cli.planners.retention.cut_bound import CutSearch
from remat_cli.planners.retention.cut_model import CutModel
from remat_cli.planners.shared import second_solver
from remat_cli.planners.shared.cp_model import CpModel
from remat_cli.planners.shared.cp_sat import first_opinion
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Ints
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Stages
from tests.graphs import diamond, graph_of, op, training_chain

AMPLE = Limits.of(1e5)


def test_in_any_order_only_what_a_cut_needs_surely_runs_before_it() -> None:
    model = CutModel.in_any_order(Stages.of(diamond()), 5, np.array([1, 3]))  # ops a, b, c, d: cuts at b and d
    assert model.first.tolist() == [0, 0, 0, 1]
    assert model.latest.tolist() == [0, 0, 1, 1]  # c may run before b or after it
    assert model.counted == 1


CHAIN = training_chain(10)
ROOM = 4  # bytes; the plain run takes 11
STAGES = Stages.of(CHAIN)


def test_several_moments_say_more_than_the_worst_one() -> None:
    one = any_order_bound.any_order_bound(CHAIN, ROOM, AMPLE).extra
    fixed = CutSearch.in_fixed_order(STAGES, ROOM).turn(AMPLE).bound.extra
    several = CutSearch.in_any_order(STAGES, ROOM).turn(AMPLE).bound.extra
    assert one is not None
    assert fixed is not None
    assert several is not None
    assert fixed >= several > one


@pytest.mark.parametrize("make", [CutModel.in_fixed_order, CutModel.in_any_order])
def test_the_sequence_of_a_solution_runs_again_what_it_says(make: Callable[[Stages, int, Ints], CutModel]) -> None:
    cuts = np.array([10, 13, 16])
    model = make(STAGES, ROOM, cuts)
    outcome = first_opinion(model.build(), AMPLE)
    assert outcome.values is not None
    assert outcome.bound is not None
    sequence = model.sequence(outcome.values)
    assert sequence.time - CHAIN.total_time == outcome.bound - model.counted > 0
    at_cuts = sequence.memory[~sequence.is_rerun][cuts]
    assert at_cuts.max() <= ROOM + CHAIN.fixed_bytes < sequence.peak


def test_an_op_that_runs_once_and_may_do_so_after_the_cut_is_not_run_again_there() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "x", "y", recomputable=False), op("c", "", "z", recomputable=False))
    model = CutModel.in_any_order(Stages.of(graph), 2, np.array([2]))
    outcome = first_opinion(model.build(), AMPLE)
    assert outcome.values is not None
    assert simulate(graph, model.sequence(outcome.values).schedule()).time == graph.total_time


def test_only_the_best_of_the_models_gets_a_second_opinion(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    models: list[RematSequence] = []

    def agrees(_: CpModel, bound: int | None, __: Limits) -> bool:
        asked.append(bound)
        return True

    monkeypatch.setattr(second_solver, "agrees", agrees)
    proof = CutSearch.in_any_order(STAGES, ROOM).turn(AMPLE, tell=models.append)
    assert len(models) > 1
    assert not asked
    assert proof.bound.basis is Basis.ONE_SOLVER
    bound = proof.confirmed(AMPLE)
    assert asked == [bound.extra]
    assert bound.basis is Basis.TWO_SOLVERS
    assert CutSearch.in_any_order(STAGES, ROOM).turn(AMPLE, known=100).confirmed(AMPLE).extra == 0
    assert len(asked) == 1


@pytest.mark.parametrize("room", [2, 3])
def test_where_any_plan_will_do_only_that_there_is_none_is_proven(room: int) -> None:
    best, any_one = CutSearch.in_any_order(STAGES, room), CutSearch.in_any_order(STAGES, room)
    none_fits = best.turn(AMPLE).bound.extra is None
    assert none_fits is (room == 2)
    proof = any_one.turn(AMPLE, takes_any_plan=True)
    assert any_one.has_ended
    assert proof.confirmed(AMPLE) == (RerunBound(None, Basis.TWO_SOLVERS) if none_fits else NO_BOUND)


def test_each_turn_goes_on_with_the_model_that_the_last_one_did_not_finish() -> None:
    whole, parts = CutSearch.in_any_order(STAGES, ROOM), CutSearch.in_any_order(STAGES, ROOM)
    sequences: list[RematSequence] = []
    proof = whole.turn(AMPLE, tell=sequences.append)
    bounds = [parts.turn(AMPLE, work=1e-9).bound.extra or 0 for _ in sequences]
    assert whole.has_ended
    assert not parts.has_ended
    assert bounds == sorted(bounds)
    assert parts.turn(AMPLE).bound == proof.bound
    assert parts.has_ended
    assert parts.turn(AMPLE) == parts.proof


def test_in_a_graph_too_large_for_them_the_sets_of_ops_are_not_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_order_bound, "_MOST_OPS", len(STAGES) - 1)
    monkeypatch.setattr(Ancestry, "ancestors", property(lambda _: pytest.fail("they were")))
    search = CutSearch.in_any_order(STAGES, ROOM)
    assert search.has_ended
    assert search.turn(AMPLE).bound == NO_BOUND
