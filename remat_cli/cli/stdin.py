"""Standard input as a file: `-` stands for it wherever a file is read."""

from __future__ import annotations

import atexit
import shutil
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import click

from remat_cli.errors import UsageError

_USED = "remat_cli.stdin"


class FileToRead(click.Path):
    """A file that is read; `-` is what comes from standard input, in a file that goes when the call ends."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of the file.

        Raises:
            UsageError: stdin is named twice.
        """
        if str(value) != "-" or ctx is None:
            return super().convert(value, param, ctx)
        if _USED in ctx.meta:
            raise UsageError("stdin can be read only once", hint="save one of the two to a file")
        ctx.meta[_USED] = True
        folder = mkdtemp(prefix="remat-")
        # Not with the context, which is not left where a later argument is refused.
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder, "stdin")
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        return path


class NameToRead(FileToRead):
    """The same for what may also be the name of a file that comes with remat."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or the path of the file, as text."""
        return str(super().convert(value, param, ctx))


READ = FileToRead()
