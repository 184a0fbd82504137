"""Standard input as a file: `-` instead of a file's name."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path
from typing import Any

import click

from remat_cli.errors import UsageError

_USED = "remat_cli.stdin"
# The name in messages; paths in the content are relative to the current folder.
_CALLED = Path("stdin")
# The file with the content of stdin, for this call.
_copy: Path | None = None


class FileToRead(click.Path):
    """A file to read; `-` is standard input, saved until the call ends."""

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
        # Not with the context, which is not left if a later argument is refused.
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _copy = Path(folder, _CALLED.name)
        with _copy.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        return _copy


class NameToRead(FileToRead):
    """A file to read, or the name of a file that comes with remat."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or the path of the file, as text."""
        return str(super().convert(value, param, ctx))


READ = FileToRead()


def is_stdin(path: Path) -> bool:
    """Tell whether a file holds the content of standard input."""
    return path == _copy


def called(path: Path) -> Path:
    """Return the path for messages, and for names within the file."""
    return _CALLED if is_stdin(path) else path


def in_a_call(path: Path) -> Path:
    """Return the argument for a file in an example call: `-` for stdin."""
    return Path("-") if is_stdin(path) else path


def with_stdin_named(text: str) -> str:
    """Replace the path of stdin's file by "stdin" in a text for people."""
    return text if _copy is None else text.replace(str(_copy), _CALLED.name)
