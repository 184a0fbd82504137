"""The values of a model: type, size and origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from remat_cli.core.graph import LARGEST_TOTAL
from remat_cli.errors import GraphError
from remat_cli.formats.onnx.dtypes import ElementType, element_type
from remat_cli.formats.onnx.expressions import expression
from remat_cli.units import format_count

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a tensor, or of an optional tensor.

    Attributes:
        element: type of its elements.
        shape: dimensions; None if any is unknown.
    """

    element: ElementType
    shape: tuple[int, ...] | None

    @property
    def is_sized(self) -> bool:
        """Whether the size in memory is known."""
        return self.shape is not None

    @property
    def elements(self) -> int:
        """Number of elements; 0 for an unknown shape."""
        return 0 if self.shape is None else prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in memory in whole bytes; 0 for an unknown shape."""
        return -(-self.elements * self.element.bits // 8)


@dataclass(frozen=True, slots=True)
class SequenceType:
    """The type of a sequence of tensors, or of an optional one.

    Attributes:
        element: type of the elements of its tensors.
        total_bytes: size of all its tensors together; None if unknown.
        item: shape of each tensor; None if they differ or are unknown.
        length: number of tensors; None if unknown.
    """

    element: ElementType
    total_bytes: int | None
    item: tuple[int, ...] | None = None
    length: int | None = None

    @property
    def is_sized(self) -> bool:
        """Whether the size in memory is known."""
        return self.total_bytes is not None

    @property
    def shape(self) -> None:
        """The shape, which a sequence does not have."""
        return

    @property
    def bytes(self) -> int:
        """Size in memory; 0 if unknown."""
        return self.total_bytes or 0


ValueType = TensorType | SequenceType


class Misfit(GraphError):
    """A node that cannot run on its inputs, for their sizes or at all."""


class Origin(Enum):
    """The origin of a value."""

    INPUT = "input"  # fed by the caller, or passed to a body by its node
    STORED = "stored"  # an initializer
    FOLDED = "folded"  # computed while reading: constants, shape arithmetic
    PRODUCED = "produced"  # the output of an op when the model runs


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a graph.

    Attributes:
        type: its type and size.
        origin: its origin.
        data: its elements, if they are known and few.
        trainable: whether it is a weight that training changes.
        overridable: whether it is an initializer that the caller may replace by an input of the same name.
        guessed: whether its size is an estimate, or follows from one.
        assumed: whether its element type is an assumption, or follows from one.
    """

    type: ValueType
    origin: Origin
    data: Array | None = None
    trainable: bool = False
    overridable: bool = False
    guessed: bool = False
    assumed: bool = False

    @property
    def is_activation(self) -> bool:
        """Whether the value takes its own memory when the model runs."""
        return self.origin in (Origin.INPUT, Origin.PRODUCED)


Values = Mapping[str, Value]


def value_type(proto: onnx.TypeProto, dims: Mapping[str, int], where: str) -> ValueType | None:
    """Return the type declared in a file, or None.

    None stands for maps, opaque and sparse types, and for a missing type.

    Args:
        proto: the declared type.
        dims: values of symbolic dimensions.
        where: the value of this type, for the error message.

    Raises:
        GraphError: there is a negative dimension, an unknown element type, or a size beyond 2^60 bytes.
    """
    kind = proto.WhichOneof("value")
    if kind == "optional_type":
        return value_type(proto.optional_type.elem_type, dims, where)
    if kind == "sequence_type":
        item = value_type(proto.sequence_type.elem_type, dims, where)
        return SequenceType(item.element, None, item=item.shape) if isinstance(item, TensorType) else None
    if kind != "tensor_type" or proto.tensor_type.elem_type == 0:
        return None
    element = element_type(proto.tensor_type.elem_type, where)
    return checked(TensorType(element, _complete_shape(proto.tensor_type, dims)), where)


def _complete_shape(proto: onnx.TypeProto.Tensor, dims: Mapping[str, int]) -> tuple[int, ...] | None:
    if not proto.HasField("shape"):
        return None
    shape = []
    for dim in proto.shape.dim:
        size = _named_size(dim.dim_param, dims) if dim.WhichOneof("value") == "dim_param" else dim.dim_value
        if size is None or dim.WhichOneof("value") is None:
            return None
        shape.append(size)
    return tuple(shape)


def _named_size(name: str, dims: Mapping[str, int]) -> int | None:
    """Return the value of a symbol, or of an expression of known symbols."""
    if name in dims:
        return dims[name]
    written = expression(name)
    return None if written is None else written.size(dims)


def checked(tensor: TensorType, where: str) -> TensorType:
    """Return `tensor` if such a tensor can exist.

    Raises:
        GraphError: there is a negative dimension, or a size beyond 2^60 bytes.
    """
    if tensor.shape is None:
        return tensor
    if any(size < 0 for size in tensor.shape):
        raise Misfit(
            f"{where} has shape {shape_text(tensor.shape)}, with a negative dimension",
            hint="a size that is not fixed must be a symbol (dim_param), which can be bound; export the model again",
        )
    if tensor.bytes > LARGEST_TOTAL:
        raise GraphError(
            f"{where} has shape {shape_text(tensor.shape)}: {format_count(tensor.bytes)} bytes, more than 2^60",
            hint="check its dimensions; a wrong size or shape that was given makes sizes like this",
        )
    return tensor


def broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of two operands broadcast to each other."""
    rank = max(len(one), len(other))
    padded = ((1,) * (rank - len(shape)) + shape for shape in (one, other))
    return tuple(b if a == 1 else a for a, b in zip(*padded, strict=True))


def shape_text(shape: tuple[int | str, ...], longest: int = 16) -> str:
    """Write a shape like ONNX tools, such as "[1,3,224,224]".

    A very long shape is cut.
    """
    rest = f",... {len(shape):,} dimensions" if len(shape) > longest else ""
    return f"[{','.join(map(str, shape[:longest]))}{rest}]"


@lru_cache(maxsize=4096)
def type_proto(tensor: TensorType) -> onnx.TypeProto:
    """Return the type in ONNX's form.

    The result is shared: do not change it.
    """
    from onnx import helper

    return helper.make_tensor_type_proto(tensor.element.id, tensor.shape)
