"""Small ONNX models for the reader's tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.graph import Op, Tensor
from remat_cli.formats.onnx import read
from remat_cli.formats.reader import Aliasing, Reading, ReadOptions
from remat_cli.formats.source import Source

Dims = Sequence[int | str | None] | None


def node(
    type_: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any
) -> onnx.NodeProto:
    """Return a node; `domain` is given like an attribute."""
    return helper.make_node(type_, inputs, outputs, name=name, **attributes)


def float_input(name: str, *dims: int | str | None) -> onnx.ValueInfoProto:
    """Return a float32 input of this shape."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def value(name: str, dims: Dims = None, element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """Return a value of this shape, None meaning that not even its rank is declared."""
    return helper.make_tensor_value_info(name, element, dims)


def weight(name: str, *dims: int) -> onnx.TensorProto:
    """Return a float32 initializer of zeros."""
    return numpy_helper.from_array(np.zeros(dims, dtype=np.float32), name)


def integers(name: str, *numbers: int) -> onnx.TensorProto:
    """Return a one-dimensional int64 initializer."""
    return numpy_helper.from_array(np.array(numbers, dtype=np.int64), name)


def scalar(name: str, number: float | bool) -> onnx.TensorProto:
    """Return an initializer of one element without dimensions."""
    return numpy_helper.from_array(np.array(number), name)


def elsewhere(name: str, dims: Sequence[int], location: str, element: int = TensorProto.FLOAT) -> onnx.TensorProto:
    """Return an initializer whose data is in another file."""
    tensor = TensorProto(name=name, data_type=element, dims=dims, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def body(
    nodes: Iterable[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    outputs: Sequence[str] = (),
    stored: Sequence[onnx.TensorProto] = (),
) -> onnx.GraphProto:
    """Return a body for If, Loop or Scan."""
    return helper.make_graph(list(nodes), "body", inputs, [value(name) for name in outputs], list(stored))


@dataclass
class Model:
    """A model in the making; one float32 input x of shape [2, 3] and one output y, unless said otherwise."""

    nodes: Sequence[onnx.NodeProto]
    inputs: Sequence[onnx.ValueInfoProto] = (float_input("x", 2, 3),)
    outputs: Sequence[str] = ("y",)
    stored: Sequence[onnx.TensorProto] = ()
    declared: Sequence[onnx.ValueInfoProto] = ()
    functions: Sequence[onnx.FunctionProto] = ()
    opset: int = 21
    other_opsets: Mapping[str, int] = field(default_factory=dict)
    ir_version: int = 10

    def proto(self) -> onnx.ModelProto:
        """Return the model."""
        graph = helper.make_graph(
            list(self.nodes),
            "graph",
            list(self.inputs),
            [value(name) for name in self.outputs],
            list(self.stored),
            value_info=list(self.declared),
        )
        opsets = {"": self.opset, **self.other_opsets}
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(domain, version) for domain, version in opsets.items()],
            functions=list(self.functions),
        )
        model.ir_version = self.ir_version
        return model

    def save(self, folder: Path) -> Path:
        """Write the model to a file and return its path."""
        path = folder / "model.onnx"
        path.write_bytes(self.proto().SerializeToString())
        return path

    def read(self, folder: Path, **options: Any) -> Reading:
        """Write the model, and read it with these options."""
        return read(Source(self.save(folder)), ReadOptions(**{"aliasing": Aliasing.NONE, **options}))


def tensor(reading: Reading, name: str) -> Tensor:
    """Return a tensor of the graph."""
    return reading.graph.tensors[name]


def op(reading: Reading, type_: str) -> Op:
    """Return the only op of this type."""
    (found,) = (one for one in reading.graph.ops if one.type == type_)
    return found


def op_types(reading: Reading) -> list[str]:
    """Return the types of the ops, in order."""
    return [one.type for one in reading.graph.ops]
