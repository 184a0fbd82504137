"""The search over B of equation 2: of both families, literally as the paper has it, and by simulated peaks."""

from __future__ import annotations

import pytest

from remat_cli.core.problem import Budget, Observer, Problem, Scope, Status
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of
from remat_cli.errors import PlannerRefuses, UsageError
from remat_cli.planners.published.lower_sets.dp_planners import ApproxDP, ExactDP
from remat_cli.planners.published.lower_sets.exhaustive import Chains, Exhaustive
from remat_cli.planners.published.lower_sets.families import pruned_family
from remat_cli.planners.published.lower_sets.options import BudgetModel, Strategy
from remat_cli.planners.published.lower_sets.search import LowerSetSearch
from remat_cli.planners.shared.forward_part import ForwardPart
from tests.graphs import training_chain, training_unet
from tests.plans import RecordingObserver

GRAPH = training_unet(4)
PLAIN = baseline_of(GRAPH).peak_bytes
FAMILIES: list[type[ApproxDP | ExactDP]] = [ApproxDP, ExactDP]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_search_goes_from_the_smallest_b_to_a_plan_that_fits(family: type[ApproxDP | ExactDP]) -> None:
    told = RecordingObserver()
    result = family().plan(Problem(GRAPH, Budget(PLAIN - 4)), told)
    assert told.phases == [
        "searching the smallest B of equation 2",
        "searching B for the plan that fits with the least overhead",
        "improving the plan",
    ]
    assert result.schedule is not None
    assert simulate(GRAPH, result.schedule).peak_bytes <= PLAIN - 4


def test_a_plain_run_that_fits_needs_no_search() -> None:
    sets, told = pruned_family(ForwardPart.of(GRAPH, "a test")), RecordingObserver()
    search = LowerSetSearch(Problem(GRAPH, Budget(PLAIN)), sets, ApproxDP(), told)
    assert search.run().status is Status.OPTIMAL
    assert told.phases == []
    assert search.plans.count == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_as_the_paper_has_it_the_smallest_b_is_named_where_none_fits(family: type[ApproxDP | ExactDP]) -> None:
    planner = family(budget_model=BudgetModel.PAPER)
    result = planner.plan(Problem(GRAPH, Budget(10)), Observer())
    assert (result.status, result.scope) == (Status.INFEASIBLE, Scope.PLANNER)
    assert "equation 2 admits no plan of this family below B = " in result.reason


def test_both_strategies_are_the_two_ends() -> None:
    assert Strategy.BOTH.ends == (Strategy.TIME, Strategy.MEMORY)
    assert Strategy.TIME.ends == (Strategy.TIME,)


@pytest.mark.parametrize("option", ["candidates", "time_limit"])
def test_options_below_what_makes_sense_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=option):
        ApproxDP(**{option: -1})  # type: ignore[arg-type]


def test_exhaustive_refuses_what_has_too_many_chains() -> None:
    with pytest.raises(PlannerRefuses, match="chains"):
        Exhaustive(max_chains=3).plan(Problem(training_chain(4), Budget(5)), Observer())
    # A chain of 4 ops is cut in any of 3 places, or the loss's: 2 to the power of how many there are.
    forward = ForwardPart.of(training_chain(4), "a test")
    assert len(list(Chains(forward, None, most=1000).all())) == 8


def test_exhaustive_proves_the_best_of_its_plans() -> None:
    graph = training_chain(4)
    result = Exhaustive().plan(Problem(graph, Budget(4)), Observer())
    assert (result.status, result.stats["plans"]) == (Status.OPTIMAL, 8)
    assert result.bound is not None
    assert (result.bound.time, result.bound.scope) == (graph.total_time + 1, Scope.PLANNER)
