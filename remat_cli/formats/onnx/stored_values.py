"""Values in the file: initializers and Constant nodes.

Data in other files is never opened.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from onnx import numpy_helper

from remat_cli.errors import GraphError
from remat_cli.formats.onnx.dtypes import STRING, element_type
from remat_cli.formats.onnx.errors import onnx_faults
from remat_cli.formats.onnx.load import FOLD_LIMIT
from remat_cli.formats.onnx.values import Origin, TensorType, Value, checked
from remat_cli.formats.onnx.walk import all_graphs, all_nodes

if TYPE_CHECKING:
    import onnx

    from remat_cli.formats.onnx.values import Array

_DAMAGED = "the file is damaged; export it again"

# Positions of statistics and scales: floats that gradients do not change.
_NOT_TRAINED: Mapping[str, tuple[int, ...]] = {
    "BatchNormalization": (3, 4),
    "Resize": (1, 2),
    "Upsample": (1,),
    "QuantizeLinear": (1,),
    "DequantizeLinear": (1,),
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
}

# Ops whose operands are weights if exporters write them as Constant nodes.
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True)
class Stored:
    """The initializers of a graph.

    Attributes:
        values: values by name.
        bytes: total size; a sparse value counts as the dense one that runtimes make of it.
    """

    values: Mapping[str, Value]
    bytes: int


def weights_read(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Yield the names that nodes and bodies read at positions of weights."""
    for node in all_nodes(nodes):
        skipped = _NOT_TRAINED.get(node.op_type, ())
        yield from (name for position, name in enumerate(node.input) if position not in skipped)


def constant_weights(nodes: Iterable[onnx.NodeProto]) -> frozenset[str]:
    """Return the Constant nodes' values that nodes and bodies multiply by.

    They are weights like any other.
    """
    every = list(all_nodes(nodes))
    constants = {node.output[0] for node in every if node.op_type == "Constant" and node.domain == "" and node.output}
    products = (node for node in every if node.op_type in _PRODUCTS and node.domain == "")
    return frozenset(name for node in products for name in node.input if name in constants)


def stored_values(graph: onnx.GraphProto, weights: Collection[str], overridable: Collection[str]) -> Stored:
    """Return the initializers of a graph.

    Args:
        graph: the main graph or a body.
        weights: names read at positions of trained weights.
        overridable: names of initializers that the caller may replace, so that their data is unknown.

    Raises:
        GraphError: there is an unknown element type, a negative dimension, or data that does not match its type.
    """
    values: dict[str, Value] = {}
    total = 0
    for tensor in graph.initializer:
        kind = _tensor_type(tensor, tensor.dims)
        _add(values, tensor.name, _initializer(tensor, kind, weights, overridable))
        total += kind.bytes
    for sparse in graph.sparse_initializer:
        kind = _tensor_type(sparse.values, sparse.dims)
        trainable = kind.element.is_trainable and sparse.values.name in weights
        _add(values, sparse.values.name, Value(kind, Origin.STORED, trainable=trainable))
        total += kind.bytes
    return Stored(values, total)


def unopened_names(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the small initializers whose data is in another file."""
    every = (tensor for one in all_graphs(graph) for tensor in one.initializer)
    return frozenset(one.name for one in every if one.data_location == one.EXTERNAL and prod(one.dims) <= FOLD_LIMIT)


def unread_bytes(graph: onnx.GraphProto) -> int:
    """Return the size of initializers and constants in an unused body."""
    total = 0
    for one in all_graphs(graph):
        total += stored_values(one, (), ()).bytes
        constants = (node for node in one.node if node.op_type == "Constant" and node.domain == "")
        total += sum(constant_value(node).type.bytes for node in constants)
    return total


def _initializer(
    tensor: onnx.TensorProto, kind: TensorType, weights: Collection[str], overridable: Collection[str]
) -> Value:
    replaceable = tensor.name in overridable
    return Value(
        kind,
        Origin.STORED,
        data=None if replaceable else stored_data(tensor),
        trainable=kind.element.is_trainable and kind.elements > 1 and tensor.name in weights,
        overridable=replaceable,
    )


def _add(values: dict[str, Value], name: str, value: Value) -> None:
    if name in values:
        raise GraphError(f"initializer {name!r} is defined twice", hint=_DAMAGED)
    values[name] = value


def _tensor_type(tensor: onnx.TensorProto, dims: Iterable[int]) -> TensorType:
    where = f"stored value {tensor.name!r}"
    return checked(TensorType(element_type(tensor.data_type, where), tuple(dims)), where)


def constant_value(node: onnx.NodeProto, weights: Container[str] = ()) -> Value:
    """Return the value of a Constant node.

    Args:
        node: the node.
        weights: names read at positions of trained weights in Constant nodes.

    Raises:
        GraphError: the node has no value, or one that `stored_values` would refuse.
    """
    for attribute in node.attribute:
        match attribute.name:
            case "value":
                kind = _tensor_type(attribute.t, attribute.t.dims)
                is_weight = kind.element.is_trainable and kind.elements > 1 and node.output[0] in weights
                return Value(kind, Origin.FOLDED, data=stored_data(attribute.t), trainable=is_weight)
            case "sparse_value":
                sparse = attribute.sparse_tensor
                return Value(_tensor_type(sparse.values, sparse.dims), Origin.FOLDED)
            case "value_int" | "value_ints":
                numbers = np.array(attribute.ints if attribute.name.endswith("s") else attribute.i, dtype=np.int64)
                return _computed(numbers, number=7)
            case "value_float" | "value_floats":
                floats = np.array(attribute.floats if attribute.name.endswith("s") else attribute.f, dtype=np.float32)
                return _computed(floats, number=1)
            case "value_string":
                return Value(TensorType(STRING, ()), Origin.FOLDED)
            case "value_strings":
                return Value(TensorType(STRING, (len(attribute.strings),)), Origin.FOLDED)
    raise GraphError(f"Constant {node.name!r}, which defines {list(node.output)}, has no value", hint=_DAMAGED)


def _computed(data: Array, number: int) -> Value:
    kind = TensorType(element_type(number, "a constant"), tuple(data.shape))
    return Value(kind, Origin.FOLDED, data=data if kind.elements <= FOLD_LIMIT else None)


def stored_data(tensor: onnx.TensorProto) -> Array | None:
    """Return the elements of a small tensor, or None.

    None: the tensor is large, or its data is in another file.

    Raises:
        GraphError: the data does not match the type.
    """
    external = tensor.data_location == tensor.EXTERNAL
    if prod(tensor.dims) > FOLD_LIMIT or external or tensor.data_type == STRING.id:
        return None
    with onnx_faults(f"the data of {tensor.name!r} does not match its type", _DAMAGED):
        return numpy_helper.to_array(tensor)
