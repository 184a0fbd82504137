"""The bound on plans with transfers, and the plans of `offload`, against an exhaustive search with transfers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remat_cli.core.bounds import largest_working_set
from remat_cli.core.graph import Graph
from remat_cli.core.link import Duplex, Link
from remat_cli.core.problem import Budget, Problem, Status
from remat_cli.core.solve import baseline_of, solve
from remat_cli.planners.min_cut.planner import MinCut
from remat_cli.planners.offload.link_bound import LinkCut
from remat_cli.planners.offload.planner import Offloading
from remat_cli.planners.pofo.planner import Pofo
from remat_cli.planners.shared.limits import Limits
from tests.graphs import graph_of, op, small_graphs, training_unet
from tests.transfer_oracle import TransferOracle

GIGA = 2**30


def skip(size: int = 4, time: int = 1) -> Graph:
    """`x` takes long to make and is read at the end; `big` needs most of the memory in between."""
    return graph_of(
        op("make", "", "x", time=20 * time),
        op("start", "x", "a", time=time),
        op("big", "a", "b", time=time, workspace_bytes=2 * size),
        op("use", "x b", "y", time=time),
        sizes={"x": size, "a": size // 4, "b": size // 4, "y": size // 4},
    )


def bounds_of(graph: Graph, budget: int, link: Link) -> tuple[int, float]:
    """Return the best counted bound of all moments, and the best of all prices that were tried."""
    cuts = [LinkCut(graph, op, budget, link.bytes_per_time) for op in range(len(graph.ops))]
    counted = max(cut.bound(Limits()) for cut in cuts)
    return counted, max(choice.value for cut in cuts for choice in cut.choices)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(
    graph=small_graphs(max_ops=4),  # of more, the exhaustive search takes minutes
    rate=st.sampled_from([Fraction(1), Fraction(2), Fraction(4)]),
    duplex=st.sampled_from(Duplex),
    share=st.floats(0, 1),
)
def test_no_plan_is_better_than_the_bound_nor_than_the_truth(
    graph: Graph, rate: Fraction, duplex: Duplex, share: float
) -> None:
    least = largest_working_set(graph).bytes
    budget = int(least + (baseline_of(graph).peak_bytes - least) * share)
    link = Link(rate, duplex)
    truth = TransferOracle(graph, budget, link).least_time()
    assert truth is not None  # whatever fits alone fits with everything else on the host
    counted, valued = bounds_of(graph, budget, link)
    assert counted <= truth - graph.total_time
    assert valued <= (truth - graph.total_time) * (1 + 1e-9) + 1e-9
    solution = solve(Problem(graph, Budget(budget), link, offload=True), Offloading(work_limit=16))
    assert solution.warnings == ()
    if solution.trace is not None:
        assert solution.trace.time >= truth
        assert solution.status is not Status.OPTIMAL or solution.trace.time == truth


@pytest.mark.parametrize("duplex", Duplex)
def test_the_bound_counts_both_ways_to_wait(duplex: Duplex) -> None:
    graph, link = skip(), Link(Fraction(1), duplex)
    budget = largest_working_set(graph).bytes
    # x takes 4 each way; 1 of the way out passes while `start` runs, nothing runs during the way back.
    assert TransferOracle(graph, budget, link).least_time() == graph.total_time + 3 + 4
    # It could be made again, in part as it were, while the rest comes back: 5 and two thirds.
    assert bounds_of(graph, budget, link)[0] == 6


def test_bounds_of_sizes_in_gigabytes_are_those_of_bytes() -> None:
    link = Link(Fraction(1))
    small, large = skip(), skip(4 * GIGA, GIGA)
    of_small = bounds_of(small, largest_working_set(small).bytes, link)[1]
    of_large = bounds_of(large, largest_working_set(large).bytes, link)[0]
    assert of_large == pytest.approx(of_small * GIGA, rel=1e-6)


def test_a_slower_link_raises_the_bound() -> None:
    graph = skip(16, 3)
    budget = largest_working_set(graph).bytes + 2
    bounds = [bounds_of(graph, budget, Link(Fraction(rate)))[0] for rate in ("16", "4", "1", "1/4")]
    assert bounds == sorted(set(bounds))


def test_both_together_are_no_worse_than_offloading_on_a_chain_or_recomputation() -> None:
    graph = training_unet(3)
    for budget in range(largest_working_set(graph).bytes, baseline_of(graph).peak_bytes, 3):
        problem = Problem(graph, Budget(budget), Link(Fraction(1)), offload=True)
        both = solve(problem, Offloading())
        assert both.trace is not None
        for other in (Pofo(), MinCut()):
            alone = solve(problem, other)
            assert alone.trace is None or both.trace.time <= alone.trace.time
