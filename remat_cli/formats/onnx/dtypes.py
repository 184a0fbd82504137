"""Element types of ONNX and their sizes.

An own table, because numpy's item size is no guide: ml_dtypes stores one 4-bit integer in a whole byte, ONNX two.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.errors import GraphError


@dataclass(frozen=True, slots=True)
class ElementType:
    """The type of a tensor's elements.

    Attributes:
        id: number of the type in ONNX (`TensorProto.DataType`).
        name: for people, such as "float32".
        bits: size of one element in memory.
    """

    id: int
    name: str
    bits: int

    @property
    def is_trainable(self) -> bool:
        """Whether weights of this type are trained: floating point of 16 bits and more."""
        return self.name in ("float32", "float64", "float16", "bfloat16")

    @property
    def is_string(self) -> bool:
        """Whether the elements have no fixed size."""
        return self.id == STRING.id


# What one std::string takes in onnxruntime; the text itself is not known.
STRING = ElementType(8, "string", 32 * 8)
FLOAT32 = ElementType(1, "float32", 32)
BOOL = ElementType(9, "bool", 8)
INT64 = ElementType(7, "int64", 64)

_TYPES = (
    FLOAT32,
    ElementType(2, "uint8", 8),
    ElementType(3, "int8", 8),
    ElementType(4, "uint16", 16),
    ElementType(5, "int16", 16),
    ElementType(6, "int32", 32),
    INT64,
    STRING,
    BOOL,
    ElementType(10, "float16", 16),
    ElementType(11, "float64", 64),
    ElementType(12, "uint32", 32),
    ElementType(13, "uint64", 64),
    ElementType(14, "complex64", 64),
    ElementType(15, "complex128", 128),
    ElementType(16, "bfloat16", 16),
    ElementType(17, "float8e4m3fn", 8),
    ElementType(18, "float8e4m3fnuz", 8),
    ElementType(19, "float8e5m2", 8),
    ElementType(20, "float8e5m2fnuz", 8),
    ElementType(21, "uint4", 4),
    ElementType(22, "int4", 4),
    ElementType(23, "float4e2m1", 4),
    ElementType(24, "float8e8m0", 8),
    ElementType(25, "uint2", 2),
    ElementType(26, "int2", 2),
    ElementType(27, "float6e2m3", 6),
    ElementType(28, "float6e3m2", 6),
)
ELEMENT_TYPES = {element.id: element for element in _TYPES}


def element_type(number: int, where: str) -> ElementType:
    """Return the element type that ONNX gives this number.

    Args:
        number: a `TensorProto.DataType`.
        where: what has this type, for the error message.

    Raises:
        GraphError: there is no such type.
    """
    if number not in ELEMENT_TYPES:
        raise GraphError(
            f"{where} has the unknown element type {number}",
            hint=f"known types are 1 to {max(ELEMENT_TYPES)} (TensorProto.DataType); the file is damaged or too new",
        )
    return ELEMENT_TYPES[number]
