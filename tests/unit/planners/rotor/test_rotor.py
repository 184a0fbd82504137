"""The planner `rotor`: its search, its options and what it says."""

from __future__ import annotations

import numpy as np
import pytest

from remat_cli.core.graph import Graph, Kind, Phase
from remat_cli.core.problem import Budget, Observer, PlanResult, Problem, Status
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import Trace, simulate
from remat_cli.core.solve import baseline_of
from remat_cli.errors import PlannerRefuses, UsageError
from remat_cli.planners.rotor.dp import RotorTable
from remat_cli.planners.rotor.options import RotorOptions
from remat_cli.planners.rotor.planner import Rotor
from remat_cli.planners.rotor.search import rotor_plans
from remat_cli.planners.shared.chain import Cuts
from tests.graphs import graph_of, op, training_chain, training_unet
from tests.paper_chains import Chain, rotor_needs
from tests.plans import RecordingObserver


def planned(graph: Graph, budget: int, planner: Rotor | None = None) -> PlanResult:
    return (planner or Rotor()).plan(Problem(graph, Budget(budget)), Observer())


def judged(graph: Graph, schedule: Schedule | None) -> Trace:
    assert schedule is not None
    return simulate(graph, schedule)


def two_branches() -> Graph:
    """Nowhere is a single tensor handed on."""
    return graph_of(
        op("f1", "", "a1 b1"),
        op("f2", "a1", "a2"),
        op("f3", "b1", "b2"),
        op("f4", "a2 b2", "c"),
        op("loss", "c", "g", phase=Phase.BACKWARD),
        op("b4", "a2 b2 g", "ga2 gb2", phase=Phase.BACKWARD, grad_of="f4"),
        op("b3", "b1 gb2", "gb1", phase=Phase.BACKWARD, grad_of="f3"),
        op("b2", "a1 ga2", "ga1", phase=Phase.BACKWARD, grad_of="f2"),
        op("b1", "ga1 gb1", "end", phase=Phase.BACKWARD, grad_of="f1"),
        kind=Kind.TRAINING,
    )


def large_chain(layers: int) -> Chain:
    """Sizes and times that vary."""
    rng = np.random.default_rng(0)
    activation = rng.integers(1, 10**9, layers + 1)
    activation[-1] = 0
    time = rng.integers(1, 10**6, layers + 1)
    nothing = np.zeros(layers + 1, dtype=np.int64)
    return Chain(
        activation=activation,
        saved=activation + rng.integers(0, 10**9, layers + 1),
        gradient=activation,
        forward_time=time,
        no_grad_time=time,
        backward_time=2 * time,
        forward_all_overhead=nothing,
        forward_none_overhead=nothing,
        backward_overhead=nothing,
    )


def test_a_hundred_layers_and_five_hundred_slots() -> None:
    table = RotorTable.of(rotor_needs(large_chain(100)), slots=500)
    times = table.times
    steps = table.steps(250)
    assert np.isfinite(times[-1])
    assert len(steps) > 2 * 100


def test_more_memory_never_takes_more_time_and_all_of_it_recomputes_nothing() -> None:
    chain = large_chain(20)
    times = RotorTable.of(rotor_needs(chain), slots=100).times
    finite = times[np.isfinite(times)]
    assert (np.diff(finite) <= 0).all()
    assert finite[-1] == (chain.forward_time + chain.backward_time)[1:].sum()
    assert finite[0] > finite[-1]


def test_plain_run_is_the_plan_where_it_fits() -> None:
    graph = training_chain(4)
    baseline = baseline_of(graph)
    result = planned(graph, baseline.peak_bytes)
    assert judged(graph, result.schedule).time == baseline.time


@pytest.mark.parametrize("graph", [training_chain(12, size=3), training_unet(4)], ids=["chain", "unet"])
def test_of_a_smaller_budget_the_plan_takes_more_time(graph: Graph) -> None:
    peak, times = baseline_of(graph).peak_bytes, []
    for budget in (peak, peak * 9 // 10, peak * 8 // 10):
        trace = judged(graph, planned(graph, budget).schedule)
        assert trace.peak_bytes <= budget
        times.append(trace.time)
    assert times == sorted(times)
    assert times[-1] > times[0]


def test_improving_leaves_out_what_the_dynamic_program_could_not() -> None:
    graph = training_unet(5)
    budget = baseline_of(graph).peak_bytes * 8 // 10
    improved = judged(graph, planned(graph, budget).schedule)
    as_it_is = judged(graph, planned(graph, budget, Rotor(improve=False)).schedule)
    assert improved.time < as_it_is.time


def test_table_is_made_once_for_all_budgets() -> None:
    graph = training_chain(10)
    before = rotor_plans.cache_info().misses
    for budget in (10, 9, 8):
        planned(graph, budget)
    assert rotor_plans.cache_info().misses == before + 1


def test_where_nothing_fits_the_closest_plan_is_told() -> None:
    graph = training_unet(4)
    result = planned(graph, baseline_of(graph).peak_bytes // 2)
    assert result.status is Status.UNKNOWN
    assert (
        "proves nothing; the largest of its 10 layers, which is run as a whole, has 1 of 9 forward ops" in result.reason
    )
    assert judged(graph, result.closest).peak_bytes < baseline_of(graph).peak_bytes


def test_chain_is_described_and_each_better_plan_is_told() -> None:
    graph = training_chain(12)
    told = RecordingObserver()
    result = Rotor().plan(Problem(graph, Budget(9)), told)
    assert (
        told.phases[0] == "planning a chain of 13 layers; the largest has 1 of 12 forward ops (8.33 %), which make 1 B"
    )
    times = [simulate(graph, plan.schedule).time for plan in told.plans]
    assert times == sorted(times, reverse=True)
    assert told.plans[-1].schedule == result.schedule
    assert result.stats["segments"] == 12
    assert result.stats["largest_segment_ops"] == 1


def test_chains_own_figures_are_told() -> None:
    graph = training_chain(12)
    result = planned(graph, 9, Rotor(improve=False))
    trace = judged(graph, result.schedule)
    peak, time = result.model_figures
    assert (peak.unit, time.unit) == ("bytes", "time")
    assert peak.value >= trace.peak_bytes
    assert time.value >= trace.time


@pytest.mark.parametrize("candidates", [1, 2, 5])
def test_no_more_candidates_are_tried_than_allowed(candidates: int) -> None:
    result = planned(training_unet(5), 100, Rotor(candidates=candidates))
    assert result.stats["plans"] == candidates


def test_graph_that_cannot_be_cut_is_refused_with_its_size() -> None:
    graph = two_branches()
    budget = baseline_of(graph).peak_bytes - 1
    with pytest.raises(
        PlannerRefuses, match=r"one segment holds 4 of 4 forward ops \(100.0 %\), which make 5 B"
    ) as refusal:
        planned(graph, budget, Rotor(cuts=Cuts.SINGLE))
    assert "approx_dp" in refusal.value.hint
    planned(graph, budget)


@pytest.mark.parametrize("name", ["segments", "slots", "candidates", "time_limit"])
def test_options_have_a_least_value(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        RotorOptions(**{name: -1})  # type: ignore[arg-type]


def test_few_slots_and_few_segments_are_enough() -> None:
    graph = training_chain(12, size=3)
    for planner in (Rotor(slots=1), Rotor(slots=5), Rotor(segments=2)):
        assert planned(graph, baseline_of(graph).peak_bytes - 1, planner).status in (Status.FEASIBLE, Status.UNKNOWN)


def test_table_too_large_for_memory_is_refused() -> None:
    with pytest.raises(UsageError, match=r"13 layers in 100000 slots take a table of .* GB"):
        planned(training_chain(12), 9, Rotor(slots=100_000))
