"""Builds forward graphs at the granularity of Kusumoto et al. 2019: an op has one output, and both have one name.

Sizes are those of float32 and times the paper's: 10 units for a convolution, 1 for anything else. What an op saves for
its backward is what Chainer 5 retains. Buffers that only one op ever sees (the scale of an LRN, the mask of a dropout,
the softmax of a loss) are no values of the graph; they are as large as the op's input.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from remat_cli.core.graph import Graph, Kind, Op, Tensor, build_graph

FLOAT_BYTES = 4
INPUT = "x"
CONV_TIME = 10

_SAVES_INPUT = frozenset({"Conv", "Gemm", "BatchNormalization", "MaxPool", "AveragePool", "LRN"})
_SAVES_OUTPUT = frozenset({"Relu", "MaxPool", "AveragePool", "LRN"})


class ValueGraph:
    """Collects ops in order, each a method that takes and returns names of values, then makes a graph of them.

    Attributes:
        parameter_bytes: by op, the bytes of its trainable parameters; ops without any are left out.
        statistics_bytes: running means and variances of the batch normalizations.
    """

    def __init__(self, name: str, *input_shape: int) -> None:
        self.parameter_bytes: dict[str, int] = {}
        self.statistics_bytes = 0
        self._name = name
        self._shapes: dict[str, tuple[int, ...]] = {INPUT: input_shape}
        self._ops: list[Op] = []

    def graph(self) -> Graph:
        """Return the forward graph, whose output is the value of the op added last.

        Resident are the parameters, a gradient for each, and the statistics.
        """
        return build_graph(
            name=self._name,
            kind=Kind.FORWARD,
            time_unit="unit",
            resident_bytes=2 * sum(self.parameter_bytes.values()) + self.statistics_bytes,
            tensors=[
                Tensor(value, FLOAT_BYTES * prod(shape), shape, "float32") for value, shape in self._shapes.items()
            ],
            ops=self._ops,
            outputs=self._ops[-1].outputs,
        )

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the shape of a value: [batch, channels, height, width], [batch, features] or [] of a loss."""
        return self._shapes[value]

    def conv(
        self, x: str, name: str, channels: int, kernel: int, *, stride: int = 1, bias: bool = True, padded: bool = True
    ) -> str:
        """Add a square convolution.

        Args:
            x: the input.
            name: of the op and its result.
            channels: of the result.
            kernel: height and width of the kernel; dilation changes no size here and is left out.
            stride: in both directions.
            bias: whether it has one.
            padded: whether a stride of 1 keeps height and width.
        """
        batch, fan_in, *size = self.shape(x)
        size = [-(-side // stride) if padded else (side - kernel) // stride + 1 for side in size]
        self._add_parameters(name, channels * (fan_in * kernel**2 + bias))
        return self._add_op("Conv", name, [x], [batch, channels, *size], time=CONV_TIME)

    def batch_norm(self, x: str, name: str) -> str:
        """Add a batch normalization with a scale and a shift."""
        channels = self.shape(x)[1]
        self._add_parameters(name, 2 * channels)
        self.statistics_bytes += 2 * channels * FLOAT_BYTES
        return self.elementwise("BatchNormalization", x, name)

    def relu(self, x: str, name: str) -> str:
        """Add a rectifier, not in place."""
        return self.elementwise("Relu", x, name)

    def elementwise(self, type_: str, x: str, name: str) -> str:
        """Add an op of one input whose result has the shape of that."""
        return self._add_op(type_, name, [x], self.shape(x))

    def max_pool(self, x: str, name: str, stride: int) -> str:
        """Add a max pooling whose windows reach over the edge where the stride does not divide the size."""
        batch, channels, *size = self.shape(x)
        return self._add_op("MaxPool", name, [x], [batch, channels, *(-(-side // stride) for side in size)])

    def average_pool(self, x: str, name: str, kernel: int, stride: int) -> str:
        """Add an average pooling whose windows stay inside."""
        batch, channels, *size = self.shape(x)
        size = [(side - kernel) // stride + 1 for side in size]
        return self._add_op("AveragePool", name, [x], [batch, channels, *size])

    def scaled_to(self, x: str, name: str, type_: str, side: int) -> str:
        """Add an op that makes an image of `side` x `side` from another: a crop, or an interpolation of some kind."""
        return self._add_op(type_, name, [x], [*self.shape(x)[:2], side, side])

    def concat(self, parts: Sequence[str], name: str) -> str:
        """Add a concatenation of channels."""
        batch, _, *size = self.shape(parts[0])
        return self._add_op("Concat", name, parts, [batch, sum(self.shape(part)[1] for part in parts), *size])

    def add(self, x: str, y: str, name: str) -> str:
        """Add a sum of two values of one shape."""
        return self._add_op("Add", name, [x, y], self.shape(x))

    def flat_gemm(self, x: str, name: str, features: int) -> str:
        """Add a fully connected layer for images; Chainer's flattens them first, which is an op of its own."""
        batch, *image = self.shape(x)
        flat = self._add_op("Reshape", f"{name}.flat", [x], [batch, prod(image)])
        return self.gemm(flat, name, features)

    def gemm(self, x: str, name: str, features: int) -> str:
        """Add a fully connected layer with bias."""
        batch, fan_in = self.shape(x)
        self._add_parameters(name, features * (fan_in + 1))
        return self._add_op("Gemm", name, [x], [batch, features])

    def loss(self, x: str, name: str) -> str:
        """Add a softmax with cross entropy; the labels are not in the graph."""
        return self._add_op("SoftmaxCrossEntropyLoss", name, [x], [])

    def _add_op(self, type_: str, name: str, inputs: Sequence[str], shape: Sequence[int], *, time: int = 1) -> str:
        self._shapes[name] = tuple(shape)
        saves = (*(inputs if type_ in _SAVES_INPUT else ()), *((name,) if type_ in _SAVES_OUTPUT else ()))
        self._ops.append(Op(name, type_, tuple(inputs), (name,), time, saves=saves))
        return name

    def _add_parameters(self, op: str, count: int) -> None:
        self.parameter_bytes[op] = FLOAT_BYTES * count
