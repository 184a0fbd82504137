"""Makes the site of the pages as they stand in the tree.

mkdocs reads pages of one folder. These hooks hand it the pages of all folders, under their paths in the tree, and every
file that a page links to: so the links between them hold as they do in the tree.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from remat_cli import __version__
from tests.bench.pages import with_tables
from tests.golden.pages import READ_PAGES, links_of, name_of
from tests.places import ROOT

REPORT = "remat plan graphs/unet.onnx --dim batch=8 --budget 60% --html report.html"
REPORT_PAGE = f"""# A report to play with

The plan of the [first page](README.md#a-first-plan), as an HTML file. Point, search, sort, and drag to zoom in.
[Show a plan](remat_cli/reports/viewers.md#the-html-page-remat-report) says what it shows. <a href="report.html">Open it
in a page of its own</a>, or write it yourself:

```sh
{REPORT}
```

<iframe class="report" src="report.html" title="The report of a plan"></iframe>
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version in the head of every page."""
    config.site_name = f"remat {__version__}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the tree, the files that they link to, and a report."""
    linked = {path for page in READ_PAGES for path in links_of(page) if path.is_file()}
    for path in sorted(linked.union(READ_PAGES)):
        file = File.generated(config, name_of(path), abs_src_path=str(path))
        # Hosts of sites leave out folders with a dot, and serve a file without an ending as one to save.
        file.dest_uri = file.dest_uri.replace(".github/", "project/") + ("" if path.suffix else ".txt")
        files.append(file)
    files.append(File.generated(config, "report.md", content=REPORT_PAGE))
    files.append(File.generated(config, "report/report.html", content=report()))
    return files


def report() -> bytes:
    """Return the HTML report of the plan that the first page shows."""
    command = [sys.executable, "-m", "remat_cli", *REPORT.split()[1:], "--quiet"]
    with TemporaryDirectory() as folder:
        command[-2] = f"{folder}/report.html"
        subprocess.run(command, cwd=ROOT, check=True)
        return Path(command[-2]).read_bytes()


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write what servers of Markdown take, and Python's reader of it does not, in its way."""
    del config, files
    if page.file.abs_src_path is not None:
        markdown = with_tables(markdown, Path(page.file.abs_src_path).parent)
    named_fences = re.sub(r"^```(\w+) (\S+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)
    # A comment right before a table would make it text.
    return re.sub(r"^<!-- .* -->$", "", named_fences, flags=re.MULTILINE)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show a `|` in the code of a table's cell, which has a backslash in Markdown, without it."""
    del page, config, files
    return re.sub(r"<td>.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)
