"""The HTML report in a real browser: it draws, tells, zooms and searches, and asks no network for anything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Graph
from remat_cli.core.link import Duplex, Link
from remat_cli.core.problem import Budget, PlanResult, Problem, Status
from remat_cli.core.schedule import Compute, Free, Offload, Prefetch, Schedule, Step, Wait, input_order, with_frees
from remat_cli.core.solve import solve
from remat_cli.prepare import prepare
from remat_cli.reports.html.lifetimes import Stay, Story
from remat_cli.reports.html.page import plan_page
from remat_cli.reports.timeline import Run
from remat_cli.units import format_bytes, format_share, format_time
from tests.graphs import graph_of, op, training_chain
from tests.places import GRAPHS
from tests.plans import prepared
from tests.unit.reports.rendering import Claims, moving, planning, solved, solved_in_parts

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")

MB = 10**6
NASTY = "</script><img/src=x/onerror=alert(1)>\x1b[31m"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def written(folder: Path, graph: Graph, *computes: str, budget: int = 65 * MB) -> Path:
    result = PlanResult(Status.FEASIBLE, schedule=with_frees(graph, computes))
    path = folder / "report.html"
    path.write_bytes(plan_page(planning(solved(graph, budget, result))))
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """a1 is dropped after f2 has read it, and made again for b2: with it, the loss would need 80 MB of 65."""
    graph = training_chain(4, size=20 * MB)
    sizes = {name: replace(t, bytes=5 * MB if name in ("a2", "a4") else t.bytes) for name, t in graph.tensors.items()}
    graph = replace(graph, tensors=sizes)
    computes = ("f1", "f2", "f3", "f4", "loss", "b4", "b3", "f1", "b2", "b1")
    return written(tmp_path_factory.mktemp("report"), graph, *computes)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which nothing may go wrong, and that may load nothing but the report."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("file:") else wrong.append(request.url))
    yield page
    page.close()
    assert wrong == []


def opened(page: Page, report: Path) -> Page:
    page.goto(report.as_uri())
    page.evaluate("draw()")
    return page


def hover(page: Page, tensor: str, moment: int) -> str:
    """Point at a moment of a tensor's row, and return what is said."""
    page.locator("#lifetimes").scroll_into_view_if_needed()
    x, y = page.evaluate(
        """([name, moment]) => {
            const box = $("lifetimes").getBoundingClientRect(), row = ui.rows.indexOf(ui.graph.names.indexOf(name));
            const edges = ui.edges(ui.run);
            return [$("memory").getBoundingClientRect().left + ui.scale.x((edges[moment] + edges[moment + 1]) / 2),
                    box.top + 1 + (row + 0.5) * ui.rowHeight - $("lifetimes").scrollTop];
        }""",
        [tensor, moment],
    )
    page.mouse.move(x, y)
    return page.locator("#tip").inner_text()


def eventually(page: Page, condition: str) -> None:
    """Wait until a condition holds. (Playwright's own way to do so is against the page's policy.)"""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(20)
    pytest.fail(f"{condition} never came true")


def painted(page: Page, canvas: str) -> int:
    """The number of different colours on a canvas."""
    script = """(canvas) => new Set(new Uint32Array(canvas.getContext("2d").getImageData(
        0, 0, canvas.width, canvas.height).data.buffer)).size"""
    return int(page.locator(canvas).evaluate(script))


def test_it_draws(page: Page, report: Path) -> None:
    opened(page, report)
    assert min(painted(page, canvas) for canvas in ("#overview", "#memory", "#bars-canvas")) > 2
    assert page.locator("#matches").inner_text() == "9 tensors"
    assert page.locator("h1").inner_text() == "test"


def test_pointing_at_a_bar_tells_when_and_why(page: Page, report: Path) -> None:
    opened(page, report)
    there = hover(page, "a1", 0)
    assert there.startswith("a1\n")
    assert "20.00 MB" in there
    assert "f1 (Test)" in there
    assert "Made by f1." in there
    # a3 and the gradients of a4 and a3 fill it while b4 runs: 20 and 20 and 20, and a2 and what is left of a4.
    away = hover(page, "a1", 4)
    assert "Dropped after f2. Away for 7. Had it stayed, memory at b4 would be" in away
    assert "over the budget." in away
    assert "Recomputed: f1 runs again (1) for b2." in away
    assert "Freed: b2 was the last to read it." in hover(page, "a1", 7)
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden()


def test_the_reason_is_what_the_simulator_says(page: Page, report: Path) -> None:
    opened(page, report)
    least, fullest = page.evaluate(
        """() => {
            const {run, graph} = ui, stay = run.first[graph.names.indexOf("a1")];
            return [run.memory[run.fullest[stay]], Math.max(...run.memory.slice(run.end[stay], run.start[stay + 1]))];
        }"""
    )
    assert least == fullest
    over = format_bytes(least + 20 * MB - 65 * MB)
    assert f"would be {format_bytes(least + 20 * MB)}: {over} over the budget." in hover(page, "a1", 4)


def test_pointing_at_memory_tells_what_runs_and_what_fills_it(page: Page, report: Path) -> None:
    opened(page, report)
    box = page.locator("#memory").bounding_box()
    assert box is not None
    x = page.evaluate("ui.scale.x((ui.run.times[7] + ui.run.times[8]) / 2)")
    page.mouse.move(box["x"] + x, box["y"] + 100)
    told = page.locator("#tip").inner_text()
    assert told.startswith("f1 again, for b2\n")
    assert "20.00 MB a1" in told.replace("  ", " ")


def test_dragging_zooms_in_and_a_double_click_out(page: Page, report: Path) -> None:
    opened(page, report)
    box = page.locator("#memory").bounding_box()
    assert box is not None
    whole = page.locator("#range").inner_text()
    page.mouse.move(box["x"] + 500, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 700, box["y"] + 60)
    page.mouse.up()
    page.evaluate("draw()")
    width = page.evaluate("(ui.to - ui.from) / ui.total * ui.scale.width")
    assert width == pytest.approx(200, abs=2)
    assert page.locator("#range").inner_text() != whole
    page.mouse.dblclick(box["x"] + 500, box["y"] + 60)
    page.evaluate("draw()")
    assert page.locator("#range").inner_text() == whole


def test_the_wheel_zooms_at_the_mouse_with_ctrl_and_scrolls_without(page: Page, report: Path) -> None:
    opened(page, report)
    box = page.locator("#memory").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 600, box["y"] + 60)
    before = page.evaluate("ui.scale.value(600)")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    eventually(page, "ui.to - ui.from < ui.total * 0.9")
    page.evaluate("draw()")
    assert page.evaluate("ui.scale.value(600)") == pytest.approx(before)
    shown = page.evaluate("[ui.from, ui.to]")
    page.mouse.wheel(0, 100)
    eventually(page, "scrollY > 0")
    assert page.evaluate("[ui.from, ui.to]") == shown


def test_searching_leaves_what_was_asked_for(page: Page, report: Path) -> None:
    opened(page, report)
    page.keyboard.press("/")
    page.locator("#search").fill("A1")
    assert page.locator("#matches").inner_text() == "1 tensor"
    page.locator("#search").press("Enter")
    assert page.locator("#details .name").inner_text() == "a1"
    assert page.locator("#details li").count() == 4
    page.locator("#search").fill("nothing like it")
    assert page.locator("#matches").inner_text() == "0 tensors"
    page.locator("#search").fill("")
    page.locator("#fate").select_option("recomputed")
    assert page.evaluate("ui.rows.map((row) => ui.graph.names[row])") == ["a1"]


def test_the_keyboard_is_enough(page: Page, report: Path) -> None:
    opened(page, report)
    page.locator("#lifetimes").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#details .name").inner_text() == "a1"
    page.keyboard.press("ArrowDown")
    second = page.locator("#details .name").inner_text()
    assert second != "a1"
    page.keyboard.press("Enter")
    assert page.evaluate("ui.to - ui.from < ui.total")
    page.keyboard.press("0")
    assert page.evaluate("ui.to - ui.from === ui.total")
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("ui.from > ui.total * 0.3")
    page.keyboard.press("Escape")
    assert page.locator("#details").inner_text() == ""


def test_the_plain_run_and_steps_can_be_looked_at(page: Page, report: Path) -> None:
    opened(page, report)
    page.locator("#run").select_option(label="plain run")
    assert "kept" in hover(page, "a1", 4)
    page.locator("#axis").get_by_text("steps").click()
    page.evaluate("draw()")
    assert page.locator("#range").inner_text() == "0 to 10 steps"


def test_the_plain_run_of_a_step_in_parts_has_the_ops_of_the_step(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(plan_page(planning(solved_in_parts())))
    opened(page, path)
    names = "[ui.run.label, ui.graph.opNames, ui.rows.map((row) => ui.graph.names[row])]"
    in_parts = ["plan", ["f1", "f2_part0", "f2_part1"], ["t1", "t2", "t3"]]
    assert page.evaluate(names) == in_parts
    page.evaluate("select(ui.graph.names.indexOf('t2'))")
    page.locator("#run").select_option(label="plain run")
    assert page.evaluate(names) == ["plain run", ["f1", "f2"], ["t1", "t2"]]
    assert page.locator("#details .name").inner_text() == "t2"
    assert "f2_part0" not in page.locator("#details").inner_text()
    page.locator("#largest").get_by_role("button", name="t1").click()
    assert page.evaluate(names) == in_parts
    assert page.locator("#details .name").inner_text() == "t1"


def test_names_in_the_tables_lead_to_the_lifetimes(page: Page, report: Path) -> None:
    opened(page, report)
    page.locator("#by-op").get_by_role("button", name="f1").click()
    assert page.locator("#details .name").inner_text() == "a1"
    page.locator("#largest").get_by_role("button", name="a2").click()
    assert page.locator("#details .name").inner_text() == "a2"


def test_light_and_dark_differ(page: Page, report: Path) -> None:
    page.emulate_media(color_scheme="dark")
    opened(page, report)
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background), page.evaluate("ui.colours.plan")
    page.get_by_role("button", name="Light").click()
    assert (page.evaluate(background), page.evaluate("ui.colours.plan")) != dark
    assert page.get_by_role("button", name="Dark").is_visible()


@pytest.mark.parametrize("name", ["unet.json", "skip_chain.json"])
def test_the_script_reads_what_was_written(page: Page, tmp_path: Path, name: str) -> None:
    ready = prepare(GRAPHS / name, GraphOptions())
    computes = [*input_order(ready.graph), *(each.name for each in ready.graph.ops[:3] if each.recomputable)]
    opened(page, written(tmp_path, ready.graph, *computes, budget=2**50))
    solution = solved(ready.graph, 2**50, PlanResult(Status.FEASIBLE, schedule=with_frees(ready.graph, computes)))
    assert solution.result.schedule is not None
    assert solution.trace is not None
    story = Story(Run(ready.graph, solution.result.schedule, solution.trace))
    columns = ("start", "end", "arrival", "firstRead", "lastRead", "offload", "takenOver", "fullest")
    read = page.evaluate(
        """(columns) => Object.fromEntries(ui.graph.names.map((name, tensor) => [name, Array.from(
            {length: ui.run.first[tensor + 1] - ui.run.first[tensor]},
            (_, stay) => columns.map((column) => ui.run[column][ui.run.first[tensor] + stay]))]))""",
        columns,
    )

    def numbers(stay: Stay) -> list[int]:
        values = (stay.start, stay.end, stay.arrival, stay.first_read, stay.last_read, stay.offload)
        return [-1 if v is None else int(v) for v in (*values, stay.taken_over, stay.fullest)]

    assert {name: read[name] for name in story.stays} == {n: [*map(numbers, s)] for n, s in story.stays.items()}
    assert page.evaluate("[...ui.run.memory]") == story.memory.tolist()
    assert page.evaluate("[...ui.run.steps]") == list(story.steps)


def test_without_script_the_tables_are_read(browser: Browser, report: Path) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(report.as_uri())
    assert page.get_by_text("extra time").first.is_visible()
    assert page.locator("svg.still").is_visible()
    assert not page.locator("#timeline").is_visible()
    page.close()


def test_figures_are_written_as_everywhere_else(page: Page, report: Path) -> None:
    opened(page, report)
    sizes = [0, 1, 999, 1000, 9_999, 99_949, 999_949, 999_950, 7_960_000_000, 10**12, 3_266_197_520]
    assert page.evaluate("(sizes) => sizes.map(formatBytes)", sizes) == [format_bytes(size) for size in sizes]
    shares = [0, 1e-7, 0.00123, 0.0199, 0.5, 1, 12.3456]
    assert page.evaluate("(shares) => shares.map(formatShare)", shares) == [format_share(share) for share in shares]
    times = [0, 7, 999, 1000, 1234, 999_950, 445_263_893, 12_345_678_901, 10**14]
    for unit in ("ns", "flop", "unit"):
        written = page.evaluate("([times, unit]) => times.map((time) => formatTime(time, unit))", [times, unit])
        assert written == [format_time(time, unit) for time in times]


def test_transfers_are_told(page: Page, tmp_path: Path) -> None:
    graph = graph_of(op("f1", "", "t1"), op("f2", "t1", "t2"), op("f3", "t2", "t3"), op("f4", "t1 t3", "t4"))
    steps: list[Step] = [Compute("f1"), Offload("t1"), Compute("f2"), Wait("t1"), Free("t1"), Compute("f3"), Free("t2")]
    steps += [Prefetch("t1"), Wait("t1"), Compute("f4")]
    claim = PlanResult(Status.FEASIBLE, schedule=Schedule(tuple(steps)))
    solution = solve(Problem(graph, Budget(100), Link(Fraction(1))), Claims(claim))
    path = tmp_path / "report.html"
    path.write_bytes(plan_page(planning(solution, prepared(graph))))
    opened(page, path)
    assert "Dropped, with its copy on the host, after f2." in hover(page, "t1", 4)
    assert "Brought back from the host for f4." in hover(page, "t1", 7)


@pytest.mark.parametrize(("duplex", "labels"), [(Duplex.HALF, ["link"]), (Duplex.FULL, ["to host", "back"])])
def test_the_use_of_the_link_stands_below_memory(page: Page, tmp_path: Path, duplex: Duplex, labels: list[str]) -> None:
    run = moving(duplex)
    claim = PlanResult(Status.FEASIBLE, schedule=run.schedule)
    solution = solve(Problem(run.graph, Budget(9 * MB), run.trace.link, offload=True), Claims(claim))
    path = tmp_path / "report.html"
    path.write_bytes(plan_page(planning(solution, prepared(run.graph))))
    opened(page, path)
    assert page.evaluate("ui.run.link.map((queue) => queue.label)") == labels
    times = page.evaluate("ui.run.link.flatMap((queue) => queue.start.map((start, each) => [start, queue.end[each]]))")
    assert times == [[transfer.start, transfer.end] for transfer in run.trace.transfers]
    # The copy out goes on while f2 runs; the last one has come to its end when f3 does.
    told = "(time) => linkAt(ui.run, ui.graph, time)"
    assert page.evaluate(told, 1.5) == [[labels[0], "t1"]]
    assert page.evaluate(told, 5) == [[labels[-1], "t1"]]
    assert page.evaluate(told, 9.5) == []
    with_it = page.locator("#memory").bounding_box()
    page.locator("#axis").get_by_text("steps").click()
    page.evaluate("draw()")
    assert page.evaluate("momentOf(ui.run, 10)") == page.evaluate("ui.run.moments")
    page.locator("#run").select_option(label="plain run")
    page.evaluate("draw()")
    without = page.locator("#memory").bounding_box()
    assert with_it is not None
    assert without is not None
    assert with_it["height"] - without["height"] == page.evaluate("QUEUE") * len(labels)
    assert page.locator("#moved").get_by_role("button", name="t1").is_visible()


def test_names_cannot_do_anything(page: Page, tmp_path: Path) -> None:
    graph = graph_of(op(NASTY, "", NASTY), op("f", NASTY, "b"), op("g", f"{NASTY} b", "c"))
    opened(page, written(tmp_path, graph, NASTY, "f", "g"))
    page.locator("#lifetimes").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#details .name").inner_text() == NASTY.replace("\x1b", "\N{REPLACEMENT CHARACTER}")
    assert page.locator("img").count() == 0


def test_no_table_is_cut_on_a_narrow_page(page: Page, tmp_path: Path) -> None:
    # Thousands of runs and a type of one long word: what made the table of types too wide.
    count = 1200
    ops = [replace(op(f"layer{n}.norm", "", f"t{n}"), type="LayerNormalization", time=10**6) for n in range(count)]
    graph = graph_of(*ops)
    graph = replace(graph, tensors={name: replace(t, bytes=MB) for name, t in graph.tensors.items()}, time_unit="ns")
    names = [each.name for each in ops]
    path = written(tmp_path, graph, *names, *names, budget=2**50)
    page.set_viewport_size({"width": 400, "height": 900})
    opened(page, path)
    tables = page.evaluate(
        "[...document.querySelectorAll('.scroll')].map((each) => [each.scrollWidth, each.clientWidth])"
    )
    assert len(tables) >= 4
    assert [(needed, there) for needed, there in tables if needed > there] == []


def test_a_name_stands_on_one_line_beside_a_wide_bar(page: Page, tmp_path: Path) -> None:
    name = "encoder.layers.11.attention.softmax"
    graph = graph_of(op("f", "", name), op("g", name, "out"))
    page.set_viewport_size({"width": 1280, "height": 900})
    opened(page, written(tmp_path, graph, "f", "g"))
    lines = """(name) => {
        const names = [...document.querySelectorAll("#largest .name")], box = document.createRange();
        box.selectNodeContents(names.find((each) => each.innerText === name));
        return new Set([...box.getClientRects()].map((line) => line.top)).size;
    }"""
    assert page.evaluate(lines, name) == 1


def test_forward_and_backward_keep_clear_of_the_strip_above(page: Page, report: Path) -> None:
    opened(page, report)
    first_row = """() => {
        const {width, height} = $("memory"), pixels = $("memory").getContext("2d").getImageData(0, 0, width, height);
        return Math.floor(pixels.data.findIndex((value, at) => at % 4 === 3 && value > 0) / 4 / width);
    }"""
    assert page.evaluate(first_row) >= 5
