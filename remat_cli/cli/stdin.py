"""Standard input as a file: `-` stands for it wherever a file is read."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path
from typing import Any

import click

from remat_cli.errors import UsageError

_USED = "remat_cli.stdin"
# As people are told of it, and where what it names lies: in the current folder.
_CALLED = Path("stdin")
# The file that holds what came, of this call.
_copy: Path | None = None


class FileToRead(click.Path):
    """A file that is read; `-` is standard input, saved in a file that is deleted when the call ends."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of the file.

        Raises:
            UsageError: stdin is named twice.
        """
        global _copy
        if str(value) != "-" or ctx is None:
            return super().convert(value, param, ctx)
        import shutil
        from tempfile import mkdtemp

        if _USED in ctx.meta:
            raise UsageError("stdin can be read only once", hint="save one of the two to a file")
        ctx.meta[_USED] = True
        folder = mkdtemp(prefix="remat-")
        # Not with the context, which is not left where a later argument is refused.
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _copy = Path(folder, _CALLED.name)
        with _copy.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        return _copy


class NameToRead(FileToRead):
    """The same for what may also be the name of a file that comes with remat."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or the path of the file, as text."""
        return str(super().convert(value, param, ctx))


READ = FileToRead()


def is_stdin(path: Path) -> bool:
    """Tell whether a file that is read holds what came from standard input."""
    return path == _copy


def called(path: Path) -> Path:
    """Return the path as people are told of it, from which what the file names is found."""
    return _CALLED if is_stdin(path) else path


def in_a_call(path: Path) -> Path:
    """Return what stands for a file that is read where a call of remat is shown."""
    return Path("-") if is_stdin(path) else path


def told(text: str) -> str:
    """Return a text for people that says "stdin" where it names the file that holds it."""
    return text if _copy is None else text.replace(str(_copy), _CALLED.name)
