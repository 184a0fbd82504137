"""Files written so that nothing is ever lost or half written."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os.path import isfile  # unlike that of Path, false for a name that no file can have
from pathlib import Path
from unicodedata import normalize

from remat_cli.errors import UsageError
from remat_cli.settings import Setting, Wording

# As many as Linux follows.
_MOST_LINKS = 40


def write_file(path: Path, content: bytes, *, force: bool = False) -> None:
    """Write `content` to a temporary file beside `path`, then rename it: readers see the old file or the new one.

    A file keeps its mode, its owner and its other names; where renaming would cost it one of the last two, it is
    written in its place. What is no regular file (a device, a pipe) is written to directly.

    Args:
        path: of the file.
        content: of the file.
        force: replace a file that is write-protected.

    Raises:
        UsageError: the file is write-protected, or cannot be written; what was there before is untouched.
    """
    with write_faults(path, "choose another place with -o"):
        target = file_written(path)
        if target.exists() and not target.is_file():
            target.write_bytes(content)
            return
        old = target.stat() if target.exists() else None
        if is_protected(target) and not force:
            if target.read_bytes() == content:
                return
            raise _protected(path, "choose another place, or make it writable")
        descriptor, name = _new_beside(target)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            if _keeps_names_and_owner(name, old) or is_protected(target):
                os.chmod(name, 0o666 & ~_umask() if old is None else stat.S_IMODE(old.st_mode))
                os.replace(name, target)
                return
            _write_in_place(target, content)
            os.unlink(name)
        except BaseException:
            os.unlink(name)
            raise


def is_protected(path: Path) -> bool:
    """Tell whether a file's mode forbids writing it, even to the superuser."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not mode & 0o222 or not os.access(path, os.W_OK)


def _protected(path: Path, hint: Wording) -> UsageError:
    return UsageError(f"{path}: is write-protected", hint=hint)


def _keeps_names_and_owner(name: str, old: os.stat_result | None) -> bool:
    """Copy the old file's owner; return False if a rename would lose its owner or its other names."""
    if old is None:
        return True
    if old.st_nlink > 1:
        return False
    new = os.stat(name)
    if (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid):
        return True
    try:
        os.chown(name, old.st_uid, old.st_gid)
    except OSError:  # only the superuser may, and in a container not for every owner
        return False
    return True


def _write_in_place(path: Path, content: bytes) -> None:
    """Overwrite a file in place; a full disk is noticed before anything is lost."""
    with path.open("r+b") as file:
        before = os.fstat(file.fileno()).st_size
        if len(content) > before and hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(file.fileno(), 0, len(content))
            except OSError:
                file.truncate(before)
                raise
        file.write(content)
        file.truncate()


def check_writes(writes: Mapping[str, Path], reads: Iterable[Path] = (), *, force: bool = False) -> None:
    """Check, before the work that ends in writing files, that each can be written and that nothing is lost by it.

    Args:
        writes: the files, by the options that name them.
        reads: files that must stay as they are; what is no file is passed over.
        force: files that are write-protected may be replaced.

    Raises:
        UsageError: a file cannot be written, is one of those that are read, or is named by two options.
    """
    kept = {_identity(path): path for path in reads if isfile(path)}
    taken: dict[object, str] = {}
    for option, path in writes.items():
        hint = f"choose another place with {option.partition('=')[0]}"
        target = _writable(path, hint, force=force)
        if target is None:
            continue
        identity = _identity(target)
        if identity in kept:
            raise UsageError(f"{path}: cannot be written: {kept[identity]}, which is read, would be lost", hint=hint)
        if identity in taken:
            raise UsageError(f"{taken[identity]} and {option} both write {path}; one of them would be lost", hint=hint)
        taken[identity] = option


@contextmanager
def write_faults(path: Path, hint: Wording) -> Iterator[None]:
    """Turn the system's errors about a file or folder that is written into one that says which, and what to do.

    Raises:
        UsageError: the system has refused something.
    """
    try:
        yield
    except (OSError, ValueError) as problem:  # ValueError: a NUL character in the path
        reason = getattr(problem, "strerror", None) or str(problem)
        raise UsageError(f"{path}: cannot be written: {reason}", hint=hint) from None


def file_written(path: Path) -> Path:
    """Return the file that is written where a path is given: as the system finds it, links followed.

    Unlike `os.path.realpath`, it passes through no folder that is not there: `absent/../file` names no file.

    Raises:
        OSError: there is no such folder, or the links lead in a circle.
    """
    for _ in range(_MOST_LINKS):
        if path.exists() and not path.is_file():
            return path  # a folder; or a device or pipe, whose links may lead to what has no name
        try:
            folder = os.path.realpath(path.parent, strict=True)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {str(path.parent)!r}") from None
        path = Path(folder, path.name)
        if not path.is_symlink():
            return path
        path = Path(folder, path.readlink())
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _identity(path: Path) -> object:
    """Return what two paths have in common that lead to the same file, or will once there is one."""
    try:
        status = path.stat()
    except FileNotFoundError:
        folder = path.parent.stat()
        name = normalize("NFC", path.name).casefold() if _folds_names(path.parent) else path.name
        return folder.st_dev, folder.st_ino, name
    return status.st_dev, status.st_ino


def _writable(path: Path, hint: str, *, force: bool) -> Path | None:
    """Check that a file can be written by trying to; return it, or None for a device or pipe, of which nothing is lost.

    Raises:
        UsageError: it cannot.
    """
    with write_faults(path, hint):
        target = file_written(path)
        try:
            mode = target.stat().st_mode
        except FileNotFoundError:
            mode = stat.S_IFREG
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            return None
        if is_protected(target) and not force:
            raise _protected(path, (hint, ", or replace it with ", Setting("force")))
        descriptor, name = _new_beside(target)
        os.close(descriptor)
        os.unlink(name)
        return target


def _folds_names(folder: Path) -> bool:
    """Tell whether `a` and `A` are one file in a folder."""
    descriptor, name = _new_beside(folder / "name")
    try:
        os.close(descriptor)
        return Path(folder, Path(name).name.swapcase()).exists()
    finally:
        os.unlink(name)


def _new_beside(target: Path) -> tuple[int, str]:
    """Open a file of a new name in the folder of another one; return its descriptor and its name."""
    return tempfile.mkstemp(dir=target.parent, prefix=".remat-")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
