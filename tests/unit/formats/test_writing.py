"""What two paths have in common that lead to one file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from remat_cli.errors import UsageError
from remat_cli.formats import writing
from remat_cli.formats.writing import check_writes, file_written, write_file


def test_whether_a_folder_folds_names_is_what_its_system_does(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert writing._folds_names(tmp_path) == (tmp_path / "A").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("names", [("out.json", "OUT.json"), ("stra\u00dfe", "STRASSE"), ("\u00e9", "e\u0301")])
def test_names_that_a_system_folds_are_one_file(
    names: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = {"-o": tmp_path / names[0], "--html": tmp_path / names[1]}
    check_writes(writes)
    monkeypatch.setattr(writing, "_folds_names", lambda folder: True)
    with pytest.raises(UsageError, match="would be lost"):
        check_writes(writes)


def test_a_file_that_is_new_is_known_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="would be lost"):
        check_writes({"-o": tmp_path / "new", "--html": tmp_path / "link" / "new"})


def test_a_link_to_a_file_that_is_not_there_yet_is_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/new")
    write_file(tmp_path / "link", b"content")
    assert (tmp_path / "folder" / "new").read_bytes() == b"content"
    assert (tmp_path / "link").is_symlink()


def test_no_way_leads_through_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        file_written(tmp_path / "absent" / ".." / "file")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old"
    path.write_bytes(b"old")
    return path


def test_a_file_that_is_write_protected_is_replaced_by_force_alone(old: Path, tmp_path: Path) -> None:
    old.chmod(0o444)
    with pytest.raises(UsageError, match="old: is write-protected"):
        check_writes({"-o": old})
    with pytest.raises(UsageError, match="old: is write-protected"):
        write_file(old, b"new")
    assert old.read_bytes() == b"old"
    write_file(old, b"old")  # which changes nothing
    check_writes({"-o": old}, force=True)
    write_file(old, b"new", force=True)
    assert (old.read_bytes(), stat.S_IMODE(old.stat().st_mode)) == (b"new", 0o444)
    assert list(tmp_path.iterdir()) == [old]


def test_a_file_that_the_system_does_not_let_us_write_is_protected(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(UsageError, match="is write-protected"):
        write_file(old, b"new")


@pytest.mark.parametrize("content", [b"", b"ne", b"new, and longer"])
def test_a_file_keeps_its_other_names(content: bytes, old: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.hardlink_to(old)
    write_file(old, content)
    assert other.read_bytes() == content
    assert {path.name for path in tmp_path.iterdir()} == {"old", "other"}


def test_without_room_for_it_a_file_with_other_names_stays_as_it_was(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").hardlink_to(old)

    def no_room(descriptor: int, start: int, size: int) -> None:
        os.ftruncate(descriptor, size)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room, raising=False)
    with pytest.raises(UsageError, match="No space left"):
        write_file(old, b"new, and longer")
    assert old.read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {"old", "other"}


@pytest.mark.parametrize("may_give_away", [True, False])
def test_a_file_of_somebody_else_stays_theirs(may_give_away: bool, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only the superuser gives files away")
    os.chown(old, 65534, 65534)
    if not may_give_away:
        monkeypatch.setattr(os, "chown", lambda *_: (_ for _ in ()).throw(PermissionError))
    write_file(old, b"new")
    assert (old.read_bytes(), old.stat().st_uid, old.stat().st_gid) == (b"new", 65534, 65534)
