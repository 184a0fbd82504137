"""What is opened, and what is refused before anything is inferred."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import onnx
import pytest

from remat_cli.errors import GraphError
from remat_cli.formats.onnx import load as load_module
from remat_cli.formats.onnx import read
from remat_cli.formats.reader import ReadOptions
from remat_cli.formats.source import Source
from tests.unit.formats.onnx.models import Model, elsewhere, node, op_types, tensor, weight

RELU = [node("Relu", ["x"], ["y"])]


def refusal(path: Path) -> GraphError:
    with pytest.raises(GraphError) as caught:
        read(Source(path), ReadOptions())
    assert caught.value.hint
    return caught.value


def written(folder: Path, content: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(content)
    return path


def test_onnx_is_imported_only_where_it_is_used() -> None:
    loaded = "import sys, remat_cli.formats.onnx; print('onnx' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_missing_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.onnx").message


def test_directory(tmp_path: Path) -> None:
    assert "is a directory" in refusal(tmp_path).message


def test_fifo_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "not a regular file" in refusal(tmp_path / "pipe.onnx").message


def test_empty_file(tmp_path: Path) -> None:
    assert "is empty" in refusal(written(tmp_path, b"")).message


def test_file_beyond_protobuf_s_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)  # sparse: takes no space
    error = refusal(path)
    assert "more than the 2.147 GB that are read" in error.message
    assert "external data" in str(error.hint)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'  {"format": "remat.graph/1"}', "JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs"),
        (b"PK\x03\x04rest of a zip", "zip archive"),
        (b"\x80\x02}q\x00.", "pickle"),
        (b"<!DOCTYPE html>", "HTML"),
    ],
)
def test_other_formats_are_called_by_their_name(tmp_path: Path, content: bytes, kind: str) -> None:
    assert kind in refusal(written(tmp_path, content)).message


@pytest.mark.parametrize("content", [b"just some text\n", b"\x00" * 64, b"\xff" * 64, bytes(range(1, 200))])
def test_bytes_that_are_no_model(tmp_path: Path, content: bytes) -> None:
    assert "is not an ONNX model" in refusal(written(tmp_path, content)).message


def test_truncated_model(tmp_path: Path) -> None:
    whole = Model(RELU).proto().SerializeToString()
    assert "is not an ONNX model" in refusal(written(tmp_path, whole[: len(whole) // 2])).message


def test_ir_version_0(tmp_path: Path) -> None:
    assert "ir_version is 0" in refusal(Model(RELU, ir_version=0).save(tmp_path)).message


def test_model_without_graph(tmp_path: Path) -> None:
    model = onnx.ModelProto(ir_version=10)
    model.opset_import.add(version=21)
    assert "has no graph" in refusal(written(tmp_path, model.SerializeToString())).message


def test_graph_without_nodes(tmp_path: Path) -> None:
    assert "without nodes" in refusal(Model([]).save(tmp_path)).message


def test_model_without_opset_import(tmp_path: Path) -> None:
    model = Model(RELU).proto()
    model.ClearField("opset_import")
    assert "no opset_import" in refusal(written(tmp_path, model.SerializeToString())).message


def test_opset_0(tmp_path: Path) -> None:
    assert "imports version 0" in refusal(Model(RELU, opset=0).save(tmp_path)).message


def test_own_operators_without_own_opset(tmp_path: Path) -> None:
    model = Model(RELU).proto()
    model.opset_import[0].domain = "com.acme"
    assert "ONNX's own operator set" in refusal(written(tmp_path, model.SerializeToString())).message


def test_opset_of_the_future_is_read_with_a_note(tmp_path: Path) -> None:
    reading = Model(RELU, opset=99).read(tmp_path)
    assert tensor(reading, "y").shape == (2, 3)
    assert "operator set 99" in reading.notes[0]
    assert f"1 to {onnx.defs.onnx_opset_version()}" in reading.notes[0]


def test_ai_onnx_is_onnx_s_own_domain(tmp_path: Path) -> None:
    model = Model([node("Relu", ["x"], ["y"], domain="ai.onnx")]).proto()
    model.opset_import[0].domain = "ai.onnx"
    reading = read(Source(written(tmp_path, model.SerializeToString())), ReadOptions())
    assert op_types(reading) == ["Relu"]
    assert not reading.estimated


def test_name_that_is_not_text(tmp_path: Path) -> None:
    model = Model([node("Relu", ["x"], ["some_name"])], outputs=["some_name"]).proto().SerializeToString()
    broken = model.replace(b"some_name", b"some\xff\xfe\xfdme")
    assert "not UTF-8" in refusal(written(tmp_path, broken)).message


@pytest.mark.parametrize("location", ["../../etc/passwd", "/etc/passwd", "absent.bin", "", "weights\0.bin"])
def test_external_data_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str) -> None:
    path = Model([node("Add", ["x", "w"], ["y"])], stored=[elsewhere("w", [2, 3], location)]).save(tmp_path)
    opened: list[Path] = []
    open_path = Path.open

    def watched(self: Path, mode: str) -> IO[Any]:
        opened.append(self)
        return open_path(self, mode)

    monkeypatch.setattr(Path, "open", watched)
    monkeypatch.setattr("builtins.open", lambda file, *_, **__: opened.append(Path(file)))
    assert read(Source(path), ReadOptions()).graph.resident_bytes == 24
    assert opened == [path]


def test_large_weights_are_stripped_and_still_counted(tmp_path: Path) -> None:
    model = Model([node("Add", ["x", "w"], ["y"])], stored=[weight("w", 5000, 2, 3)])
    stripped = load_module.load_model(Source(model.save(tmp_path))).graph.initializer[0]
    assert not stripped.raw_data
    assert model.read(tmp_path).graph.resident_bytes == 5000 * 24


def test_data_that_does_not_match_its_type(tmp_path: Path) -> None:
    broken = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[3], raw_data=b"ab")
    model = Model([node("Add", ["x", "w"], ["y"])], stored=[broken])
    assert "the data of 'w' does not match its type" in refusal(model.save(tmp_path)).message


def test_errors_from_onnx_are_printable(tmp_path: Path) -> None:
    strange: dict[str, Any] = {"\x1b[31mstrange": 1}
    faulty = node("Relu", ["x"], ["y"], **strange)
    message = refusal(Model([faulty]).save(tmp_path)).message
    assert "strange" in message
    assert message.isprintable()


def test_control_characters_in_names_are_kept(tmp_path: Path) -> None:
    name = "\x1b[31mred\n[bold]"
    reading = Model([node("Relu", ["x"], [name], name=name)], outputs=[name]).read(tmp_path)
    assert reading.graph.ops[0].name == name
    assert name in reading.graph.tensors
