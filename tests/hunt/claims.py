"""What planners claim of a problem, held against the oracle, the judge, and each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from remat_cli.core.problem import Planner, Problem, Scope, Status
from remat_cli.core.schedule import Schedule
from remat_cli.core.solve import Solution, solve
from remat_cli.errors import PlannerRefuses
from remat_cli.planners import PLANNERS
from remat_cli.planners.published.moccasin.options import FirstRuns
from remat_cli.planners.published.moccasin.planner import Moccasin
from remat_cli.planners.retention.options import OrderChoice
from remat_cli.planners.retention.planner import Retention
from remat_cli.testing.contract import starved, starved_options
from tests.oracle import least_peak, least_time
from tests.second_judge import replayed
from tests.transfer_oracle import TransferOracle

NOTHING: Mapping[str, Solution] = {}
# What the oracles know.
_BY_ORACLE = (Scope.ANY_PLAN, Scope.ANY_ORDER, Scope.FIXED_ORDER)


def planners(**limits: Any) -> Mapping[str, Planner]:
    """Return every planner, within limits where they know them.

    Those that plan in one order or another do so in both; those that have limits are also starved of them.
    """
    made: dict[str, Planner] = {
        name: planner(**{key: value for key, value in limits.items() if key in {f.name for f in fields(planner)}})
        for name, planner in PLANNERS.items()
    }
    given = {key: value for key, value in limits.items() if key == "time_limit"}
    made["retention in input order"] = Retention(order=OrderChoice.INPUT, **given)
    made["moccasin in any order"] = Moccasin(order=FirstRuns.FREE, **given)
    made |= {f"{name}, starved": starved(name) for name in PLANNERS if starved_options(name)}
    return made


# Those that prove something of graphs of any size, quickly; and one that only plans.
QUICK = ("auto", "dtr", "min_cut", "retention", "retention in input order")


def solutions(problem: Problem, names: Collection[str] = (), **limits: Any) -> dict[str, Solution]:
    """Return what each planner makes of it; those that refuse are left out. The judge must refute nothing."""
    found = {}
    for name, planner in planners(**limits).items():
        if names and name not in names:
            continue
        try:
            found[name] = solve(problem, planner)
        except PlannerRefuses:
            continue
        assert found[name].warnings == (), f"{name}: {found[name].warnings}"
        _check_judge(name, found[name])
    return found


def _check_judge(name: str, solution: Solution) -> None:
    """Hold what the judge says of a plan against what another one says."""
    schedule, trace, problem = solution.result.schedule, solution.trace, solution.problem
    if schedule is None or trace is None:
        return
    said = replayed(problem.graph, schedule, problem.link)
    judged = (trace.peak_bytes, trace.time)
    assert judged == said, f"{name}: the judge says {judged}, another one {said}"
    assert said[0] <= problem.budget.device_bytes, f"{name} exceeds the budget"


def check_by_oracle(problem: Problem, names: Collection[str] = (), **limits: Any) -> None:
    """Hold the claims of every planner, or of those that are named, against the truth."""
    graph, budget, link = problem.graph, problem.budget.device_bytes, problem.link
    truth: dict[Scope, int | None] = {}
    for scope in _BY_ORACLE:
        best = least_time(graph, budget, scope)
        truth[scope] = None if best is None else best.time
    if link is not None:
        truth[Scope.ANY_PLAN] = TransferOracle(graph, budget, link).least_time()
    # Transfers lower peaks, too.
    least = graph.fixed_bytes if link is not None else least_peak(graph).peak_bytes
    for name, solution in solutions(problem, names, **limits).items():
        _check(name, solution, truth, least)


def _check(name: str, solution: Solution, truth: Mapping[Scope, int | None], least_peak_bytes: int) -> None:
    if solution.closest is not None:
        assert solution.closest.peak_bytes >= least_peak_bytes, f"{name} has a smaller peak than the oracle"
    if solution.trace is not None and solution.result.schedule is not None:
        moves = solution.result.schedule.has_transfers
        best = truth[Scope.ANY_PLAN if moves else Scope.ANY_ORDER]
        assert best is not None, f"{name} has a plan where there is none"
        assert solution.trace.time >= best, f"{name} beats the oracle"
    for bound in solution.result.bounds:
        least = truth.get(bound.scope)
        assert least is None or bound.time <= least, f"{name}: {bound} is above {least}"
    if solution.scope not in _BY_ORACLE:
        return
    least = truth[solution.scope]
    if solution.status is Status.INFEASIBLE:
        assert least is None, f"{name}: a plan fits, {solution.scope}"
    if solution.status is Status.OPTIMAL:
        assert least is not None
        assert solution.trace is not None
        assert solution.trace.time <= least, f"{name}: not optimal, {solution.scope}"


def check_by_each_other(
    problem: Problem, names: Collection[str] = (), others: Mapping[str, Solution] = NOTHING, **limits: Any
) -> dict[str, Solution]:
    """Hold what each planner proves against the plans of all others, as far as its scope goes; return what they say.

    Args:
        problem: what is planned.
        names: of planners; none for all.
        others: plans that no planner made.
        limits: of planners.
    """
    found = {**solutions(problem, names, **limits), **others}
    for prover, proof in found.items():
        for name, other in found.items():
            if other.trace is None:
                continue
            refuted = [
                bound
                for bound in proof.result.bounds
                if is_within(bound.scope, other) and other.trace.time < bound.time
            ]
            assert not refuted, f"{name} takes {other.trace.time}, less than {prover} proves: {refuted}"
            nothing_fits = proof.status is Status.INFEASIBLE and is_within(proof.scope, other)
            assert not nothing_fits, f"{prover} proves that nothing fits, {name} has a plan"
    optimum = {scope: optima(scope, found) for scope in _BY_ORACLE}
    assert all(len(times) <= 1 for times in optimum.values()), optimum
    best = [min(optimum[scope]) for scope in _BY_ORACLE if optimum[scope]]
    assert best == sorted(best), optimum
    return found


def is_within(scope: Scope, solution: Solution) -> bool:
    """Whether the plan is one that proofs in `scope` speak of."""
    schedule = solution.result.schedule
    if schedule is None or scope is Scope.PLANNER:
        return False
    if scope is Scope.ANY_PLAN or schedule.has_transfers:
        return scope is Scope.ANY_PLAN
    return scope is Scope.ANY_ORDER or keeps_input_order(solution, schedule)


def keeps_input_order(solution: Solution, schedule: Schedule) -> bool:
    """Whether the ops of a plan run for the first time in the graph's order."""
    return tuple(dict.fromkeys(schedule.computes)) == tuple(op.name for op in solution.problem.graph.ops)


def optima(scope: Scope, found: Mapping[str, Solution]) -> set[int]:
    """Return the times of the plans that are proven to be the best in a scope: at most one, if all are right."""
    return {
        solution.trace.time
        for solution in found.values()
        if solution.status is Status.OPTIMAL and solution.scope is scope and solution.trace is not None
    }
