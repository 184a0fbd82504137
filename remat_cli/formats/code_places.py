"""Places in users' code: parsed from traces, and written for people."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>[0-9]{1,9})\b')


def frames_of(trace: str) -> list[tuple[str, int]]:
    """Return file and line of each frame of a Python trace.

    The innermost frame is last.
    """
    return [(frame["file"], int(frame["line"])) for frame in _FRAME.finditer(trace)]


@cache
def shown_place(file: str, line: int | None) -> str:
    """Write "file:line", relative to site-packages or the current folder."""
    parts = Path(file).parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            return f"{Path(*parts[parts.index(folder) + 1 :])}:{line}"
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"
