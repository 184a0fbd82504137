"""POFO as a planner: what it refuses, what it reports, and that offloading pays."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from remat_cli.core.graph import Graph, Kind, Phase
from remat_cli.core.link import Link
from remat_cli.core.problem import Budget, Observer, PlanResult, Problem, Status
from remat_cli.core.schedule import Offload, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of, solve
from remat_cli.errors import PlannerRefuses, UsageError
from remat_cli.planners.pofo.options import StateRounding
from remat_cli.planners.pofo.planner import Pofo
from remat_cli.planners.rotor.planner import Rotor
from remat_cli.planners.shared.chain import Cuts
from tests.graphs import diamond, graph_of, op, training_chain, training_unet

PAPER = Pofo(improve=False, rounding=StateRounding.UP)
FAST, SLOW = Link(Fraction(100)), Link(Fraction(1, 10**6))


def tight(graph: Graph, share: float = 0.6, link: Link | None = FAST) -> Problem:
    return Problem(graph, Budget(int(share * baseline_of(graph).peak_bytes)), link)


def refusal(problem: Problem) -> PlannerRefuses:
    with pytest.raises(PlannerRefuses) as caught:
        Pofo().plan(problem, Observer())
    return caught.value


def offloads(result: PlanResult) -> int:
    assert result.schedule is not None
    return sum(isinstance(step, Offload) for step in result.schedule.steps)


def test_without_a_link_it_says_how_to_give_one() -> None:
    refused = refusal(tight(training_chain(6), link=None))
    assert "the bandwidth of the link is not known" in refused.message
    for way_out in ("--link-bandwidth", "--device", "rotor"):
        assert way_out in refused.hint


def test_an_inference_graph_is_refused_whatever_the_link() -> None:
    for link in (None, FAST):
        refused = refusal(tight(diamond(), link=link))
        assert refused.message == "pofo plans training graphs, but 'test' has no backward ops"


def test_a_graph_that_cannot_be_cut_is_refused_with_the_size_of_its_segment() -> None:
    forward = [op("f0", "", "a b c"), op("f1", "a b c", "d")]
    loss = op("loss", "d", "g", phase=Phase.BACKWARD)
    graph = graph_of(*forward, loss, op("b1", "g a b c", "h", phase=Phase.BACKWARD), kind=Kind.TRAINING)
    with pytest.raises(PlannerRefuses, match="one segment holds 2 of 2 forward ops"):
        Pofo(cuts=Cuts.SINGLE).plan(tight(graph, 0.9), Observer())


def test_a_budget_that_the_plain_run_fits_gives_the_plain_run() -> None:
    graph = training_unet(3)
    result = PAPER.plan(tight(graph, 1.0), Observer())
    assert result.schedule == plain_run(graph)


CHAIN = training_chain(10, size=100, time=10)
EXAMPLES = pytest.mark.parametrize(("graph", "share"), [(CHAIN, 0.6), (training_unet(4), 0.8)], ids=["chain", "unet"])


@EXAMPLES
def test_with_a_fast_link_nothing_is_recomputed(graph: Graph, share: float) -> None:
    solution = solve(tight(graph, share), PAPER)
    assert solution.trace is not None
    assert solution.trace.recomputations == 0
    assert offloads(solution.result) > 0


@EXAMPLES
def test_with_a_slow_link_it_is_about_as_fast_as_rotor(graph: Graph, share: float) -> None:
    problem = tight(graph, share, SLOW)
    solution, recomputing = solve(problem, Pofo()), solve(problem, Rotor())
    assert offloads(solution.result) == 0
    assert solution.trace is not None
    assert recomputing.trace is not None
    assert solution.trace.time <= 1.05 * recomputing.trace.time


def test_recomputing_and_moving_together_are_faster_than_recomputing() -> None:
    problem = tight(CHAIN, 0.4, Link(Fraction(4)))
    both, recomputing = solve(problem, PAPER), solve(problem, Rotor())
    assert both.trace is not None
    assert recomputing.trace is not None
    assert CHAIN.total_time < both.trace.time < recomputing.trace.time
    assert both.trace.recomputations > 0
    assert offloads(both.result) > 0


def test_waiting_for_whole_tensors_shows_in_the_trace_and_not_in_the_fluid_time() -> None:
    solution = solve(tight(CHAIN, 0.4, Link(Fraction(4))), PAPER)
    (figure,) = solution.result.model_figures
    assert (figure.name, figure.unit) == ("fluid time (paper's model)", "time")
    assert solution.trace is not None
    assert solution.trace.time == figure.value + solution.trace.idle_time
    assert solution.trace.idle_time > 0


@EXAMPLES
@pytest.mark.parametrize("rate", [1, 3, 100])
def test_improving_never_makes_a_plan_slower(rate: int, graph: Graph, share: float) -> None:
    problem = tight(graph, share, Link(Fraction(rate)))
    paper, improved = solve(problem, PAPER), solve(problem, Pofo())
    assert paper.trace is not None
    assert improved.trace is not None
    assert improved.trace.time <= paper.trace.time


def test_without_a_plan_the_closest_is_what_takes_least_memory() -> None:
    graph = training_chain(10, size=100)
    result = Pofo().plan(Problem(graph, Budget(1), FAST), Observer())
    assert result.status is Status.UNKNOWN
    assert result.closest is not None
    peak = simulate(graph, result.closest, link=FAST).peak_bytes
    assert solve(Problem(graph, Budget(peak), FAST), Pofo()).trace is not None


def test_work_is_counted() -> None:
    result = PAPER.plan(tight(training_chain(6, size=10)), Observer())
    assert result.stats["segments"] == 6
    assert result.stats["replays"] > 1


def test_out_of_time_it_still_tries_to_move_tensors() -> None:
    result = replace(Pofo(), time_limit=0).plan(tight(training_chain(6, size=10)), Observer())
    assert result.schedule is not None
    assert result.schedule.has_transfers


def test_a_table_that_is_too_large_is_refused_before_it_is_made() -> None:
    with pytest.raises(UsageError, match=r"pofo's table of 7 layers and \d+ slots takes .* GB, more than 2.000 GB"):
        Pofo(memory_slots=1000).plan(tight(training_chain(6, size=10**6)), Observer())


@pytest.mark.parametrize("option", ["segments", "memory_slots", "candidates", "time_limit"])
def test_nonsense_options(option: str) -> None:
    nonsense: dict[str, Any] = {option: -1}
    with pytest.raises(UsageError, match=f"{option} is -1"):
        Pofo(**nonsense)
