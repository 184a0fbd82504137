"""The page "Add a PyTorch op whose memory is special": its tables exist, and with its entries the op is known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from remat_cli.config import GraphOptions
from remat_cli.formats.reader import ReadOptions
from remat_cli.prepare import prepare
from remat_cli.pytorch.capture.axes import axes_of
from remat_cli.pytorch.capture.op_properties import OpProperties, in_place_of
from remat_cli.pytorch.capture.reader import take_step
from tests.golden.pages import text_of
from tests.places import ROOT

PAGE = text_of(ROOT / "remat_cli/pytorch/capture/README.md")
ENTRIES = re.findall(r"^\| `([\w/]+)\.py` \| `(\w+)` \| `(.*squared_relu.*)` \|$", PAGE, re.MULTILINE)
STEP = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, x):
        return torch.ops.demo.squared_relu(self.layer(x)).sum()

def step():
    return Model(), torch.ones(6, 4)
"""


def module_of(file: str) -> Any:
    return import_module(f"remat_cli.{file.replace('/', '.')}")


@pytest.fixture
def op() -> Iterator[None]:
    """Declare the op of the example."""
    library: Any = torch.library.Library("demo", "DEF")  # type: ignore[no-untyped-call]
    library.define("squared_relu(Tensor x) -> Tensor")
    library.define("squared_relu_(Tensor(a!) x) -> Tensor(a!)")
    library.impl("squared_relu", lambda x: x.relu().square(), "CompositeExplicitAutograd")
    library.impl("squared_relu_", lambda x: x.relu_().square_(), "CompositeExplicitAutograd")
    torch.library.register_fake("demo::squared_relu", torch.empty_like, lib=library)
    torch.library.register_autograd(
        "demo::squared_relu",
        lambda ctx, gradient: 2 * ctx.saved_tensors[0].relu() * gradient,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        lib=library,
    )
    yield
    library._destroy()


def test_each_table_and_each_property_of_the_page_is_there() -> None:
    rows = re.findall(r"^\| \d \|.*\| `([\w/]+)\.py` \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 7
    properties: set[str] = set()
    for file, tables, written in rows:
        for table in re.findall(r"`(\w+)`", tables):
            assert hasattr(module_of(file), table)
        properties |= set(re.findall(r"`(\w+)`", written)) if "OP_PROPERTIES" in tables else set()
    assert properties == set(OpProperties.__dataclass_fields__)


@pytest.mark.usefixtures("op")
@pytest.mark.parametrize("known", [False, True])
def test_with_the_entries_the_op_is_known(known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.py").write_text(STEP)
    reference = f"{tmp_path / 'model.py'}:step"
    assert len(ENTRIES) == 3
    for file, table, entry in ENTRIES if known else ():
        module = module_of(file)
        monkeypatch.setattr(module, table, getattr(module, table) | eval(f"{{{entry}}}", vars(module)))
    graph = prepare(Path(reference), GraphOptions()).graph
    flops = next(op.flops for op in graph.ops if "squared_relu" in op.type)
    node = next(op.node for op in take_step(reference, ReadOptions()).joint.ops if "squared_relu" in op.name)
    assert node is not None
    assert (flops == 2 * 6 * 8) == known
    assert bool(axes_of(node)) == known
    if known:
        assert in_place_of(node.target) is torch.ops.demo.squared_relu_.default
