"""Fills in the README: what its commands print, and the table of planners: `python -m tests.golden.readme`.

`make golden` runs it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from remat_cli.reports.terminal.planner_cards import planner_cards
from tests.places import GRAPHS, ROOT

README = ROOT / "README.md"
_TABLE = re.compile(r"(?<=<!-- planners -->\n)(?:\|.*\n)*(?=<!-- end of planners -->)")
_COLUMNS = {"source": "Source", "takes": "Takes", "proves": "Proves", "how it scales": "Complexity"}
_BLOCK = re.compile(r"^```console\n\$ (?P<command>remat .*)\n(?P<output>(?:.*\n)*?)```$", re.MULTILINE)


def blocks() -> Iterator[tuple[str, str]]:
    """The commands that the README shows, and the output that it claims for each."""
    for match in _BLOCK.finditer(README.read_text()):
        yield match["command"], match["output"]


def printed(commands: list[str]) -> list[str]:
    """What these commands print, run one after the other in a folder that has nothing but the example graphs."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "REMAT_DEBUG", "NO_COLOR")
    }
    environment |= {
        "COLUMNS": "80",
        "PYTHONIOENCODING": "utf-8",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    with TemporaryDirectory() as folder:
        (Path(folder) / "graphs").symlink_to(GRAPHS)
        return [
            subprocess.run(
                command, shell=True, cwd=folder, env=environment, check=False, text=True, stdout=-1, stderr=-2
            ).stdout
            for command in commands
        ]


def planners_shown() -> str:
    """The table of planners that the README shows."""
    match = _TABLE.search(README.read_text())
    assert match is not None
    return match[0]


def planners_table() -> str:
    """The table of planners, from what `remat planners` says of each."""
    rows = [["name", *_COLUMNS], ["---"] * (len(_COLUMNS) + 1)]
    for card in planner_cards():
        rows.append([f"`{card.name}`", *(card.facts[label].rstrip(".") for label in _COLUMNS.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    """Write the table of planners, and the real output under each command of the README."""
    outputs = iter(printed([command for command, _ in blocks()]))
    table = planners_table()
    text = _TABLE.sub(lambda _: table, README.read_text())
    README.write_text(_BLOCK.sub(lambda match: f"```console\n$ {match['command']}\n{next(outputs)}```", text))


if __name__ == "__main__":
    main()
