"""Writing files so that nothing is ever lost or half written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from remat_cli.errors import UsageError


def write_file(path: Path, content: bytes) -> None:
    """Write `content` to a temporary file beside `path`, then rename it: readers see the old file or the new one.

    What is no regular file (a device, a pipe) is written to directly. A link is followed.

    Raises:
        UsageError: the file cannot be written; what was there before is untouched.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)
            return
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.chmod(name, target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask())
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise UsageError(f"{path}: cannot be written: {reason}", hint="choose another place with -o") from None


def check_folder(path: Path) -> None:
    """Check that the folder of a file that is to be written is there, before the work that ends in writing it.

    Raises:
        UsageError: it is not.
    """
    if not path.parent.is_dir():
        raise UsageError(f"{path}: cannot be written: there is no folder {str(path.parent)!r}", hint="make it first")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
