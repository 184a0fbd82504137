"""The example on the page "Add an ONNX op": remat knows the op with its entries in the tables, and not without."""

from __future__ import annotations

import re
from importlib import import_module
from math import prod
from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

from remat_cli.config import GraphOptions
from remat_cli.formats.reader import Aliasing, Workspace
from remat_cli.prepare import Prepared, prepare
from tests.golden.pages import text_of
from tests.places import ROOT

PAGE = ROOT / "remat_cli/formats/onnx/README.md"
ENTRIES = re.findall(r"^\| `([\w/]+)\.py` \| `(\w+)` \| `(.*SquaredRelu.*)` \|$", text_of(PAGE), re.MULTILINE)
ELEMENTS = 2 * 3 * 5 * 4


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the entries of the page into the tables."""
    for file, table, entry in ENTRIES:
        module = import_module(f"remat_cli.{file.replace('/', '.')}")
        new = eval(f"{{{entry}}}", vars(module))  # an entry of a mapping, or of a set
        monkeypatch.setattr(module, table, getattr(module, table) | new)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write heads of attention, of which an op makes others, which are multiplied by a stack of matrices."""
    inputs = [helper.make_tensor_value_info("q", TensorProto.FLOAT, (2, 5, 3, 4))]
    weights = [
        helper.make_tensor(name, TensorProto.FLOAT, shape, [1.0] * prod(shape))
        for name, shape in (("scale", (4,)), ("k", (2, 3, 4, 5)))
    ]
    nodes = [
        helper.make_node("Mul", ["q", "scale"], ["scaled"], "mul"),
        helper.make_node("Transpose", ["scaled"], ["heads"], "split", perm=[0, 2, 1, 3]),
        helper.make_node("SquaredRelu", ["heads"], ["made"], "act", domain="com.example"),
        helper.make_node("MatMul", ["made", "k"], ["product"], "product"),
    ]
    outputs = [helper.make_tensor_value_info("product", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "heads", inputs, outputs, weights)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    save(helper.make_model(graph, opset_imports=sets, ir_version=9), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def prepared(model: Path, mode: str) -> Prepared:
    return prepare(model, GraphOptions(mode=mode, aliasing=Aliasing.TORCH, workspace=Workspace.ONNXRUNTIME))


def test_the_page_has_an_entry_for_each_of_the_five_questions() -> None:
    questions = re.findall(r"^\| \d \|.*\| `([\w/]+)\.py` \|", text_of(PAGE), re.MULTILINE)
    assert [file for file, _, _ in ENTRIES] == questions


@pytest.mark.usefixtures("entries")
def test_with_the_entries_the_op_is_known(model: Path) -> None:
    step = prepared(model, "training")
    assert not any("act" in note for note in step.notes)
    made, act = step.graph.tensors["made"], step.graph.op["act"]
    assert made.shape == (2, 3, 5, 4)
    assert act.workspace_bytes == 4 * ELEMENTS
    assert act.flops == 2 * ELEMENTS
    (backward,) = (op for op in step.graph.ops if op.grad_of == "act")
    assert "scaled" in backward.inputs  # the base of `heads`, which it reads
    assert "made" not in backward.inputs
    (of_product,) = (op for op in step.graph.ops if op.grad_of == "product")
    assert [name for name in of_product.inputs if "copy" in name] == ["product.copy of made"]


def test_without_them_it_is_an_estimate(model: Path) -> None:
    step = prepared(model, "training")
    assert any("act" in note and "not known to onnx" in note for note in step.notes)
    (of_product,) = (op for op in step.graph.ops if op.grad_of == "product")
    assert [name for name in of_product.inputs if "copy" in name] == []
