"""The main path: what a request asks for is what is planned, and what came of it is told."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import pytest

from remat_cli.config import GraphOptions, PlannerChoice
from remat_cli.core.link import Link
from remat_cli.core.problem import Observer, PlanResult, Problem, Status
from remat_cli.core.schedule import plain_run, with_frees
from remat_cli.errors import UsageError
from remat_cli.formats.schedule_json import read_schedule
from remat_cli.planning import Planning, Request, plan
from remat_cli.units import BudgetSpec, parse_budget
from tests.graphs import training_chain
from tests.plans import asking, prepared

# The plain run peaks at 5 bytes and takes 13; recomputing f1 brings that to 4 and 14.
GRAPH = training_chain(4)
READY = prepared(GRAPH, link=Link(Fraction(1)), options=GraphOptions(device="a100"), notes=("a note",))


@dataclass(frozen=True)
class Recomputing:
    """Runs f1 again, whatever the budget; notes what it is asked."""

    asked: list[Problem] = field(default_factory=list)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        self.asked.append(problem)
        order = ("f1", "f2", "f3", "f4", "loss", "b4", "b3", "f1", "b2", "b1")
        return PlanResult(Status.FEASIBLE, with_frees(GRAPH, order))


def planned(budget: str, **said: object) -> Planning:
    return plan(READY, asking(Recomputing(), budget=parse_budget(budget), **said))


@pytest.mark.parametrize(("budget", "size"), [("4", 4), ("80%", 4), ("100%", 5), ("60% of activations", 4)])
def test_a_budget_is_taken_in_bytes_whatever_it_is_a_share_of(budget: str, size: int) -> None:
    planner = Recomputing()
    planning = plan(READY, asking(planner, budget=parse_budget(budget)))
    assert planning.budget_bytes == planner.asked[0].budget.device_bytes == size
    assert (planning.peak_bytes, planning.search) == (4, None)
    assert planning.overhead == pytest.approx(1 / 13)


def test_a_refusal_takes_no_longer_than_a_plan_may() -> None:
    ready, budget = prepared(training_chain(12)), parse_budget("1")
    refused = plan(ready, Request(budget, PlannerChoice("auto"))).solution
    assert refused.closest is not None
    assert refused.closest.peak_bytes < refused.baseline.peak_bytes
    without_time = plan(ready, Request(budget, PlannerChoice("auto", {"time_limit": 0}))).solution
    assert without_time.closest == without_time.baseline


@pytest.mark.parametrize("offload", [False, True])
def test_plans_may_offload_where_the_request_says_so(offload: bool) -> None:
    planner = Recomputing()
    plan(READY, asking(planner, budget=parse_budget("4"), offload=offload))
    assert (planner.asked[0].link, planner.asked[0].offload) == (READY.link, offload)


def test_plans_may_not_offload_over_a_link_that_nobody_knows() -> None:
    with pytest.raises(UsageError, match="no link to it is known"):
        plan(replace(READY, link=None), asking(Recomputing(), budget=parse_budget("4"), offload=True))


def test_the_smallest_budget_is_searched() -> None:
    planning = planned("min")
    assert planning.search is not None
    assert planning.search.found_bytes == planning.budget_bytes == 4


def test_a_plan_of_more_overhead_than_is_asked_for_does_not_count() -> None:
    assert planned("4", max_overhead=Fraction(1, 13)).schedule is not None
    refused = planned("4", max_overhead=Fraction(1, 14))
    assert (refused.schedule, refused.trace, refused.peak_bytes, refused.status) == (None, None, None, Status.UNKNOWN)


def test_without_a_budget_nothing_can_be_planned() -> None:
    with pytest.raises(UsageError, match="a plan needs a budget"):
        plan(READY, Request())


def test_the_planner_that_was_named_is_asked_or_the_default() -> None:
    named = plan(READY, Request(BudgetSpec(share=Fraction(1)), PlannerChoice("keep_all")))
    assert (named.planner.name, named.schedule) == ("keep_all", plain_run(GRAPH))
    assert plan(READY, Request(BudgetSpec(share=Fraction(1)))).planner.name == "auto"


def test_the_schedule_file_says_how_the_graph_was_read_and_who_planned(tmp_path: Path) -> None:
    planning = plan(READY, Request(parse_budget("100%"), PlannerChoice("keep_all")))
    planning.save(tmp_path / "s.json")
    file = read_schedule(tmp_path / "s.json")
    assert (tmp_path / "s.json").read_bytes() == planning.schedule_file
    assert (file.schedule, file.planner, file.read_with) == (plain_run(GRAPH), "keep_all", {"device": "a100"})
    assert (file.mode, file.budget_bytes) == ("training", 5)


def test_where_there_is_no_plan_none_is_saved_and_the_file_says_why(tmp_path: Path) -> None:
    planning = plan(READY, Request(parse_budget("1"), PlannerChoice("keep_all")))
    reason = planning.solution.result.reason
    assert reason
    with pytest.raises(UsageError, match=re.escape(f"there is no plan to save: {reason}")):
        planning.save(tmp_path / "s.json")
    assert list(tmp_path.iterdir()) == []
    assert json.loads(planning.schedule_file)["status"] == "infeasible"


def test_the_summary_holds_graph_planner_figures_and_notes() -> None:
    summary = plan(READY, Request(parse_budget("100%"), PlannerChoice("dtr", {"candidates": 3}))).summary()
    assert summary["graph"]["ops"] == len(GRAPH.ops)
    assert summary["planner"]["name"] == "dtr"
    assert summary["planner"]["options"]["candidates"] == 3
    assert (summary["budget_bytes"], summary["peak_bytes"], summary["notes"]) == (5, 5, ["a note"])
    assert json.loads(json.dumps(summary)) == summary
