"""The search for garbage is left out while a graph is read, and taken up again."""

import gc
from gc import get_freeze_count
from pathlib import Path

import pytest

from remat_cli.errors import GraphError
from remat_cli.formats import read_graph
from remat_cli.formats.garbage import no_search_for_garbage


def test_there_is_no_search_meanwhile() -> None:
    with no_search_for_garbage():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(GraphError):
        read_graph(tmp_path / "absent.json")
    assert gc.isenabled()


def test_who_does_without_it_goes_on_so() -> None:
    gc.disable()
    try:
        with no_search_for_garbage():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_made_meanwhile_is_old_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.unfreeze()  # as in a process that has frozen nothing
    monkeypatch.setattr(gc, "get_freeze_count", get_freeze_count)
    with no_search_for_garbage():
        made = [[] for _ in range(10)]  # type: list[list[int]]
    old = {id(item) for item in gc.get_objects(generation=2)}
    assert {id(item) for item in made} <= old
    assert get_freeze_count() == 0
