"""Where passes are cut: parts are pieces of their own, and writes come after them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.node import map_arg

from remat_cli.errors import GraphError
from remat_cli.pytorch.capture.live_storages import LiveStorages
from remat_cli.pytorch.capture.op_properties import write_slice
from remat_cli.pytorch.capture.ops import PART
from remat_cli.pytorch.memory import transfers
from remat_cli.pytorch.programs.cuts import cut_at_copies, cut_at_parts
from remat_cli.pytorch.programs.pieces import _check_own

_aten = torch.ops.aten


class Writer:
    """Writes a graph of ops on tensors without data."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.x = self.graph.placeholder("x")
        self.x.meta["val"] = torch.empty(4, 2, device="meta")

    def op(self, name: str, part: int | None, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        if part is not None:
            node.meta[PART] = part
        given = map_arg(args, lambda source: source.meta["val"])
        node.meta["val"] = target(*given, **kwargs)
        return node

    def steps(self) -> list[Any]:
        return [step.name if isinstance(step, fx.Node) else [n.name for n in step] for step in cut_at_parts(self.graph)]


def test_each_part_is_a_piece_between_its_slices_and_its_writes() -> None:
    writer = Writer()
    rows = writer.op("rows", None, _aten.empty_strided.default, [4, 2], [2, 1], device="meta")
    total = writer.op("total", None, _aten.sum.default, writer.x)
    for part in range(2):
        span = (0, 2 * part, 2 * part + 2)
        cut = writer.op(f"cut{part}", part, _aten.slice.Tensor, writer.x, *span)
        exp = writer.op(f"exp{part}", part, _aten.exp.default, cut)
        one = writer.op(f"sum{part}", part, _aten.sum.default, exp)
        total = writer.op(f"total{part}", part, _aten.add_.Tensor, total, one)
        sin = writer.op(f"sin{part}", part, _aten.sin.default, exp)
        rows = writer.op(f"write{part}", part, write_slice, rows, sin, *span)
    writer.op("end", None, _aten.exp.default, rows)
    assert writer.steps() == [
        "rows",
        "cut0",
        ["total"],
        "cut1",
        ["exp0", "sum0", "sin0"],
        "total0",
        "write0",
        ["exp1", "sum1", "sin1"],
        "total1",
        "write1",
        ["end"],
    ]


def test_random_ops_run_alone_and_a_write_comes_before_its_readers() -> None:
    writer = Writer()
    first = writer.op("first", 0, _aten.exp.default, writer.x)
    drawn = writer.op("drawn", None, _aten.bernoulli.p, writer.x, 0.5)
    second = writer.op("second", 0, _aten.sin.default, first)
    written = writer.op("written", 0, _aten.add_.Tensor, first, second)
    third = writer.op("third", 0, _aten.exp.default, written)
    writer.op("scaled", None, _aten.mul_.Tensor, third, drawn)
    assert writer.steps() == ["drawn", ["first", "second"], "written", ["third"], "scaled"]


def test_a_write_into_memory_that_others_read_is_refused() -> None:
    writer = Writer()
    written = writer.op("written", None, _aten.add_.Tensor, writer.x, 1)
    own, given = torch.empty(2), LiveStorages()
    _check_own(written, own, given, [torch.empty(2)])
    with pytest.raises(GraphError, match="what 'written' writes into in memory that is read later"):
        _check_own(written, own, given, [own[:1]])
    given.follow(own.untyped_storage())
    with pytest.raises(GraphError, match="read later"):
        _check_own(written, own, given, [])


def test_copies_stand_between_lists_of_the_others() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(_aten.relu.default, (x,))
    host = graph.call_function(transfers.offload, (first,))
    waited = graph.call_function(transfers.wait, (host, first))
    last = graph.call_function(_aten.neg.default, (first,))
    graph.output((last, host))
    assert list(cut_at_copies(graph)) == [[first], host, waited, [last]]
