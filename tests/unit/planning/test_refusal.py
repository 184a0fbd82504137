"""What a refusal that asked no planner is given: a run that is judged, never above the plain one."""

from __future__ import annotations

from time import monotonic

import pytest
from hypothesis import given, settings

from remat_cli.core.graph import Graph, Kind, Phase, Residency
from remat_cli.core.problem import Budget, Observer, Planner, Problem
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import Solution, baseline_of, solve
from remat_cli.planners import PLANNERS
from remat_cli.planners.shared import limits
from remat_cli.planning import refusal
from remat_cli.planning.refusal import quick_peak, with_closest
from tests.graphs import graph_of, op, training_chain, training_graphs


@given(training_graphs(max_forward_ops=4))
@settings(deadline=None)
def test_closest_is_a_run_of_the_graph(graph: Graph) -> None:
    refused = solve(Problem(graph, Budget(0)), PLANNERS["keep_all"]())
    if refused.trace is not None or refused.closest is not None:
        assert with_closest(refused, Observer(), 60) is refused
        return
    told = with_closest(refused, Observer(), 60)
    assert told.closest is not None
    assert told.result.closest is not None
    assert simulate(graph, told.result.closest).peak_bytes == told.closest.peak_bytes
    assert told.closest.peak_bytes <= baseline_of(graph).peak_bytes
    assert (told.status, told.trace) == (refused.status, None)


def test_closest_run_of_a_whole_step_reads_no_parameter_after_its_update() -> None:
    """Least memory takes a second run of `f`, which reads `w`, behind `update w` in the input order."""
    step = graph_of(
        op("f", "w", "a"),
        op("loss", "a", "dw", phase=Phase.BACKWARD, recomputable=False),
        op("update w", "w dw", "done", phase=Phase.UPDATE, recomputable=False, writes=("w",)),
        op("large", "dw", "t", phase=Phase.BACKWARD),
        op("small", "t", "u", phase=Phase.BACKWARD),
        op("last", "a u", "out", phase=Phase.BACKWARD),
        sizes={"w": 1, "a": 8, "dw": 1, "done": 0, "t": 30, "u": 1, "out": 1},
        residents={"w": Residency.PARAMETER},
        kind=Kind.TRAINING,
    )
    told = with_closest(solve(Problem(step, Budget(0)), PLANNERS["keep_all"]()), Observer(), 60)
    assert told.closest is not None
    assert (told.closest.peak_bytes, told.closest.runs["f"]) == (33, 2)
    assert quick_peak(step, 33, 5.0) == 33 < baseline_of(step).peak_bytes


@pytest.mark.parametrize(("seconds", "fewest", "most"), [(0.0, 0, 0), (5.0, 1, 3), (60.0, 2, 8)])
def test_time_limit_is_one_for_all_tries(
    seconds: float, fewest: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that moves two seconds at each try; each is asked to end in the time that is left of all."""
    start, now, asked = monotonic(), 0.0, []

    def slow(problem: Problem, planner: Planner) -> Solution:
        nonlocal now
        asked.append(now + planner.time_limit)  # type: ignore[attr-defined]
        solution = solve(problem, PLANNERS["dtr"]())
        now += 2
        return solution

    refused = solve(Problem(training_chain(12), Budget(0)), PLANNERS["keep_all"]())
    monkeypatch.setattr(limits, "monotonic", lambda: start + now)
    monkeypatch.setattr(refusal, "solve", slow)
    with_closest(refused, Observer(), seconds)
    assert asked == [pytest.approx(seconds)] * len(asked)
    assert fewest <= len(asked) <= most


@pytest.mark.parametrize(("budget", "peak"), [(2, 9), (3, 3), (8, 8), (10, 9)])
def test_quick_peak_is_within_the_budget_or_that_of_the_plain_run(budget: int, peak: int) -> None:
    assert quick_peak(training_chain(8), budget, 5.0) == peak  # no op needs less than 3
