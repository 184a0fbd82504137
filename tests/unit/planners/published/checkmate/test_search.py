"""The searches of checkmate and checkmate_lp: phases, repair, limits, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from remat_cli.core.problem import Budget, Observer, Problem, Scope, Status
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of, solve
from remat_cli.errors import PlannerRefuses, UsageError
from remat_cli.planners.published.checkmate import mip_solvers, staged_search
from remat_cli.planners.published.checkmate.options import RoundingRule, SolverName
from remat_cli.planners.published.checkmate.planner import Checkmate, CheckmateLP
from remat_cli.planners.published.checkmate.search import CheckmateSearch, RoundingSearch
from remat_cli.planners.published.checkmate.staged_plans import StagedRepair
from remat_cli.planners.published.checkmate.staged_search import StagedSearch
from remat_cli.planners.shared.limits import Limits
from tests.graphs import training_chain, training_unet
from tests.plans import RecordingObserver
from tests.unit.planners.published.checkmate.test_mip import each_solver

UNET = training_unet(3)
TIGHT = Problem(UNET, Budget(baseline_of(UNET).peak_bytes - 8))


def test_a_plan_comes_before_the_program() -> None:
    told = RecordingObserver()
    result = CheckmateSearch(TIGHT, Checkmate(), told).run()
    assert told.phases[:2] == ["dropping tensors until the rest fits", "solving the relaxation"]
    assert (result.status, result.bound and result.bound.scope) == (Status.OPTIMAL, Scope.FIXED_ORDER)
    assert result.stats["programs"] > 0


@pytest.mark.parametrize("rounding", RoundingRule)
def test_relaxations_are_rounded_and_bound_the_plan(rounding: RoundingRule) -> None:
    result = RoundingSearch(TIGHT, CheckmateLP(rounding=rounding, samples=2), Observer()).run()
    assert result.schedule is not None
    assert simulate(UNET, result.schedule).peak_bytes <= TIGHT.budget.device_bytes
    assert result.time_bound is not None
    assert UNET.total_time <= result.time_bound <= simulate(UNET, result.schedule).time
    assert result.stats["roundings"] >= 1


def test_repair_drops_tensors_until_a_plan_fits() -> None:
    search = StagedSearch(TIGHT, Checkmate(), Observer())
    assert search.plans.best is None
    search.repair.improve(search.plans.closest, changes=0)
    assert search.plans.best is None, "no change is allowed"
    search.repair.improve(search.plans.closest, changes=1000)
    assert search.plans.best is not None
    assert not search.plans.best.excess
    assert search.incumbent.best is not None
    assert search.incumbent.best.peak_bytes <= TIGHT.budget.device_bytes


def test_repair_leaves_out_recomputations_that_are_not_needed() -> None:
    ample = Problem(UNET, Budget(1000))
    search = StagedSearch(ample, Checkmate(), Observer())
    runs = np.zeros_like(search.plans.closest.runs) if search.plans.best is None else search.plans.best.runs.copy()
    runs[0, 3] = True
    plan = search.plans.judge(runs)
    assert plan.extra_time > 0
    StagedRepair(search.stages, search.plans, Limits.of(60.0)).improve(plan, changes=10)
    assert search.plans.best is not None
    assert search.plans.best.extra_time == 0


PLANNERS: list[type[Checkmate | CheckmateLP]] = [Checkmate, CheckmateLP]


@each_solver
@pytest.mark.parametrize("planner", PLANNERS)
def test_budget_that_only_much_recomputation_fits(solver: SolverName, planner: type[Checkmate | CheckmateLP]) -> None:
    # Worked by hand in the tests of the oracle, 16 - 12: the plain run takes 12.
    solution = solve(Problem(training_chain(4), Budget(3)), planner(solver=solver))
    assert solution.trace is not None
    assert solution.trace.time == 16


@each_solver
@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("seconds", [0.01, 0.1, 0.5])
def test_time_out_is_not_taken_for_a_proof(
    solver: SolverName, planner: type[Checkmate | CheckmateLP], seconds: float
) -> None:
    # A chain can always be run in three tensors, by recomputing it from the start for each backward op.
    solution = solve(Problem(training_chain(40), Budget(3)), planner(solver=solver, time_limit=seconds))
    assert solution.status is not Status.INFEASIBLE


@pytest.mark.parametrize("planner", PLANNERS)
def test_program_that_is_too_large_is_refused_unless_forced(
    planner: type[Checkmate | CheckmateLP], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(training_chain(6), Budget(5))
    monkeypatch.setattr(staged_search, "_MEMORY_LIMIT", 10_000)
    with pytest.raises(PlannerRefuses) as caught:
        planner().plan(problem, Observer())
    assert "variables" in caught.value.message
    assert "rows" in caught.value.message
    assert "B of memory" in caught.value.message
    assert "force=true" in caught.value.hint
    assert solve(problem, planner(force=True)).trace is not None


def test_huge_graph_is_refused_before_its_program_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    monkeypatch.setattr(StagedSearch, "build", lambda *given, **named: built.append((given, named)))
    with pytest.raises(PlannerRefuses):
        Checkmate().plan(Problem(training_chain(4000), Budget(10)), Observer())
    assert built == []


@pytest.mark.parametrize("planner", PLANNERS)
def test_missing_solver_is_reported(planner: type[Checkmate | CheckmateLP], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mip_solvers._IS_THERE, SolverName.HIGHS, lambda: False)
    with pytest.raises(UsageError, match="'highs' is not installed"):
        planner(solver=SolverName.HIGHS).plan(Problem(training_chain(4), Budget(5)), Observer())
    assert solve(Problem(training_chain(4), Budget(5)), planner()).trace is not None


@pytest.mark.parametrize(
    "options", [{"gap": -0.1}, {"gap": 1.0}, {"cores": -1}, {"time_limit": -1.0}, {"seed": -1}], ids=str
)
def test_options_of_checkmate_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        Checkmate(**options)


@pytest.mark.parametrize("options", [{"allowance": 1.0}, {"samples": 0}, {"repairs": -1}], ids=str)
def test_options_of_checkmate_lp_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        CheckmateLP(**options)
