"""Fills in what the commands in the README print: `python -m tests.golden.readme` (`make golden`)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
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
        (Path(folder) / "graphs").symlink_to(ROOT / "graphs")
        return [
            subprocess.run(
                command, shell=True, cwd=folder, env=environment, check=False, text=True, stdout=-1, stderr=-2
            ).stdout
            for command in commands
        ]


def main() -> None:
    """Write the real output under each command of the README."""
    outputs = iter(printed([command for command, _ in blocks()]))
    filled = _BLOCK.sub(lambda match: f"```console\n$ {match['command']}\n{next(outputs)}```", README.read_text())
    README.write_text(filled)


if __name__ == "__main__":
    main()
