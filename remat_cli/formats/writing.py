"""Writing of files so that none is lost or half written."""

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

# the same limit as in Linux
_MOST_LINKS = 40


def write_file(path: Path, content: bytes, *, force: bool = False) -> None:
    """Write a file by renaming a temporary one: readers see the old or new file.

    A file keeps its mode, its owner and its other names; if renaming would lose owner or names, the file is overwritten
    in place. A device or a pipe is written to directly.

    Args:
        path: path of the file.
        content: new content of the file.
        force: whether to replace a write-protected file.

    Raises:
        UsageError: the file is write-protected, or cannot be written; the old file is untouched.
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
        descriptor, name = _new_file_next_to(target)
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
    """Copy the old file's owner.

    False if a rename would lose its owner or its other names.
    """
    if old is None:
        return True
    if old.st_nlink > 1:
        return False
    new = os.stat(name)
    if (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid):
        return True
    try:
        os.chown(name, old.st_uid, old.st_gid)
    except OSError:  # only the superuser may do this, and in a container not for every owner
        return False
    return True


def _write_in_place(path: Path, content: bytes) -> None:
    """Overwrite a file in place.

    A full disk is noticed before the old content is lost.
    """
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
    """Check in advance that files can be written without losing others.

    Args:
        writes: the files to write, by option.
        reads: files that must stay as they are; other paths are ignored.
        force: whether write-protected files may be replaced.

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
    """Turn system errors on writing a file into a message with a remedy.

    Raises:
        UsageError: the system has refused an operation.
    """
    try:
        yield
    except (OSError, ValueError) as problem:  # ValueError: a NUL character in the path
        reason = getattr(problem, "strerror", None) or str(problem)
        raise UsageError(f"{path}: cannot be written: {reason}", hint=hint) from None


def file_written(path: Path) -> Path:
    """Return the file that a path leads to, following links.

    Unlike `os.path.realpath`, it passes through existing folders only: `absent/../file` names no file.

    Raises:
        OSError: there is no such folder, or the links lead in a circle.
    """
    for _ in range(_MOST_LINKS):
        if path.exists() and not path.is_file():
            return path  # a folder; or a device or pipe, whose links may lead to an unnamed target
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
    """Return a key that is equal for paths to the same file.

    The file need not exist yet.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        folder = path.parent.stat()
        name = normalize("NFC", path.name).casefold() if _folds_names(path.parent) else path.name
        return folder.st_dev, folder.st_ino, name
    return status.st_dev, status.st_ino


def _writable(path: Path, hint: str, *, force: bool) -> Path | None:
    """Check that a file can be written, by trying.

    Return the file, or None for a device or pipe, whose content cannot be lost.

    Raises:
        UsageError: the file cannot be written.
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
        descriptor, name = _new_file_next_to(target)
        os.close(descriptor)
        os.unlink(name)
        return target


def _folds_names(folder: Path) -> bool:
    """Tell whether a folder treats the names `a` and `A` alike."""
    descriptor, name = _new_file_next_to(folder / "name")
    try:
        os.close(descriptor)
        return Path(folder, Path(name).name.swapcase()).exists()
    finally:
        os.unlink(name)


def _new_file_next_to(target: Path) -> tuple[int, str]:
    """Open a new file in the folder of `target`; return descriptor and name."""
    return tempfile.mkstemp(dir=target.parent, prefix=".remat-")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
