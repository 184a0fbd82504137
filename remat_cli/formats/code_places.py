"""Places in users' code, as traces of calls name them and as people read them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>[0-9]{1,9})\b')


def frames_of(trace: str) -> list[tuple[str, int]]:
    """Return file and line of each frame of a trace, as Python prints it: the innermost stands last."""
    return [(found["file"], int(found["line"])) for found in _FRAME.finditer(trace)]


@cache
def shown_place(file: str, line: int | None) -> str:
    """Return "file:line", from where packages are installed or from the current folder on."""
    parts = Path(file).parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            return f"{Path(*parts[parts.index(folder) + 1 :])}:{line}"
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"
