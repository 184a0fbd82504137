"""Plans of whole steps: judged valid, never slower than moving all state or nothing, and within what is proven."""

from __future__ import annotations

import sys
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.config import GraphOptions
from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Graph, Residency
from remat_cli.core.link import Duplex, Link
from remat_cli.core.problem import Budget, Problem, Scope, Status
from remat_cli.core.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule, Step, Wait, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import Solution, baseline_of, solve
from remat_cli.generate.llama import Llama
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.keep_all import KeepAll
from remat_cli.planners.min_cut.planner import MinCut
from remat_cli.planning.resident_moves import ResidentMoves, with_moves
from remat_cli.planning.step_views import movable_residents, with_early_updates, with_late_updates, without_residents
from remat_cli.planning.whole_step import WholeStep
from remat_cli.synthesis import synthesize
from tests.graphs import updating_chain, updating_graphs
from tests.second_judge import replayed
from tests.transfer_oracle import TransferOracle

PLANNERS = [KeepAll(), DTR(), MinCut(work_limit=20)]
LINKS = st.builds(Link, st.sampled_from([Fraction(1, 3), Fraction(1), Fraction(5)]), st.sampled_from(Duplex))


@st.composite
def step_problems(draw: st.DrawFn, max_forward_ops: int = 3) -> Problem:
    graph = draw(updating_graphs(max_forward_ops))
    peak = baseline_of(graph).peak_bytes
    lowest = largest_working_set(graph).bytes
    return Problem(graph, Budget(draw(st.integers(max(0, lowest - 1), peak))), draw(LINKS), offload=draw(st.booleans()))


def solved(problem: Problem, planner: KeepAll | DTR | MinCut) -> Solution:
    solution = solve(problem, WholeStep(planner))
    assert not solution.warnings
    return solution


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda planner: type(planner).__name__)
@given(problem=step_problems())
def test_both_judges_agree_on_a_plan_which_moves_only_where_it_may(
    planner: KeepAll | DTR | MinCut, problem: Problem
) -> None:
    solution = solved(problem, planner)
    if solution.trace is None:
        return
    schedule = solution.result.schedule
    assert schedule is not None
    assert replayed(problem.graph, schedule, problem.link) == (solution.trace.peak_bytes, solution.trace.time)
    assert solution.trace.peak_bytes <= problem.budget.device_bytes
    assert problem.offload or not schedule.has_transfers


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda planner: type(planner).__name__)
@given(problem=step_problems())
def test_moves_are_never_slower_than_none(planner: KeepAll | DTR | MinCut, problem: Problem) -> None:
    unmoved = solved(replace(problem, offload=False), planner)
    if unmoved.trace is not None:
        moving = solved(replace(problem, offload=True), planner)
        assert moving.trace is not None
        assert moving.trace.time <= unmoved.trace.time


@given(problem=step_problems(), data=st.data())
def test_moves_keep_within_the_memory_that_the_view_left(problem: Problem, data: st.DataObject) -> None:
    assert problem.link is not None
    movable = movable_residents(problem.graph)
    away = [name for name in movable if data.draw(st.booleans())]
    view = without_residents(with_early_updates(problem.graph), away)
    budget = baseline_of(view).peak_bytes + data.draw(st.integers(0, 5))
    moves = ResidentMoves(problem.graph, plain_run(view), away, budget, problem.link)
    for reserve, cross in product((0, 1, 4), (True, False)):
        woven = moves.woven(reserve, cross=cross)
        assert simulate(problem.graph, woven, link=problem.link).peak_bytes <= budget


def all_state_away(graph: Graph) -> Schedule:
    """Return the plain run with early updates, all state fetched before its update and sent back after it."""
    state = {name for name in movable_residents(graph) if graph.tensors[name].resident is Residency.STATE}
    steps: list[Step] = []
    for step in plain_run(with_early_updates(graph)).steps:
        used = (
            [name for name in graph.op[step.op].inputs if name in state] if isinstance(step, Compute | Inplace) else []
        )
        steps += [move(name) for name in used for move in (Prefetch, Wait)]
        steps.append(step)
        steps += [move(name) for name in used for move in (Offload, Wait, Free)]
    return Schedule(tuple(steps), tuple(sorted(state)))


@given(problem=step_problems())
def test_plan_is_never_slower_than_all_state_on_the_host(problem: Problem) -> None:
    away = simulate(problem.graph, all_state_away(problem.graph), link=problem.link)
    if away.peak_bytes <= problem.budget.device_bytes:
        solution = solved(replace(problem, offload=True), KeepAll())
        assert solution.trace is not None
        assert solution.trace.time <= away.time


def test_plan_is_no_slower_than_all_state_away_with_any_share_of_memory_for_the_planner() -> None:
    network = Llama(layers=4, width=1024, heads=8, groups=2, hidden=4096, vocabulary=8192, sequence=2048)
    prepared = synthesize(network, GraphOptions(device="a100", optimizer="adamw", update=True))
    graph, link = prepared.graph, prepared.link
    assert link is not None
    budget = baseline_of(graph).peak_bytes // 2
    solution = solve(Problem(graph, Budget(budget), link, offload=True), WholeStep(DTR()))
    assert solution.trace is not None
    away = [name for name in movable_residents(graph) if graph.tensors[name].resident is Residency.STATE]
    view = without_residents(with_early_updates(graph), away)
    needed = largest_working_set(view, residents_stay=True).bytes
    recipes = []
    for quarters in (1, 2, 4):
        schedule = solve(Problem(view, Budget(needed + (budget - needed) * quarters // 4), link), DTR()).result.schedule
        late = None if schedule is None else with_late_updates(graph, schedule)
        if late is not None and simulate(without_residents(graph, away), late, link=link).peak_bytes <= budget:
            woven = ResidentMoves(graph, late, away, budget, link).woven(sys.maxsize // 2, cross=False)
            recipes += [with_moves(graph, late, away, budget, link)[1].time, simulate(graph, woven, link=link).time]
    assert solution.trace.time <= min(recipes)


@given(problem=step_problems())
def test_unlimited_link_takes_no_time(problem: Problem) -> None:
    fast = replace(problem, link=Link(Fraction(10**9), Duplex.FULL), offload=True)
    solution = solved(fast, DTR())
    if solution.trace is not None and solution.trace.recomputations == 0:
        assert solution.trace.time - problem.graph.total_time <= len(solution.trace.transfers)


@st.composite
def tiny_problems(draw: st.DrawFn) -> Problem:
    """One forward op, its backward op and the update, of any sizes and times: small enough to try everything."""
    graph = updating_chain(1)
    tensors = {
        name: replace(tensor, bytes=draw(st.integers(0, 4))) if tensor.bytes else tensor
        for name, tensor in graph.tensors.items()
    }
    ops = tuple(op.edited(time=draw(st.integers(0, 4))) for op in graph.ops)
    graph = replace(graph, tensors=tensors, ops=ops)
    low, high = largest_working_set(graph).bytes, baseline_of(graph).peak_bytes
    return Problem(graph, Budget(draw(st.integers(max(0, low - 1), high))), draw(LINKS), offload=True)


@settings(max_examples=max(20, settings().max_examples // 4))
@given(problem=tiny_problems())
def test_no_schedule_at_all_contradicts_what_is_proven(problem: Problem) -> None:
    assert problem.link is not None
    solution = solved(problem, DTR())
    least = TransferOracle(problem.graph, problem.budget.device_bytes, problem.link).least_time()
    if least is None:
        assert solution.trace is None
        return
    assert not (solution.status is Status.INFEASIBLE and solution.scope is Scope.ANY_PLAN)
    for bound in solution.result.bounds:
        assert bound.scope is not Scope.ANY_PLAN or bound.time <= least
    if solution.trace is not None:
        assert least <= solution.trace.time
