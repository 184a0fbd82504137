"""Writes the pages of results with their tables, which are files of data: `make bench-page`."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from tests.places import ROOT

PAGES = tuple((ROOT / "tests" / "bench").glob("*.md"))
_TABLE = re.compile(r"^\[Results: \d+ rows\]\((\S+\.csv)\)$", re.MULTILINE)


def with_tables(markdown: str, folder: Path) -> str:
    """Return a page with a table in place of each link to results.

    Args:
        markdown: text of the page.
        folder: folder of the page, from which its links lead.
    """
    return _TABLE.sub(lambda link: _table(folder / link[1]), markdown)


def _table(file: Path) -> str:
    with file.open(newline="", encoding="utf-8") as lines:
        head, *rows = csv.reader(lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def main() -> None:
    """Write the pages into the folder `bench` of `build`."""
    folder = ROOT / "build" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        (folder / page.name).write_text(with_tables(page.read_text(encoding="utf-8"), page.parent), encoding="utf-8")
        print(folder / page.name)


if __name__ == "__main__":
    main()
