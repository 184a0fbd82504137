"""The summaries hold the figures of the reports, as JSON."""

from __future__ import annotations

import json

import pytest

from remat_cli.core.graph import Graph
from remat_cli.core.link import Duplex
from remat_cli.core.problem import ModelFigure, PlanResult, Scope, Status
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import simulate
from remat_cli.formats.native import graph_sha256
from remat_cli.planners import PLANNERS
from remat_cli.planning import SmallestBudget
from remat_cli.reports.summary import budget_summary, inspect_summary, planners_summary, verify_summary
from remat_cli.training import KeptForBackward
from tests.graphs import training_chain
from tests.plans import prepared
from tests.unit.reports.rendering import moving, planning, solved, two_again


@pytest.fixture
def graph() -> Graph:
    return training_chain(6)


@pytest.fixture
def schedule(graph: Graph) -> Schedule:
    return two_again(graph)


def test_the_summary_of_a_plan(graph: Graph, schedule: Schedule) -> None:
    figures = (ModelFigure("paper cost", 4, "bytes"),)
    solution = solved(graph, 6, PlanResult(Status.FEASIBLE, schedule=schedule, model_figures=figures))
    summary = planning(solution, prepared(graph, notes=("a note",)), blocks=2).summary()
    assert summary == {
        "graph": {
            "name": "test",
            "kind": "training",
            "mode": "training",
            "ops": 13,
            "sha256": graph_sha256(graph),
            "time_unit": "unit",
            "costs": "times as given in the file",
            "estimated": False,
        },
        "planner": {"name": "hand", "options": {"blocks": 2}},
        "status": "feasible",
        "scope": "any-order",
        "scope_transfers": True,
        "interrupted": False,
        "reason": "",
        "budget_bytes": 6,
        "fixed_bytes": 0,
        "baseline": {"peak_bytes": 7, "time": 19},
        "peak_bytes": 5,
        "time": 21,
        "idle_time": 0,
        "recomputations": 2,
        "recomputed_ops": 2,
        "link": None,
        "overhead": pytest.approx(2 / 19),
        "bound": {"overhead": 0.0, "scope": "any-order", "transfers": True, "basis": "counted"},
        "bounds": [{"overhead": 0.0, "scope": "any-order", "transfers": True, "basis": "counted"}],
        "basis": "counted",
        "warnings": [],
        "gap": pytest.approx(2 / 19),
        "arena": None,
        "reserved": None,
        "found_by": None,
        "model_figures": [{"name": "paper cost", "value": 4, "unit": "bytes"}],
        "closest_peak_bytes": None,
        "working_set": {"bytes": 3, "op": "b6", "tensors": ["a5", "g5", "g6"]},
        "notes": ["a note"],
    }


def test_without_a_plan_its_figures_are_null_and_the_closest_peak_is_told(graph: Graph, schedule: Schedule) -> None:
    solution = solved(graph, 4, PlanResult(Status.UNKNOWN, closest=schedule, reason="it was late"))
    summary = planning(solution).summary()
    assert [summary[key] for key in ("peak_bytes", "time", "recomputed_ops", "overhead", "bound", "gap")] == [None] * 6
    assert (summary["status"], summary["reason"], summary["closest_peak_bytes"]) == ("unknown", "it was late", 5)


def test_the_summary_of_an_inspection(graph: Graph) -> None:
    ready = prepared(graph, kept=KeptForBackward(5, 1, ()), parameter_bytes=3, optimizer="adam")
    summary = inspect_summary(ready)
    assert summary["ops"] == {"forward": 6, "backward": 7}
    assert summary["types"] == {"Test": 13}
    assert (summary["parameter_bytes"], summary["optimizer"]) == (3, "adam")
    assert summary["kept_for_backward"] == {"float_bytes": 5, "integer_bytes": 1, "by_module": []}
    assert summary["plain"] == {"peak_bytes": 7, "time": 19, "op_at_peak": "loss"}
    assert summary["at_peak"][0] == {"tensor": "a1", "bytes": 1, "op": "f1"}
    assert len(summary["at_peak"]) == 7
    assert summary["working_set"]["bytes"] == 3


def test_the_summary_of_a_search_gives_both_ends(graph: Graph, schedule: Schedule) -> None:
    solution = solved(graph, 5, PlanResult(Status.FEASIBLE, schedule=schedule))
    summary = budget_summary(planning(solution, search=SmallestBudget(3, Scope.PLANNER, solution)))
    assert (summary["proven_bytes"], summary["scope"], summary["found_bytes"]) == (3, "planner", 5)
    assert summary["overhead"] == pytest.approx(2 / 19)


@pytest.mark.parametrize(("budget_bytes", "fits"), [(None, None), (5, True), (4, False)])
def test_the_summary_of_a_replay_says_whether_it_fits(
    graph: Graph, schedule: Schedule, budget_bytes: int | None, fits: bool | None
) -> None:
    summary = verify_summary(prepared(graph), simulate(graph, schedule), budget_bytes=budget_bytes)
    assert summary["fits"] is fits
    assert (summary["peak_bytes"], summary["overhead"]) == (5, pytest.approx(2 / 19))


def test_the_summary_of_a_replay_says_what_goes_over_the_link() -> None:
    run = moving(Duplex.FULL)
    one_way = {"transfers": 1, "bytes": 4 * 10**6, "busy_time": 4}
    assert verify_summary(prepared(run.graph), run.trace)["link"] == {
        "bytes_per_time": "1000000",
        "duplex": "full",
        "to_host": one_way,
        "to_device": one_way,
        "tensors": [{"tensor": "t1", "bytes": 4 * 10**6, "copies": 2}],
    }


def test_the_summary_of_the_planners_has_them_all() -> None:
    assert [planner["name"] for planner in planners_summary()["planners"]] == list(PLANNERS)


def test_all_summaries_are_json(graph: Graph, schedule: Schedule) -> None:
    solution = solved(graph, 6, PlanResult(Status.FEASIBLE, schedule=schedule))
    ready = prepared(graph)
    for summary in (
        planning(solution, ready, blocks=2).summary(),
        inspect_summary(ready),
        budget_summary(planning(solution, search=SmallestBudget(3, Scope.PLANNER, solution))),
        verify_summary(ready, simulate(graph, schedule), budget_bytes=5),
        planners_summary(),
    ):
        assert json.loads(json.dumps(summary)) == summary
