"""The HTML report of a pipeline as a file."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from remat_cli.config import Request
from remat_cli.pipelines import PipelinePlanning, PipelineRequest, plan_pipeline
from remat_cli.pipelines.chunks import Residents
from remat_cli.pipelines.request import parse_rank_budgets
from remat_cli.reports.html.pipeline import pipeline_page, planned_pipeline_page
from tests.graphs import layered_step
from tests.plans import prepared
from tests.unit.reports.html.test_page import Parsed

RESIDENTS = Residents({}, {})


@cache
def planned(budget: str = "90%") -> PipelinePlanning:
    request = PipelineRequest(2, 4, parse_rank_budgets(budget), cuts=("f3",), split_backward=True)
    return plan_pipeline(prepared(layered_step(4, times=(3, 4, 2))), RESIDENTS, request, Request())


def test_same_plan_gives_the_same_bytes() -> None:
    assert planned_pipeline_page(planned()) == planned_pipeline_page(planned())


def test_data_has_the_jobs_the_recomputing_and_the_memory_of_each_rank() -> None:
    planning = planned()
    assert planning.replay is not None
    data = Parsed(planned_pipeline_page(planning)).data
    assert data["makespan"] == planning.replay.makespan
    assert sum(sum(rank["again"]) for rank in data["ranks"]) == planning.replay.recomputing > 0
    for number, rank in enumerate(data["ranks"]):
        assert rank["jobs"] == [run.job.text for run in planning.replay.ran[number]]
        assert sum(rank["durations"]) == planning.replay.busy[number]
        levels = [sum(rank["memory"][: last + 1]) for last in range(len(rank["memory"]))]
        assert max(levels) == rank["peak"] == planning.replay.peaks[number] <= rank["budget"]
        assert levels[0] == planning.chunks[number].fixed_bytes(4)


def test_figures_and_what_ranks_recompute_stand_there_without_the_script() -> None:
    page = Parsed(planned_pipeline_page(planned()))
    cells = [*page.texts["th"], *page.texts["td"]]
    assert {"makespan", "idle", "bound", "recomputes", "extra time"} <= set(cells)
    assert any("×)" in cell for cell in page.texts["td"])
    kinds = {attrs["class"] for tag, attrs in page.elements if tag == "rect"}
    assert {"idle", "F", "I", "W"} <= kinds


def test_page_of_a_file_has_its_figures() -> None:
    planning = planned()
    assert planning.pipeline is not None
    assert planning.replay is not None
    page = Parsed(pipeline_page(planning.prepared, planning.pipeline, planning.replay, planning.budgets))
    assert f"{planning.replay.makespan}" in page.texts["td"]
    assert len(page.data["ranks"]) == 2


def test_page_without_a_plan_says_why_and_has_no_chart() -> None:
    page = Parsed(planned_pipeline_page(planned("5")))
    assert "No pipeline fits" in " ".join(page.texts["p"])
    assert not any(attrs.get("id") == "ranks" for _, attrs in page.elements)


@pytest.mark.parametrize("name", ["</script><!--<script>alert(1)</script>\x1b[31m", "x" * 1_000_000])
def test_names_stay_harmless_and_short(name: str) -> None:
    planning = planned()
    named = replace(
        planning, prepared=replace(planning.prepared, graph=planning.prepared.graph.edited(name=name).checked())
    )
    content = planned_pipeline_page(named)
    assert len(content) < 200_000
    assert "alert(1)</script>" not in content.decode()
