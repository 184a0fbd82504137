"""The site of documents: it builds without a warning, every link in it leads somewhere, and it has the pages' words."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin

import pytest

from tests.bench.pages import PAGES as BENCH_PAGES
from tests.golden.pages import READ_PAGES, commands_of, name_of, text_of
from tests.places import ROOT


class Reader(HTMLParser):
    """What a page of the site has: its text, the names that can be linked to, and what it links to."""

    def __init__(self, path: Path) -> None:
        """Read a page."""
        super().__init__()
        self.text = ""
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                self.links.add(value)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", "docs/mkdocs.yml"]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(
        [*command, "--site-dir", str(folder)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Reader]:
    return {path.relative_to(site).as_posix(): Reader(path) for path in site.rglob("*.html") if path.stem != "404"}


def page_of(page: Path, pages: dict[str, Reader]) -> Reader:
    name = name_of(page).replace(".github/", "project/")
    folder = name.removesuffix("README.md") if name.endswith("README.md") else f"{name.removesuffix('.md')}/"
    return pages[f"{folder}index.html"]


def test_every_page_has_its_words(pages: dict[str, Reader]) -> None:
    for page in READ_PAGES:
        shown = page_of(page, pages).text
        for heading in re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text_of(page), flags=re.M | re.S), re.M):
            assert re.sub(r"[`\\]", "", heading) in shown, name_of(page)
        for command, output in commands_of(page):
            assert f"$ {command}\n{output}" in shown, command


def test_every_link_leads_somewhere(site: Path, pages: dict[str, Reader]) -> None:
    for name, page in pages.items():
        for link in page.links:
            if re.match(r"\w+:", link):
                continue
            target, _, anchor = urljoin(f"/{name}", link).removeprefix("/").partition("#")
            file = site / unquote(target)
            file = file / "index.html" if file.is_dir() else file
            assert file.exists(), (name, link)
            if anchor:
                assert unquote(anchor) in pages[file.relative_to(site).as_posix()].anchors, (name, link)


def test_nothing_is_left_of_marks_that_only_markdown_has(pages: dict[str, Reader]) -> None:
    for name, page in pages.items():
        assert not re.search(r"^\| |\\\||^```", page.text, re.MULTILINE), name


def test_the_report_is_that_of_the_first_page(site: Path) -> None:
    (claim,) = re.findall(r"^The plan fits: .*$", text_of(READ_PAGES[0]), re.MULTILINE)
    assert claim in (site / "report/report.html").read_text(encoding="utf-8")


def test_search_finds_every_page(site: Path) -> None:
    index = (site / "search/search_index.json").read_text(encoding="utf-8")
    for page in READ_PAGES:
        (title,) = re.findall(r"\A# (.*)$", text_of(page), re.MULTILINE)
        assert f'"title":"{title}"' in index, name_of(page)


def test_results_stand_in_their_places(pages: dict[str, Reader]) -> None:
    for page in BENCH_PAGES:
        shown = page_of(page, pages).text
        files = re.findall(r"^\[Results: (\d+) rows\]\((\S+)\)$", text_of(page), re.MULTILINE)
        for count, name in files:
            with (page.parent / name).open(newline="", encoding="utf-8") as lines:
                head, *rows = csv.reader(lines)
            assert len(rows) == int(count), name
            assert all(
                cell.strip("*`") in shown for cell in (*head, *rows[-1]) if "](" not in cell and "`" not in cell
            ), name
