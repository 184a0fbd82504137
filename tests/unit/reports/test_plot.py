"""Pictures of sweeps."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from remat_cli.config import PlannerChoice, Request
from remat_cli.errors import UsageError
from remat_cli.reports.plot import check_can_plot, sweep_plot
from remat_cli.studies.sweep import Sweep, sweep
from remat_cli.units import parse_budgets
from tests.graphs import training_chain
from tests.plans import prepared

pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")

GRAPH = training_chain(16, size=1_000_000)


def swept(budgets: str, *names: str) -> Sweep:
    requests = {name: Request(planner=PlannerChoice(name)) for name in names or ("dtr", "keep_all")}
    return sweep(prepared(GRAPH), requests, parse_budgets(budgets))


def texts(picture: bytes) -> list[str]:
    """The texts of an SVG picture."""
    return [element.text or "" for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]


def test_a_png_is_a_picture_of_some_size() -> None:
    picture = sweep_plot(swept("40%..100%:4"), GRAPH, ".png")
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    assert width > height > 500


def test_an_svg_says_what_is_drawn() -> None:
    result = swept("15%..100%:8")
    shown = texts(sweep_plot(result, GRAPH, ".svg"))
    knee = result.curves[0].knee
    assert knee is not None
    assert {"test", "memory budget (MB)", "time overhead (%)", "less never fits", "plain run", "keep_all"} <= set(shown)
    assert [text for text in shown if text.startswith("dtr (knee: ")]


def test_plans_that_were_taken_over_are_told_apart() -> None:
    result = swept("40%..100%:4", "dtr")
    (curve,) = result.curves
    carried = replace(curve, points=(*curve.points[:-1], replace(curve.points[-1], found_at=1)))
    assert "found at another budget" in texts(sweep_plot(replace(result, curves=(carried,)), GRAPH, ".svg"))
    assert "found at another budget" not in texts(sweep_plot(result, GRAPH, ".svg"))


def test_the_same_sweep_gives_the_same_bytes() -> None:
    result = swept("40%..100%:4")
    assert sweep_plot(result, GRAPH, ".svg") == sweep_plot(result, GRAPH, ".svg")
    assert sweep_plot(result, GRAPH, ".png") == sweep_plot(result, GRAPH, ".png")


@pytest.mark.parametrize("budgets", ["60%", "5%,10%", "100%", "100%,120%"])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_sweeps_with_little_to_draw_are_drawn(budgets: str, suffix: str) -> None:
    assert sweep_plot(swept(budgets), GRAPH, suffix)


@pytest.mark.parametrize("name", ["$x^{$", r"\frac{", "_hidden", "<b>&", "\x1b[31m", "名前"])
def test_names_are_shown_as_they_are(name: str) -> None:
    result = swept("40%..100%:4")
    renamed = replace(result, curves=tuple(replace(curve, label=name + curve.label) for curve in result.curves))
    shown = texts(sweep_plot(renamed, replace(GRAPH, name=name), ".svg"))
    visible = "".join(character for character in name if character.isprintable()).replace("_", "")
    assert sum(visible in text for text in shown) >= 3


@pytest.mark.parametrize("name", ["x.gif", "x", "x.png.gz"])
def test_a_format_that_cannot_be_drawn_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="ends in no format"):
        check_can_plot(Path(name))


def test_the_case_of_the_suffix_does_not_matter() -> None:
    check_can_plot(Path("X.PNG"))


def test_without_the_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError) as caught:
        check_can_plot(Path("x.png"))
    assert caught.value.hint == "pip install 'remat[plot]'"
