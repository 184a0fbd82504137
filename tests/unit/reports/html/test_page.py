"""The HTML report as a file: whole, the same each time, and harmless whatever names it holds."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any

import pytest

from remat_cli.core.graph import Graph
from remat_cli.core.problem import PlanResult, Status
from remat_cli.core.schedule import with_frees
from remat_cli.reports.html.page import plan_page
from tests.graphs import graph_of, op, training_chain
from tests.plans import prepared
from tests.unit.reports.rendering import planning, solved, solved_in_parts

NASTY = "</script><!--<script>alert(1)</script>\x1b[31m\u202e\u2028\"'&${data} $title"


class Parsed(HTMLParser):
    """Collects what stands in a page: its elements with their attributes, and the text of each kind of element."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(content.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "rect", "line", "polygon"):
            self._open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        for tag in self._open[-1:]:
            self.texts[tag][-1] += data

    @property
    def data(self) -> Any:
        return json.loads(self.texts["script"][0])

    @property
    def policy(self) -> str:
        return next(
            attrs["content"] or ""
            for tag, attrs in self.elements
            if attrs.get("http-equiv") == "Content-Security-Policy"
        )


def page_of(graph: Graph, *computes: str, notes: tuple[str, ...] = ()) -> bytes:
    result = PlanResult(Status.FEASIBLE, schedule=with_frees(graph, computes))
    solution = solved(graph, 2**40, result)
    return plan_page(planning(solution, prepared(graph, notes=notes)))


def small_page() -> bytes:
    return page_of(training_chain(3, size=1000), "f1", "f2", "f3", "loss", "b3", "f1", "b2", "b1")


@pytest.fixture(scope="module")
def content() -> bytes:
    return small_page()


def test_the_same_plan_gives_the_same_bytes(content: bytes) -> None:
    assert small_page() == content


def test_nothing_but_its_own_script_and_style_may_run_or_load(content: bytes) -> None:
    page = Parsed(content)
    hashed = {kind: b64encode(sha256(page.texts[kind][-1].encode()).digest()).decode() for kind in ("script", "style")}
    assert page.policy == (
        f"default-src 'none'; script-src 'sha256-{hashed['script']}'; style-src 'sha256-{hashed['style']}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    links = [value for _, attrs in page.elements for name, value in attrs.items() if name in ("src", "href", "action")]
    assert links == ["data:,"]
    # Neither would get past the policy.
    assert not any(name == "style" or name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert re.findall(r"https?://|@import|url\(", content.decode()) == []


def test_the_tables_stand_there_without_the_script(content: bytes) -> None:
    page = Parsed(content)
    cells = [*page.texts["th"], *page.texts["td"]]
    assert {"peak memory", "op runs", "extra time", "in the plan", "recomputed"} <= set(cells)
    assert "noscript" in page.texts
    assert any(tag == "polygon" for tag, _ in page.elements)


def test_data_holds_both_runs(content: bytes) -> None:
    data = Parsed(content).data
    assert [run["label"] for run in data["runs"]] == ["plain run", "plan"]
    assert data["graphs"][0]["ops"]["names"] == ["f1", "f2", "f3", "loss", "b3", "b2", "b1"]
    assert data["runs"][1]["doing"] == [0, 0, 0, 0, 0, 1, 0, 0]


def test_the_plain_run_beside_a_plan_in_parts_is_of_the_graph_without() -> None:
    data = Parsed(plan_page(planning(solved_in_parts()))).data
    assert [(run["label"], run["graph"]) for run in data["runs"]] == [("plain run", 0), ("plan", 1)]
    assert [graph["ops"]["names"] for graph in data["graphs"]] == [["f1", "f2"], ["f1", "f2_part0", "f2_part1"]]
    assert [len(run["doing"]) for run in data["runs"]] == [2, 3]


@pytest.mark.parametrize("name", [NASTY, "x" * 10_000_000, "\x00\u0007\ud7ff"])
def test_names_stay_harmless_and_short(name: str) -> None:
    graph = replace(graph_of(op(name, "", "a"), op("f", "a", "b"), op("g", "a b", "c")), name=name)
    content = page_of(graph, name, "f", name, "g", notes=(name,))
    page = Parsed(content)
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert not any(ord(character) < 32 and character != "\n" for character in content.decode())
    assert not set("\u202e\u2028") & set(content.decode())
    assert len(page.data["graphs"][0]["ops"]["names"][0]) <= 120
    assert len(content) < 200_000


def test_without_a_plan_it_says_why() -> None:
    graph = training_chain(4, size=1000)
    solution = solved(graph, 1, PlanResult(Status.UNKNOWN))
    page = Parsed(plan_page(planning(solution, prepared(graph))))
    assert {"Why", "What could be done"} <= set(page.texts["h2"])
    assert [run["label"] for run in page.data["runs"]] == ["plain run"]
    assert page.data["budget"] == 1
