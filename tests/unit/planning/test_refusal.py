"""What a refusal that asked no planner is given: a run that is judged, never above the plain one."""

from __future__ import annotations

from hypothesis import given, settings

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Observer, Problem
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of, solve
from remat_cli.planners import PLANNERS
from remat_cli.planning.refusal import with_closest
from tests.graphs import training_graphs


@given(training_graphs(max_forward_ops=4))
@settings(deadline=None)
def test_closest_is_a_run_of_the_graph(graph: Graph) -> None:
    refused = solve(Problem(graph, Budget(0)), PLANNERS["keep_all"]())
    if refused.trace is not None or refused.closest is not None:
        assert with_closest(refused, Observer()) is refused
        return
    told = with_closest(refused, Observer())
    assert told.closest is not None
    assert told.result.closest is not None
    assert simulate(graph, told.result.closest).peak_bytes == told.closest.peak_bytes
    assert told.closest.peak_bytes <= baseline_of(graph).peak_bytes
    assert (told.status, told.trace) == (refused.status, None)
