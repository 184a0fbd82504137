"""The picture of an arena: a rectangle for everything that lies there, named, in its place."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from remat_cli.core.arena import AT_START, Address, Arena
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Compute, Free, Schedule
from remat_cli.core.simulate import simulate
from remat_cli.reports.html.arena import arena_section, arena_svg
from remat_cli.reports.timeline import Run
from tests.graphs import graph_of, op

GRAPH = graph_of(op("A", "x", "<a>", time=3), op("B", "<a>", "b", workspace_bytes=5), sizes={"x": 3, "<a>": 4, "b": 2})
STEPS = (Compute("A"), Compute("B"), Free("<a>"), Compute("A"), Free("<a>"))
ARENA = Arena(
    20,
    1,
    (
        Address(AT_START, "x", 0),
        Address(0, "<a>", 3),
        Address(1, "b", 7),
        Address(1, None, 9),
        Address(3, "<a>", 16),
    ),
)


def run_of(graph: Graph, *steps: Compute | Free) -> Run:
    schedule = Schedule(steps)
    return Run(graph, schedule, simulate(graph, schedule))


def rectangles(html: str) -> dict[str, tuple[str, list[float]]]:
    """Return by what each says: its colour, and where it lies."""
    found = re.findall(
        r'<rect class="(\w+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"><title>(.*?)</title>', html
    )
    return {says: (colour, [float(x), float(y), float(w), float(h)]) for colour, x, y, w, h, says in found}


def test_everything_lies_where_and_when_it_is_there() -> None:
    # 7 units of time on 960 pixels, 20 bytes on 320.
    across, up = 960 / 7, 16
    found = rectangles(arena_section(run_of(GRAPH, *STEPS), ARENA))

    def near(start: int, end: int, offset: int, size: int) -> list[float]:
        return [round(start * across, 2), (20 - offset - size) * up, round((end - start) * across, 2), size * up]

    assert found["x: 3 B at 0"] == ("input", near(0, 7, 0, 3))
    assert found["&lt;a&gt;: 4 B at 3"] == ("plan", near(0, 4, 3, 4))
    assert found["b: 2 B at 7"] == ("plan", near(3, 7, 7, 2))
    assert found["workspace of B: 5 B at 9"] == ("workspace", near(3, 4, 9, 5))
    assert found["&lt;a&gt;: 4 B at 16"] == ("again", near(4, 7, 16, 4))
    assert len(found) == 5


def test_picture_of_its_own_shows_the_same_in_colours_of_its_own() -> None:
    run = run_of(GRAPH, *STEPS)
    picture = arena_svg(run, ARENA)
    assert rectangles(picture) == rectangles(arena_section(run, ARENA))
    style = ElementTree.fromstring(picture).find("{*}style")
    assert style is not None
    assert style.text is not None
    assert all(f".{colour}{{fill:" in style.text for colour, _ in rectangles(picture).values())


def test_without_an_arena_there_is_no_section() -> None:
    run = run_of(GRAPH, *STEPS)
    assert arena_section(run, None) == ""
    assert arena_section(None, ARENA) == ""
