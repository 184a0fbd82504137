"""Graphs that are too large for a method are refused before memory runs out, with the count and what to use instead."""

from __future__ import annotations

import pytest

from remat_cli.core.graph import Graph, Kind, Phase
from remat_cli.core.problem import Budget, Observer, Planner, Problem
from remat_cli.errors import PlannerRefuses, UsageError
from remat_cli.planners import PLANNERS
from remat_cli.planners.published.lower_sets import families, transitions
from remat_cli.planners.published.lower_sets.chen import Chen
from remat_cli.planners.published.lower_sets.dp_planners import ApproxDP, ExactDP
from remat_cli.planners.published.lower_sets.exhaustive import Exhaustive
from tests.graphs import diamond, graph_of, op, training_chain


def refusal(planner: Planner, graph: Graph) -> PlannerRefuses:
    with pytest.raises(PlannerRefuses) as caught:
        planner.plan(Problem(graph, Budget(1)), Observer())
    return caught.value


def side_by_side(count: int) -> Graph:
    """`count` forward ops that do not read each other: 2^count lower sets."""
    forward = [op(f"f{i}", "", f"t{i}") for i in range(count)]
    return graph_of(*forward, op("loss", "t0", "g", phase=Phase.BACKWARD), kind=Kind.TRAINING)


def test_too_many_lower_sets() -> None:
    refused = refusal(ExactDP(max_lower_sets=1000), side_by_side(20))
    # 1 + 20 + 190 of at most two ops; of the 1140 of three enough to see that it is more.
    assert refused.message.startswith("'test' has too many lower sets to try them all: 12")
    assert "with up to 3 of 20 forward ops" in refused.message
    assert "at most 1000" in refused.message
    assert "approx_dp" in refused.hint


def test_a_layer_that_would_not_fit_in_memory_is_not_completed() -> None:
    # The third layer has 1.3 million sets, the fourth 650 million.
    refused = refusal(ExactDP(max_lower_sets=100), side_by_side(200))
    assert "of 200 forward ops" in refused.message


def test_as_many_lower_sets_as_allowed_are_taken() -> None:
    problem = Problem(side_by_side(4), Budget(100))
    assert ExactDP(max_lower_sets=16).plan(problem, Observer()).schedule is not None
    with pytest.raises(PlannerRefuses, match="16 were found with up to 4 of 4 forward ops"):
        ExactDP(max_lower_sets=15).plan(problem, Observer())


def test_too_many_steps_between_lower_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "_MOST_STEPS", 10)
    refused = refusal(ExactDP(), training_chain(6))
    assert "the 7 lower sets of 'test' have too many steps between them: 15 were found" in refused.message
    assert "approx_dp" in refused.hint


@pytest.mark.parametrize("planner", [ApproxDP(), ExactDP(), Chen()], ids=["approx_dp", "exact_dp", "chen"])
def test_too_many_forward_ops(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_MOST_VERTICES", 5)
    refused = refusal(planner, training_chain(6))
    assert "6 forward ops" in refused.message
    assert "dtr" in refused.hint


def test_too_many_chains_by_the_number_of_ops() -> None:
    refused = refusal(Exhaustive(), training_chain(14))
    assert "14 forward ops and at least 2^14 chains" in refused.message
    assert "exact_dp" in refused.hint


def test_too_many_chains_by_counting_them() -> None:
    refused = refusal(Exhaustive(max_chains=200), side_by_side(5))
    assert "5 forward ops and more than 200 chains" in refused.message


@pytest.mark.parametrize("name", ["exact_dp", "exhaustive", "chen"])
def test_no_backward_ops(name: str) -> None:
    refused = refusal(PLANNERS[name](), diamond())
    assert refused.message == f"{name} plans training graphs, but 'test' has no backward ops"
    assert "dtr" in refused.hint


@pytest.mark.parametrize(
    ("planner", "option"),
    [(ExactDP, "max_lower_sets"), (ExactDP, "time_slots"), (Exhaustive, "max_chains"), (Chen, "candidates")],
)
def test_nonsense_options(planner: type[Planner], option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} is -1"):
        planner(**{option: -1})
