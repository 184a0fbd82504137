"""Plans whose budget is held against what PyTorch's caching allocator reserves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.allocation.cuda import reserved_bytes
from remat_cli.config import PlannerChoice, Request
from remat_cli.core.allocator import CudaAllocator, Reserved
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Problem, Status
from remat_cli.core.schedule import plain_run
from remat_cli.core.solve import solve, with_reserved
from remat_cli.errors import FalseClaim, UsageError
from remat_cli.generate.unet import UNet
from remat_cli.planners.keep_all import KeepAll
from remat_cli.planning import Planning, plan
from remat_cli.reports.phrasing import remedies, verdict
from remat_cli.synthesis import synthesize
from remat_cli.units import parse_budget
from tests.graphs import chain, small_graphs
from tests.plans import prepared

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


@settings(max_examples=30, deadline=None)
@given(small_graphs(max_ops=6), st.sampled_from(["2MiB", "1000", "min", "100%"]))
def test_a_plan_is_within_its_budget_or_refused(graph: Graph, budget: str) -> None:
    planning = planned(graph, budget, allocator=CudaAllocator(expandable_segments=True))
    solution = planning.solution
    assert (solution.reserved is None) == (solution.trace is None)
    if solution.reserved is not None:
        assert solution.reserved.bytes <= planning.budget_bytes


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
