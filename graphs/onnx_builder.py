"""Builds structure-only ONNX models: every weight is a reference into a data file that does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
IR_VERSION = 10
WEIGHTS_FILE = "weights.bin"
FLOAT_BYTES = 4

Dims = Sequence[int | str]
Attribute = int | float | str | Sequence[int]


class ModelBuilder:
    """Collects inputs, weights and nodes in order, then makes a model of them.

    A node and its first output share one name, so that plans read well.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inputs: list[onnx.ValueInfoProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._weight_bytes = 0

    def input(self, name: str, element_type: int, dims: Dims) -> str:
        """Add a graph input; text among `dims` is a symbolic dimension."""
        self._inputs.append(helper.make_tensor_value_info(name, element_type, dims))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """Add a float32 weight that lies in the (absent) data file behind the weights added before."""
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        length = FLOAT_BYTES * prod(shape)
        for key, value in (("location", WEIGHTS_FILE), ("offset", self._weight_bytes), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        self._weight_bytes += length
        self._initializers.append(tensor)
        return name

    def constant(self, name: str, value: NDArray[np.float32] | NDArray[np.int64]) -> str:
        """Add a small constant, stored in the file itself."""
        self._initializers.append(numpy_helper.from_array(value, name))
        return name

    def node(
        self,
        type_: str,
        name: str,
        inputs: Sequence[str],
        *,
        further_outputs: Sequence[str] = (),
        **attributes: Attribute | TensorProto,
    ) -> str:
        """Add a node and return its first output, which has the node's name."""
        outputs = [name, *further_outputs]
        node = helper.make_node(type_, list(inputs), outputs, name=name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
        self._nodes.append(node)
        return name

    def model(self, output: str, element_type: int, dims: Dims) -> onnx.ModelProto:
        """Return the model whose one output is `output`."""
        result = helper.make_tensor_value_info(output, element_type, dims)
        graph = helper.make_graph(self._nodes, self._name, self._inputs, [result], self._initializers)
        return helper.make_model(
            graph,
            producer_name="remat graphs",
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )


def conv_batch_norm(
    model: ModelBuilder, x: str, name: str, channels: tuple[int, int], kernel: int, *, stride: int = 1, norm: str
) -> str:
    """Add a convolution without bias, padded to keep height and width at stride 1, and its batch normalization.

    Args:
        model: what to add to.
        x: the input.
        name: of the convolution.
        channels: (in, out).
        kernel: height and width of the kernel.
        stride: in both directions.
        norm: name of the batch normalization.
    """
    inputs, outputs = channels
    weight = model.weight(f"{name}.weight", outputs, inputs, kernel, kernel)
    x = model.node(
        "Conv", name, [x, weight], kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4, strides=[stride] * 2
    )  # fmt: skip
    return batch_norm(model, x, norm, outputs)


def batch_norm(model: ModelBuilder, x: str, name: str, channels: int) -> str:
    """Add a batch normalization in its training form: by the statistics of the batch, with updated running ones."""
    parts = ("weight", "bias", "running_mean", "running_var")
    weights = [model.weight(f"{name}.{part}", channels) for part in parts]
    updated = [f"{name}.new_mean", f"{name}.new_var"]
    return model.node("BatchNormalization", name, [x, *weights], further_outputs=updated, training_mode=1)


def write(model: onnx.ModelProto, path: Path) -> None:
    """Write `model` so that the same model gives the same bytes."""
    path.write_bytes(model.SerializeToString(deterministic=True))
