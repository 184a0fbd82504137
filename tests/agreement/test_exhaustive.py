"""The lower-set planners against the one that tries every chain of lower sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Observer, Planner, Problem, Scope, Status
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import Solution, solve
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.published.lower_sets.chen import Chen
from remat_cli.planners.published.lower_sets.dp_planners import ApproxDP, ExactDP
from remat_cli.planners.published.lower_sets.exhaustive import Chains, Exhaustive
from remat_cli.planners.published.lower_sets.options import BudgetModel, Strategy
from remat_cli.planners.shared.forward_part import ForwardPart
from tests.graphs import problems, training_chain, training_graphs, training_unet

PLANNERS: dict[str, type[ApproxDP | ExactDP | Chen]] = {"approx_dp": ApproxDP, "exact_dp": ExactDP, "chen": Chen}


def solved(problem: Problem, planner: Planner) -> Solution | None:
    """Solve; None where the graph is refused: it has too many chains."""
    try:
        return solve(problem, planner)
    except PlannerRefuses:
        return None


@pytest.mark.parametrize("strategy", Strategy)
@given(problem=problems(training_graphs(max_forward_ops=6)))
def test_exact_dp_is_feasible_in_the_paper_model_where_some_chain_is(strategy: Strategy, problem: Problem) -> None:
    exact = solved(problem, ExactDP(strategy=strategy, budget_model=BudgetModel.PAPER))
    truth = solved(problem, Exhaustive(strategy=strategy, budget_model=BudgetModel.PAPER))
    if exact is not None and truth is not None:
        assert (exact.status is Status.INFEASIBLE) == (truth.status is Status.INFEASIBLE)


@pytest.mark.parametrize("graph", [training_chain(7), training_unet(3)], ids=["chain", "unet"])
def test_exact_dp_and_exhaustive_have_the_same_smallest_budget_in_the_paper_model(graph: Graph) -> None:
    chains = Chains(ForwardPart.of(graph, "a test"), None, most=10_000).all()
    smallest = graph.fixed_bytes + min(chain.peak for chain in chains)
    for planner in (ExactDP(budget_model=BudgetModel.PAPER), Exhaustive(budget_model=BudgetModel.PAPER)):
        below, at = (planner.plan(Problem(graph, Budget(budget)), Observer()) for budget in (smallest - 1, smallest))
        assert below.status is Status.INFEASIBLE
        assert below.scope is Scope.PLANNER
        assert at.status is Status.FEASIBLE


@pytest.mark.parametrize("name", PLANNERS)
@given(problem=problems(training_graphs(max_forward_ops=6)), liveness=st.booleans())
def test_no_planner_of_lower_sets_beats_all_chains(name: str, problem: Problem, liveness: bool) -> None:
    solution = solved(problem, PLANNERS[name](liveness=liveness))
    truth = solved(problem, Exhaustive(liveness=liveness))
    if solution is None or truth is None:
        return
    if solution.trace is not None:
        assert truth.trace is not None
        assert truth.trace.time <= solution.trace.time
    if solution.closest is not None and truth.closest is not None:
        assert truth.closest.peak_bytes <= solution.closest.peak_bytes


@given(problem=problems(training_graphs(max_forward_ops=6)))
def test_exhaustive_proves_its_answer_in_the_simulated_model(problem: Problem) -> None:
    claim = Exhaustive().plan(problem, Observer())
    assert claim.status in (Status.OPTIMAL, Status.INFEASIBLE)
    assert claim.scope is Scope.PLANNER


def smallest_peak(graph: Graph, planner: Planner) -> int:
    closest = planner.plan(Problem(graph, Budget(1)), Observer()).closest
    assert closest is not None
    return simulate(graph, closest).peak_bytes


@pytest.mark.parametrize("planner", [*PLANNERS.values(), Exhaustive])
@pytest.mark.parametrize("graph", [training_chain(8), training_unet(3)], ids=["chain", "unet"])
def test_without_liveness_the_smallest_peak_is_larger(
    planner: type[ApproxDP | ExactDP | Chen | Exhaustive], graph: Graph
) -> None:
    assert smallest_peak(graph, planner(liveness=False)) > smallest_peak(graph, planner())
