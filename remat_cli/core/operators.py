"""Operators: what a graph leaves out of an op, such as operands by position, element types and attributes.

A reader that knows its operators (ONNX) hands one `Operator` an op to those who derive something from it: `costs`
(FLOPs, moved bytes) and `training` (what the backward op reads). Neither of them has to know the file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import prod

# What an attribute may hold; sub-graphs and tensors are left to the reader.
AttributeValue = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


class Role(Enum):
    """Where an operand's value comes from."""

    ACTIVATION = "activation"  # a tensor of the graph: a graph input, or what an op produced
    PARAMETER = "parameter"  # a float weight with more than one element: trainable
    CONSTANT = "constant"  # any other value that is stored in the file or known before the run


@dataclass(frozen=True, slots=True)
class Operand:
    """A value that an operator reads or writes.

    Attributes:
        name: for an activation, the tensor's name in the graph.
        role: where the value comes from.
        shape: dimensions; None where the size was estimated or given by the user.
        dtype: element type by its ONNX name in lower case, such as "float32".
        bytes: size of the value in memory (also for a view, whose tensor in the graph has 0 bytes).
    """

    name: str
    role: Role
    shape: tuple[int, ...] | None
    dtype: str
    bytes: int

    @property
    def elements(self) -> int:
        """Number of elements; 0 where the shape is not known."""
        return 0 if self.shape is None else prod(self.shape)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator as its framework defines it.

    Attributes:
        type: operator name, such as "Conv"; with its domain in front where that is not ONNX's own,
            such as "com.microsoft.FusedConv".
        inputs: operands by position; None where an optional one is absent.
        outputs: results by position; None where an optional one is not produced.
        attributes: the attributes that the file gives (defaults are not filled in).
        opset: version of the operator set that the file imports for this operator's domain.
    """

    type: str
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    opset: int = 0

    def integer(self, attribute: str, default: int) -> int:
        """Return the value of an integer attribute, or `default` where the file does not give it."""
        value = self.attributes.get(attribute, default)
        return value if isinstance(value, int) else default
