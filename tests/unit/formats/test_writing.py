"""What two paths have in common that lead to one file."""

from __future__ import annotations

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
