"""Where in the model's code a node comes from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from remat_cli.config import GraphOptions
from remat_cli.formats.onnx.scopes import module_of, source_of
from remat_cli.prepare import prepare
from remat_cli.training import kept_by_module
from tests.unit.formats.onnx.models import Model, node, op

TRACE = """\
File "/home/me/train.py", line 12, in forward
    return self.net(x)
File "/usr/lib/python3/site-packages/mylib/net.py", line 7, in forward
    return self.act(x)
File "/usr/lib/python3/site-packages/torch/nn/modules/activation.py", line 144, in forward
    return F.relu(input)
"""


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("/encoder/layer.2/output/Add", "encoder.layer.2.output"),
        ("/layer1/layer10.0/Add", "layer1.layer10.0"),
        ("/Add", ""),
        ("model/conv/Conv2D", None),
        ("Relu_7", None),
        ("", None),
    ],
)
def test_the_older_exporter_names_its_nodes_by_module(name: str, module: str | None) -> None:
    assert module_of(node("Relu", ["x"], ["y"], name)) == module


@pytest.mark.parametrize(
    ("note", "module"),
    [
        ("['', 'layer1', 'layer1.0', 'layer1.0.act', 'relu_3']", "layer1.0.act"),
        ("['', 'relu']", ""),
        ("['', \"it's\", 'a\\'b', 'x']", "a'b"),
        ("[", None),
        ("['', 'a' 'b']", None),
        ("['', 1]", None),
        (r"['', '\x', 'y']", None),
        ("-" * 9000 + "1", None),
        ("[" * 9000, None),
        ("['', " * 1500, None),
        ("['" + "\\" * 9001 + "', 'x']", None),
    ],
)
def test_the_newer_exporter_notes_the_module(note: str, module: str | None) -> None:
    relu = node("Relu", ["x"], ["y"], "node_Relu_887")
    relu.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=note)
    assert module_of(relu) == module


def test_the_line_is_that_of_the_innermost_code_that_is_not_of_torch(tmp_path: Path) -> None:
    relu = node("Relu", ["x"], ["y"], "/net/act/Relu")
    assert source_of(relu) is None
    relu.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=TRACE)
    assert source_of(relu) == "mylib/net.py:7"
    relu.metadata_props[0].value = TRACE + 'File "/x.py", line ' + 5000 * "9"
    assert source_of(relu) == "mylib/net.py:7"
    read = op(Model([relu]).read(tmp_path), "Relu")
    assert (read.module, read.source) == ("net.act", "mylib/net.py:7")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, of its older exporter
def test_what_an_exported_model_keeps_is_told_by_module(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 3))
            self.head = torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.head(torch.tanh(self.body(x)).mean((2, 3)))
            return result

    path = tmp_path / "net.onnx"
    torch.onnx.export(Net(), (torch.randn(2, 3, 8, 8),), str(path), dynamo=False, opset_version=17)
    prepared = prepare(path, GraphOptions())
    assert prepared.kept is not None
    kept = {part.module: part.bytes for part in kept_by_module(prepared.graph, prepared.kept)}
    # The ReLU, the tanh of the whole model, and what the last layer reads; views of weights take nothing.
    assert {module: size for module, size in kept.items() if size} == {
        "body.1": 2 * 4 * 6 * 6 * 4,
        "": 2 * 4 * 4 * 4 * 4 + 2 * 4 * 4,
    }
