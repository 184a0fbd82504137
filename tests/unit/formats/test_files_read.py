"""The files behind GRAPH."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from onnx import helper

from remat_cli.formats.files_read import files_read
from tests.unit.formats.onnx.models import Model, elsewhere, float_input, node


def _write_model(path: Path) -> None:
    """Write a model with weights elsewhere: of its own, and of a local function."""
    constant = node("Constant", [], ["c"])
    constant.attribute.append(helper.make_attribute("value", elsewhere("c", [2, 3], "function.bin")))
    graph = Model(
        [node("Add", ["x", "w"], ["y"])], inputs=[float_input("x", 2, 3)], stored=[elsewhere("w", [2], "w.bin")]
    )
    proto = graph.proto()
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("local", "f", [], ["c"], [constant], opsets))
    path.write_bytes(proto.SerializeToString())


def test_a_model_stands_for_its_external_data(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    _write_model(model)
    assert set(files_read(model)) == {model, tmp_path / "w.bin", tmp_path / "function.bin"}


def test_a_link_to_a_model_stands_for_data_beside_either(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "folder"
    home.mkdir()
    folder.mkdir()
    _write_model(home / "model.onnx")
    link = folder / "link.onnx"
    link.symlink_to(home / "model.onnx")
    assert {link, home / "w.bin", folder / "w.bin"} <= set(files_read(link))


def test_what_is_no_model_stands_for_itself(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"location\xff\xff")
    assert files_read(broken) == (broken,)
    assert files_read(tmp_path / "absent") == (tmp_path / "absent",)


def test_the_file_of_a_module_is_found_without_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_that_fails"
    package.mkdir()
    for name in ("__init__.py", "train.py"):
        (package / name).write_text("raise RuntimeError\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert files_read(Path("package_that_fails.train:step")) == (package / "train.py",)
    assert files_read(Path("no_such_module:step")) == (Path("no_such_module:step"),)
