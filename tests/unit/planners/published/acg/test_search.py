"""From stored sets to a plan that fits: which are tried, and what becomes of them."""

from __future__ import annotations

from remat_cli.core.problem import Budget, Observer, PlanResult, Problem, Status
from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of
from remat_cli.planners.published.acg.planner import ACG
from remat_cli.planners.published.acg.search import acg_plans
from tests.graphs import training_chain, training_unet

GRAPH = training_unet(4)


def searched(missing: int, **options: object) -> PlanResult:
    budget = Budget(baseline_of(GRAPH).peak_bytes - missing)
    return ACG(**options).plan(Problem(GRAPH, budget), Observer())  # type: ignore[arg-type]


def test_a_plain_run_that_fits_costs_what_storing_everything_does() -> None:
    result = searched(0)
    assert (result.status, result.schedule) == (Status.OPTIMAL, plain_run(GRAPH))
    (cost,) = result.model_figures
    # Every forward tensor, one level after the other, and the input of the loss.
    assert cost.value == sum(GRAPH.tensors[t].bytes for op in GRAPH.ops if op.name[0] in "dub" for t in op.outputs)


def test_stored_sets_are_tried_until_as_many_as_allowed() -> None:
    few, many = searched(4, candidates=1), searched(4, candidates=50)
    assert few.stats["plans"] < many.stats["plans"]
    assert many.status is Status.FEASIBLE


def test_what_a_plan_has_to_spare_is_used_to_recompute_less() -> None:
    times = []
    for improve in (False, True):
        schedule = searched(4, improve=improve).schedule
        assert schedule is not None
        times.append(simulate(GRAPH, schedule).time)
    assert times[1] <= times[0]


def test_plans_of_a_graph_are_made_once_for_all_budgets() -> None:
    assert acg_plans(GRAPH, share_inputs=True) is acg_plans(GRAPH, share_inputs=True)
    first, again = (list(acg_plans(training_chain(6), share_inputs=False).plans(5)) for _ in range(2))
    assert [cost for _, cost in first] == [cost for _, cost in again]
