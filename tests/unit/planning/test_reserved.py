"""Plans whose budget is held against what PyTorch's caching allocator reserves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.allocation.cuda import reserved_bytes
from remat_cli.config import PlannerChoice, Request
from remat_cli.core.allocator import CudaAllocator, Reserved
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Observer, PlanResult, Problem, Status
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of, solve, with_reserved
from remat_cli.errors import FalseClaim, UsageError
from remat_cli.generate.unet import UNet
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.keep_all import KeepAll
from remat_cli.planning import Planning, plan
from remat_cli.reports.phrasing import remedies, verdict
from remat_cli.synthesis import synthesize
from remat_cli.units import parse_budget
from tests.graphs import chain, small_graphs
from tests.plans import asking, prepared

MB = 1 << 20
CUDA = CudaAllocator()


def planned(graph: Graph, budget: str, planner: str = "dtr", allocator: CudaAllocator = CUDA) -> Planning:
    return plan(prepared(graph), Request(parse_budget(budget), PlannerChoice(planner), allocator=allocator))


@pytest.fixture(scope="module")
def unet() -> Graph:
    return synthesize(UNet(levels=3)).graph


def test_budget_is_held_against_what_is_reserved(unet: Graph) -> None:
    plain = reserved_bytes(unet, plain_run(unet), CUDA)
    budget = str(plain * 8 // 10)
    solution = planned(unet, budget).solution
    assert solution.trace is not None
    assert solution.reserved is not None
    assert solution.result.schedule is not None
    assert solution.reserved.bytes == reserved_bytes(unet, solution.result.schedule, CUDA)
    assert solution.trace.peak_bytes <= solution.reserved.bytes <= int(budget) < plain
    assert solution.reserved.plain_bytes == plain
    assert solution.needed_bytes == solution.reserved.bytes
    assert "its allocator reserves" in verdict(solution)
    # Where its peak alone counts, that budget is kept with less time.
    without = plan(prepared(unet), Request(parse_budget(budget), PlannerChoice("dtr"))).solution
    assert without.trace is not None
    assert without.trace.time <= solution.trace.time
    assert without.reserved is None


def test_plain_run_that_fits_is_the_plan(unet: Graph) -> None:
    plain = reserved_bytes(unet, plain_run(unet), CUDA)
    assert planned(unet, str(plain), "keep_all").status is Status.OPTIMAL
    refused = planned(unet, str(plain - 1), "keep_all").solution
    assert refused.status is Status.UNKNOWN
    assert refused.closest_reserved_bytes == plain
    assert "PyTorch's allocator reserves more" in refused.result.reason
    assert any(f"plan with --budget {plain}," in advice for advice in remedies(refused, None))


def test_below_the_working_set_it_is_proven_that_nothing_fits(unet: Graph) -> None:
    solution = planned(unet, "1MB").solution
    assert solution.status is Status.INFEASIBLE
    assert solution.closest_reserved_bytes is None


def test_smallest_budget_is_what_is_reserved_for_its_plan(unet: Graph) -> None:
    planning = planned(unet, "min")
    solution = planning.solution
    assert solution.reserved is not None
    assert planning.budget_bytes == solution.reserved.bytes < solution.reserved.plain_bytes
    assert planned(unet, str(planning.budget_bytes)).trace is not None


def test_smallest_budget_of_small_tensors_runs_nothing_again() -> None:
    # All of it fits one segment of 2 MiB.
    planning = planned(chain(3, 4, 5, 1), "min")
    assert planning.budget_bytes == 2 * MB
    assert planning.status is Status.OPTIMAL
    assert planning.trace is not None
    assert planning.trace.recomputations == 0


@given(small_graphs(max_ops=6), st.sampled_from(["2MiB", "1000", "min", "100%"]))
def test_a_plan_is_within_its_budget_or_refused(graph: Graph, budget: str) -> None:
    planning = planned(graph, budget, allocator=CudaAllocator(expandable_segments=True))
    solution = planning.solution
    assert (solution.reserved is None) == (solution.trace is None)
    if solution.reserved is not None:
        assert solution.reserved.bytes <= planning.budget_bytes


@dataclass(frozen=True)
class OneOf:
    """Takes the plan of the largest peak that fits."""

    plans: Mapping[int, Schedule]

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        peak = max((peak for peak in self.plans if peak <= problem.budget.device_bytes), default=None)
        if peak is None:
            return PlanResult(Status.UNKNOWN)
        return PlanResult(Status.FEASIBLE, self.plans[peak])


def test_once_a_peak_holds_larger_ones_are_tried(unet: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    peak = baseline_of(unet).peak_bytes
    found = [solve(Problem(unet, Budget(peak * percent // 100)), DTR()) for percent in range(60, 100, 4)]
    plans = {each.trace.peak_bytes: each.result.schedule for each in found if each.trace and each.result.schedule}
    peaks = sorted(plans)
    assert len(peaks) > 5
    holding = peaks[-2]  # of the larger peaks that hold, the search comes to the largest from below

    def reserved(problem: Problem, schedule: Schedule, allocator: CudaAllocator) -> Reserved:
        taken = simulate(unet, schedule).peak_bytes
        return Reserved(allocator, taken if taken <= holding else 2 * peak, peak)

    monkeypatch.setattr("remat_cli.planning.reserved._reserved", reserved)
    solution = plan(prepared(unet), asking(OneOf(plans), budget=parse_budget(str(peaks[-1])), allocator=CUDA)).solution
    assert solution.trace is not None
    assert solution.trace.peak_bytes == holding


def test_bytes_that_cannot_be_reserved_are_refused(unet: Graph) -> None:
    plain = plain_run(unet)
    solution = solve(Problem(unet, Budget(10**12)), KeepAll())
    with_reserved(solution, plain, Reserved(CUDA, 10**12, 10**12))
    for size in (1, 10**12 + 1):
        with pytest.raises(FalseClaim, match="reserved bytes"):
            with_reserved(solution, plain, Reserved(CUDA, size, size))


def test_addresses_and_an_allocator_do_not_go_together() -> None:
    with pytest.raises(UsageError, match="do not go together"):
        Request(parse_budget("1GB"), arena=True, allocator=CUDA).check()
