"""Plans with addresses: the budget is the arena's, and where fragmentation breaks it the plan changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.allocation.of_schedule import arena_of
from remat_cli.allocation.portfolio import Allocation
from remat_cli.config import PlannerChoice, Request
from remat_cli.core.arena import Arena, check_arena
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Observer, Planner, PlanResult, Problem, Status
from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import Solution, baseline_of, with_arena
from remat_cli.errors import FalseClaim
from remat_cli.generate.layered import Layered
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.shared.limits import Limits
from remat_cli.planning import Planning, addresses, plan
from remat_cli.planning.addresses import solve_with_addresses
from remat_cli.reports.phrasing import remedies
from remat_cli.synthesis import synthesize
from remat_cli.units import parse_budget
from tests.graphs import chain, graph_of, op, small_graphs, training_chain
from tests.plans import prepared


def planned(graph: Graph, budget: str, planner: str = "dtr", **said: Any) -> Planning:
    request = Request(parse_budget(budget), PlannerChoice(planner), arena=True, **({"alignment": 1} | said))
    return plan(prepared(graph), request)


def test_budget_is_that_of_the_arena_and_resident_bytes_lie_beside_it() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "x", "y"), sizes={"x": 4, "y": 3}, resident_bytes=100)
    planning = planned(graph, "7", "keep_all")
    arena = planning.solution.arena
    assert arena is not None
    assert arena.bytes == 7
    assert planning.peak_bytes == planning.budget_bytes == 107
    assert planned(graph, "100%", "keep_all").budget_bytes == 107
    assert planned(graph, "50%", "keep_all").budget_bytes == 103


def test_budgets_that_are_advised_leave_resident_bytes_out() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "x", "y"), sizes={"x": 4, "y": 3}, resident_bytes=100)
    refused = planned(graph, "6", "keep_all").solution
    assert refused.uncounted_bytes == 100
    assert any("plan with --budget 7," in advice for advice in remedies(refused, None))
    refused = planned(graph, "7", "keep_all", alignment=4).solution
    assert any("plan with --budget 8," in advice for advice in remedies(refused, None))


def test_below_the_working_set_no_arena_is_proven_to_fit() -> None:
    assert planned(chain(3, 4, 5, 1), "8").status is Status.INFEASIBLE
    assert planned(chain(3, 4, 5, 1), "9").status is Status.OPTIMAL


def test_arena_of_aligned_addresses_takes_more() -> None:
    assert planned(chain(3, 4, 5, 1), "9", "keep_all", alignment=4).status is Status.UNKNOWN
    solution = planned(chain(3, 4, 5, 1), "12", "keep_all", alignment=4).solution
    assert solution.arena is not None
    assert (solution.arena.bytes, solution.fragmentation_bytes) == (12, 3)


@given(small_graphs(max_ops=6), st.sampled_from(["100%", "80%", "min"]))
def test_every_arena_holds(graph: Graph, budget: str) -> None:
    planning = planned(graph, budget)
    solution = planning.solution
    if solution.trace is None:
        assert solution.arena is None
        return
    assert solution.arena is not None
    assert planning.schedule is not None
    check_arena(graph, planning.schedule, solution.arena)
    assert solution.arena.bytes + graph.resident_bytes <= solution.problem.budget.device_bytes
    assert solution.fragmentation_bytes is not None
    assert solution.fragmentation_bytes >= 0


def test_where_no_arena_is_found_a_smaller_sum_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training_chain(6)
    fast = planned(graph, "100%")
    assert fast.trace is not None
    peak = fast.trace.peak_bytes

    def only_below(graph: Graph, schedule: Any, limits: Any, **said: Any) -> tuple[Allocation, Arena | None]:
        if simulate(graph, schedule).peak_bytes > peak - 2:
            return Allocation(Status.UNKNOWN, None, None, peak, closest_bytes=peak + 1), None
        return arena_of(graph, schedule, limits, **said)

    monkeypatch.setattr(addresses, "arena_of", only_below)
    planning = planned(graph, "100%")
    assert planning.solution.arena is not None
    assert planning.peak_bytes is not None
    assert planning.peak_bytes <= peak - 2
    # Every op once is proven to be the least: a plan that runs some again is no longer optimal.
    assert (fast.status, planning.status) == (Status.OPTIMAL, Status.FEASIBLE)
    assert planning.solution.sum_time == fast.trace.time
    assert planning.overhead == planning.solution.fragmentation_overhead
    assert planning.overhead


def layered(ops: int) -> Graph:
    """Return a random graph whose plain run leaves gaps that another order does not."""
    return synthesize(Layered(), ops=ops).graph


def test_another_order_of_the_runs_has_an_arena_where_the_sum_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_WORK", 0.5)
    graph = layered(60)
    planning = planned(graph, "100%", "keep_all", alignment=64)
    solution = planning.solution
    assert planning.schedule is not None
    assert solution.arena is not None
    assert solution.arena.bytes + graph.resident_bytes <= planning.budget_bytes
    assert planning.schedule.computes != plain_run(graph).computes
    assert sorted(planning.schedule.computes) == sorted(plain_run(graph).computes)
    assert solution.fragmentation_overhead == planning.overhead == 0


def test_smallest_arena_of_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_WORK", 0.02)
    graph = layered(65).edited(resident_bytes=10**9).checked()
    one = planned(graph, "min", "keep_all", alignment=64).solution
    monkeypatch.setattr(addresses, "reordered", lambda *_: None)
    other = planned(graph, "min", "keep_all", alignment=64).solution
    assert one.arena is not None
    assert other.arena is not None
    assert one.arena.bytes < other.arena.bytes


@dataclass(frozen=True)
class Recorded:
    """Plans as `dtr` does, and keeps for how many seconds it was asked; interrupted at a second time."""

    time_limit: float = 9.0
    asked: ClassVar[list[float]] = []
    is_interrupted: ClassVar[bool] = False

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        self.asked.append(self.time_limit)
        if self.is_interrupted and len(self.asked) > 1:
            raise KeyboardInterrupt
        return DTR().plan(problem, observe)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr(Recorded, "asked", [])
    return Recorded.asked


def nothing_found(closest: int) -> tuple[Allocation, Arena | None]:
    return Allocation(Status.UNKNOWN, None, None, 1, closest_bytes=closest), None


def solved_by(planner: Planner, graph: Graph) -> Solution:
    return solve_with_addresses(Problem(graph, Budget(baseline_of(graph).peak_bytes)), planner, 1, Observer())


def test_one_time_limit_holds_for_plans_and_arenas(monkeypatch: pytest.MonkeyPatch, recorded: list[float]) -> None:
    given: list[Limits] = []

    def never(graph: Graph, schedule: Any, limits: Limits, **said: Any) -> tuple[Allocation, Arena | None]:
        given.append(replace(limits))
        limits.spend(limits.work)
        return nothing_found(said["capacity"] + 1)

    monkeypatch.setattr(addresses, "arena_of", never)
    began = monotonic()
    assert not solved_by(Recorded(), training_chain(6)).interrupted
    assert len(recorded) > 1
    assert 4 < recorded[0] <= 4.5
    assert all(seconds <= 3 for seconds in recorded[1:])
    assert all(limits.deadline <= began + 9.5 for limits in given)
    assert sum(limits.work for limits in given) <= 4.5


def test_ctrl_c_while_a_smaller_sum_is_planned_tells_what_is_known(
    monkeypatch: pytest.MonkeyPatch, recorded: list[float]
) -> None:
    monkeypatch.setattr(Recorded, "is_interrupted", True)
    monkeypatch.setattr(addresses, "arena_of", lambda *_, capacity, **__: nothing_found(capacity + 1))
    solution = solved_by(Recorded(), training_chain(6))
    assert solution.interrupted
    assert solution.closest_arena_bytes == solution.baseline.peak_bytes + 1
    assert len(recorded) == 2


def test_where_no_plan_has_an_arena_the_smallest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> tuple[Allocation, Arena | None]:
        return Allocation(Status.UNKNOWN, None, None, 1, closest_bytes=4000), None

    monkeypatch.setattr(addresses, "arena_of", never)
    planning = planned(training_chain(4), "100%")
    assert planning.status is Status.UNKNOWN
    assert planning.solution.arena is None
    assert "the smallest that was found takes 4.000 kB" in planning.solution.result.reason
    assert planning.solution.closest is not None


def test_smallest_budget_is_that_of_the_smallest_arena() -> None:
    graph = graph_of(op("a", "", "x"), op("b", "x", "y"), sizes={"x": 4, "y": 3}, resident_bytes=100)
    planning = planned(graph, "min", alignment=4)
    assert planning.budget_bytes == 108
    assert planning.search is not None
    assert planning.search.found_bytes == 108
    assert planning.search.proven_bytes == 107


def test_judge_refuses_an_arena_that_overlaps_or_is_too_large() -> None:
    graph = chain(3, 4)
    solution = planned(graph, "7", "keep_all").solution
    assert solution.arena is not None
    schedule = plain_run(graph)
    _, good = arena_of(graph, schedule, Limits(), alignment=1)
    assert good is not None
    overlapping = Arena(7, 1, tuple(type(each)(each.step, each.tensor, 0) for each in good.addresses))
    with pytest.raises(FalseClaim, match="lies at 0"):
        with_arena(solution, schedule, overlapping)
    with pytest.raises(FalseClaim, match="was taken for one that fits"):
        with_arena(solution, schedule, Arena(8, 1, good.addresses))
