"""The HTML report of a pipeline in a real browser: it draws all ranks, tells of jobs, and zooms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from remat_cli.config import Request
from remat_cli.pipelines import PipelinePlanning, PipelineRequest, plan_pipeline
from remat_cli.pipelines.chunks import Residents
from remat_cli.pipelines.request import parse_rank_budgets
from remat_cli.reports.html.pipeline import planned_pipeline_page
from tests.browser.test_html_report import CHROMIUM
from tests.graphs import layered_step
from tests.plans import prepared

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")


@pytest.fixture(scope="module")
def planning() -> PipelinePlanning:
    graph = layered_step(4, times=(3, 4, 2))
    request = PipelineRequest(2, 4, parse_rank_budgets("90%"), cuts=("f3",), split_backward=True)
    return plan_pipeline(prepared(graph), Residents({}, {}), request, Request())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, planning: PipelinePlanning, tmp_path: Path) -> Iterator[Page]:
    """The page of the planning, on which nothing may go wrong, and that may load nothing but itself."""
    file = tmp_path / "pipeline.html"
    file.write_bytes(planned_pipeline_page(planning))
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("file:") else wrong.append(request.url))
    page.goto(file.as_uri())
    page.evaluate("draw()")
    yield page
    page.close()
    assert wrong == []


def test_script_has_the_jobs_and_memory_of_the_replay(page: Page, planning: PipelinePlanning) -> None:
    replay = planning.replay
    assert replay is not None
    for rank, runs in enumerate(replay.ran):
        read = page.evaluate(
            "(rank) => { const { jobs, starts, ends, memory, times } = ui.ranks[rank];"
            " return [jobs, [...starts], [...ends], Math.max(...memory), times[times.length - 1]]; }",
            rank,
        )
        assert read == [
            [run.job.text for run in runs],
            [run.start for run in runs],
            [run.end for run in runs],
            replay.peaks[rank],
            replay.makespan,
        ]


def test_each_kind_of_job_has_its_colour(page: Page, planning: PipelinePlanning) -> None:
    replay = planning.replay
    assert replay is not None
    places = [
        (rank, run.start, str(run.job.kind))
        for rank, runs in enumerate(replay.ran)
        for run in runs
        if run.end > run.start
    ]
    places.append((1, 0, "idle"))
    seen = page.evaluate(
        "(places) => { const canvas = ui.plot, scale = canvas.width / canvas.clientWidth;"
        " const pixels = new Uint32Array("
        "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer);"
        " return places.map(([rank, time]) => pixels[Math.round((topOf(rank) + 2) * scale) * canvas.width"
        " + Math.round((ui.scale.x(time) + 3) * scale)]); }",
        [(rank, time) for rank, time, _ in places],
    )
    colours: dict[str, set[int]] = {}
    for (_, _, kind), colour in zip(places, seen, strict=True):
        colours.setdefault(kind, set()).add(colour)
    assert {kind: len(each) for kind, each in colours.items()} == {"F": 1, "I": 1, "W": 1, "idle": 1}
    assert len(set().union(*colours.values())) == 4


def test_mouse_tells_the_job_and_idle_time(page: Page, planning: PipelinePlanning) -> None:
    replay = planning.replay
    assert replay is not None
    box = page.locator("#ranks").bounding_box()
    assert box is not None
    run = replay.ran[1][0]
    for time, said in (((run.start + run.end) / 2, "rank 1: 1F0"), (run.start / 2, "rank 1: idle")):
        x, y = page.evaluate("(time) => [ui.scale.x(time), topOf(1) + 5]", time)
        page.mouse.move(box["x"] + x, box["y"] + y)
        assert said in page.locator("#tip").inner_text()


def test_keys_buttons_and_drag_zoom(page: Page) -> None:
    page.locator("#zoom-in").click()
    assert page.evaluate("(ui.to - ui.from) / ui.total") == 0.5
    page.locator("#ranks").press("0")
    assert page.evaluate("ui.to - ui.from === ui.total")
    box = page.locator("#ranks").bounding_box()
    assert box is not None
    left, right = (box["x"] + page.evaluate("(share) => ui.scale.x(share * ui.total)", share) for share in (0.25, 0.5))
    page.mouse.move(left, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(right, box["y"] + 30, steps=4)
    page.mouse.up()
    shown = page.evaluate("[ui.from / ui.total, ui.to / ui.total]")
    assert shown == pytest.approx([0.25, 0.5], abs=0.01)
