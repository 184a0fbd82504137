"""The canonical strategy of a chain of lower sets, and what its plan costs."""

from __future__ import annotations

import pytest

from remat_cli.core.problem import Budget, Observer, Problem
from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of
from remat_cli.planners.published.lower_sets.chain_plans import ChainPlans, canonical_phases
from remat_cli.planners.published.lower_sets.families import pruned_family
from remat_cli.planners.shared.forward_part import ForwardPart
from tests.graphs import training_chain

GRAPH = training_chain(4)
FORWARD = ForwardPart.of(GRAPH, "a test")
SETS = pruned_family(FORWARD)  # {}, {f1}, {f1, f2}, ..., V


def names(phases: tuple[tuple[int, ...], ...]) -> list[list[str]]:
    return [[GRAPH.ops[number].name for number in phase] for phase in phases]


def plans(budget: int, *, liveness: bool = True) -> ChainPlans:
    return ChainPlans(Problem(GRAPH, Budget(budget)), SETS, liveness, Observer())


def test_blocks_run_forward_then_each_is_made_again_before_its_backward() -> None:
    assert names(canonical_phases(SETS, [2, 4])) == [
        ["f1", "f2"],
        ["f3", "f4"],
        # The last block is not dropped.
        ["loss", "b4", "b3"],
        # Of the first, f2 is the boundary, which stays.
        ["f1", "b2", "b1"],
    ]


def test_a_plan_is_measured_once_and_the_best_is_kept() -> None:
    measured = plans(4)
    halves = measured.measure([2, 4])
    assert measured.measure([2, 4]) is halves
    assert measured.count == 1
    whole = measured.measure([4])
    assert (whole.plan.time, whole.plan.peak_bytes) == (GRAPH.total_time, baseline_of(GRAPH).peak_bytes)
    assert measured.best_chain == (2, 4)
    assert measured.any_fits
    assert measured.merit(halves) < measured.merit(whole)


@pytest.mark.parametrize("liveness", [True, False])
def test_what_a_plan_costs_is_what_the_judge_measures(liveness: bool) -> None:
    for chain in ([4], [1, 4], [2, 4], [1, 3, 4], [1, 2, 3, 4]):
        plan = plans(100, liveness=liveness).measure(chain).plan
        trace = simulate(GRAPH, plan.schedule)
        assert (plan.time, plan.peak_bytes) == (trace.time, trace.peak_bytes)


def test_of_plans_that_do_not_fit_the_one_with_less_pressure_is_more_urgent() -> None:
    measured = plans(3)
    one, four = measured.measure([4]), measured.measure([1, 2, 3, 4])
    assert not measured.any_fits
    assert (measured.urgency(four) < measured.urgency(one)) == (four.pressure < one.pressure)
    assert plans(5).measure([4]).plan.schedule.computes == plain_run(GRAPH).computes
