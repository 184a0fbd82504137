"""Operators: operands by position, element types and attributes.

A graph leaves these out of its ops. A reader that knows its operators (ONNX) returns an `Operator` for each op. From
it, `costs` derives FLOPs and moved bytes, and `training` the saved tensors, without knowing the file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import prod

# The types of an attribute's value; sub-graphs and tensors stay with the reader.
AttributeValue = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


class Role(Enum):
    """The source of an operand's value."""

    ACTIVATION = "activation"  # a tensor of the graph: a graph input or an op's output
    PARAMETER = "parameter"  # a float weight with more than one element: trainable
    CONSTANT = "constant"  # any other value that is stored in the file, or known before the run


@dataclass(frozen=True, slots=True)
class Operand:
    """A value that an operator reads or writes.

    Attributes:
        name: for an activation, the tensor's name in the graph.
        role: where the value comes from.
        shape: dimensions; None if the size was estimated or given by the user.
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
        """Number of elements; 0 for an unknown shape."""
        return 0 if self.shape is None else prod(self.shape)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator with its operands and attributes, as in its framework.

    Attributes:
        type: operator name, such as "Conv"; with its domain in front if that is not ONNX's own, such as
            "com.microsoft.FusedConv".
        inputs: operands by position; None for an optional one that is absent.
        outputs: results by position; None for an optional one that is not produced.
        attributes: the attributes that the file gives (defaults are not filled in).
        opset: version of the operator set that the file imports for this operator's domain.
    """

    type: str
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    opset: int = 0

    def integer(self, attribute: str, default: int) -> int:
        """Return an integer attribute, or `default` if absent."""
        value = self.attributes.get(attribute, default)
        return value if isinstance(value, int) else default
