"""Whom `auto` asks, in which order and for which share of the time, by the kind of graph and how near the bound is."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.core.problem import Budget, Observer, Problem
from remat_cli.core.solve import baseline_of, solve
from remat_cli.planners.auto import portfolio
from remat_cli.planners.auto.members import AutoPlanners
from remat_cli.planners.auto.portfolio import NEAR, Portfolio, Stage, Standing, Turn
from remat_cli.planners.dtr.options import Heuristic
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from tests.graphs import chain, training_chain
from tests.plans import at_share

SECONDS = 10_000.0
TABLES = ("FIRST", "WITH_TRANSFERS", "RECOMPUTING", "LAST_WITH_TRANSFERS")


class Asked:
    """Stands in for all planners, which find nothing.

    Attributes:
        turns: what was asked, with the percentage of the time, and the work where that is limited.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gap: float | None = None) -> None:
        self.turns: list[str] = []
        for table in TABLES:
            monkeypatch.setattr(portfolio, table, tuple(map(self._without_planners, getattr(portfolio, table))))
        if gap is not None:
            monkeypatch.setattr(Incumbent, "gap", property(lambda _: gap))

    def _without_planners(self, stage: Stage) -> Stage:
        return stage._replace(turns=tuple(turn._replace(ask=self._noting(turn)) for turn in stage.turns))

    def _noting(self, turn: Turn) -> Any:
        name = turn.ask.func.__name__ if isinstance(turn.ask, partial) else turn.ask.__name__

        def note(_: AutoPlanners, limits: Limits) -> None:
            percent = round(100 * limits.seconds / SECONDS)
            self.turns.append(f"{name} {percent}%" + (f" {limits.work:g}" if limits.work < 10**9 else ""))

        return note

    def of(self, graph: Graph, *, offload: bool = False) -> list[str]:
        problem = Problem(
            graph, Budget(baseline_of(graph).peak_bytes - 1), Link(Fraction(1)) if offload else None, offload
        )
        Portfolio(problem, Observer(), Limits.of(SECONDS), gap=0.0005, patience=1.0).run()
        return self.turns


def inference(ops: int) -> Graph:
    return chain(*[1] * (ops - 1), 2)


BEGIN = ["keep_all 100%", "evict 25%", "prove 25%"]
BEGIN_LARGE = ["keep_all 100%", "cut_once 100%", "prove 25%"]
COMPILES = "compile_annealing 100%"
CUTS = ["search_min_cuts 100%", "prove_at_cuts 20% 3"]
OTHER_PLANS = ["restart_min_cuts 25%", "plan_chain 25%"]
LONG_TURNS = ["restart_min_cuts 25%", "prove_at_cuts 100% 20"]
# Of each graph: whom `auto` asks far from the bound, and near it.
STAGES = {
    "training, 17 ops": (
        training_chain(8),
        [*BEGIN, "settle 100% 1000", *CUTS, *OTHER_PLANS, "retain 70%", *LONG_TURNS, "settle 100% 20000"],
        [*BEGIN, "settle 100% 1000", *CUTS, "retain 100%", "settle 100% 20000"],
    ),
    "training, 31 ops": (
        training_chain(15),
        [
            *(*BEGIN, *CUTS, "plan_chain 25%", "settle 25% 20000", *OTHER_PLANS, "retain 70%", *LONG_TURNS),
            "settle 100% 40000",
        ],
        [*BEGIN, *CUTS, "settle 25% 20000", "retain 100%", "settle 100% 40000"],
    ),
    "training, 45 ops": (
        training_chain(22),
        [*BEGIN, *CUTS, "plan_chain 25%", *OTHER_PLANS, "retain 70%", *LONG_TURNS, "settle 100% 40000"],
        [*BEGIN, *CUTS, "retain 100%", "settle 100% 40000"],
    ),
    "training, 81 ops": (
        training_chain(40),
        [*BEGIN, *CUTS, *OTHER_PLANS, "retain 70%", *LONG_TURNS],
        [*BEGIN, *CUTS, "retain 100%"],
    ),
    "training, 3,201 ops": (
        training_chain(1_600),
        [*BEGIN_LARGE, "search_min_cuts 100%", "retain 70%"],
        [*BEGIN_LARGE, "search_min_cuts 100%"],
    ),
    "inference, 20 ops": (
        inference(20),
        [*BEGIN, "settle 100% 1000", "search_min_cuts 25%", "retain 100%", "settle 100% 20000"],
        [*BEGIN, "settle 100% 1000", "search_min_cuts 25%", "retain 100%", "settle 100% 20000"],
    ),
    "inference, 40 ops": (
        inference(40),
        [*BEGIN, COMPILES, "search_min_cuts 25%", "retain 100%", "anneal 100%", "settle 100% 20000"],
        [*BEGIN, "search_min_cuts 25%", "retain 100%", "settle 100% 20000"],
    ),
    "inference, 100 ops": (
        inference(100),
        [*BEGIN, COMPILES, "search_min_cuts 25%", "retain 100%", "anneal 100%"],
        [*BEGIN, "search_min_cuts 25%", "retain 100%"],
    ),
    "inference, 300 ops": (
        inference(300),
        [*BEGIN, COMPILES, "search_min_cuts 25%", "anneal 70%", "retain 100%"],
        [*BEGIN, "search_min_cuts 25%", "retain 100%"],
    ),
    "inference, 800 ops": (
        inference(800),
        [*BEGIN, COMPILES, "search_min_cuts 25%", "anneal 70%", "retain 100%"],
        [*BEGIN, "search_min_cuts 25%", "retain 70%"],
    ),
    "inference, 1,200 ops": (
        inference(1_200),
        [*BEGIN, COMPILES, "search_min_cuts 25%", "anneal 70%", "retain 100%"],
        [*BEGIN, "search_min_cuts 25%"],
    ),
    "inference, 6,000 ops": (
        inference(6_000),
        [*BEGIN_LARGE, COMPILES, "search_min_cuts 25%", "anneal 100%"],
        [*BEGIN_LARGE, "search_min_cuts 25%", "anneal 100%"],
    ),
}


@pytest.mark.parametrize("kind", STAGES)
def test_who_is_asked_far_from_the_bound(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, far, _ = STAGES[kind]
    assert Asked(monkeypatch).of(graph) == far


@pytest.mark.parametrize("kind", STAGES)
def test_who_is_asked_near_the_bound(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _, near = STAGES[kind]
    assert Asked(monkeypatch, gap=NEAR / 2).of(graph) == near


@pytest.mark.parametrize(("ops", "first"), [(300, "retain"), (700, "anneal"), (1_500, "anneal"), (1_600, "retain")])
def test_in_graphs_of_middle_size_annealing_comes_first_at_a_smaller_gap(
    ops: int, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Asked(monkeypatch, gap=0.05).of(inference(ops))
    assert turns[len(BEGIN) + 2].startswith(first)


@pytest.mark.parametrize("ops", [300, 1_200])
def test_until_annealing_is_compiled_retention_comes_first_and_leaves_it_time(
    ops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portfolio, "_is_compiled", lambda: False)
    turns = Asked(monkeypatch).of(inference(ops))
    assert turns[len(BEGIN) :] == [COMPILES, "search_min_cuts 25%", "retain 70%", "anneal 100%"]


def test_with_transfers_offloading_frames_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, far, _ = STAGES["training, 81 ops"]
    turns = Asked(monkeypatch).of(graph, offload=True)
    assert turns == [*BEGIN, "offload 40%", "plan_fluid_chain 40%", *far[len(BEGIN) :], "offload 100%"]


def test_the_best_plan_of_another_planner_is_improved_by_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Standing, "found_by", "retention")
    _, far, _ = STAGES["training, 81 ops"]
    turns = Asked(monkeypatch).of(training_chain(40))
    at = far.index("retain 70%") + 1
    assert turns == [*far[:at], "improve_by_min_cuts 100%", *far[at:]]


@pytest.mark.parametrize(("share", "finds"), [(0.4, True), (0.35, False)])
def test_eviction_is_given_up_where_it_takes_half_as_much_again_as_the_plain_run(share: float, finds: bool) -> None:
    """At 40 % of its peak this chain's greedy run takes 1.3 to 1.5 times the plain run's time, at 35 % 1.5 to 1.7."""
    problem = at_share(training_chain(24), share)
    for limit, fits in ((1.3, False), (1.7, True)):
        assert (solve(problem, DTR(Heuristic.LOCAL, candidates=1, limit=limit)).trace is not None) == fits
    members = AutoPlanners(problem, Observer(), Limits.of(SECONDS), gap=0.0, patience=1.0, work=0.0)
    members.evict(Limits.of(SECONDS))
    assert (members.incumbent.best is not None) == finds
