"""Element types of ONNX and their sizes.

numpy's item size does not help: ml_dtypes stores one 4-bit integer in a whole byte, ONNX two.
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
        """Whether weights of this type are trained.

        They are if they are floating-point numbers of 16 bits or more.
        """
        return self.name in ("float32", "float64", "float16", "bfloat16")

    @property
    def is_string(self) -> bool:
        """Whether the elements have no fixed size."""
        return self.id == STRING.id


# Bits of one element by the type's name, in the order of their numbers in ONNX, which begin at 1.
# fmt: off
_BITS = {
    "float32": 32, "uint8": 8, "int8": 8, "uint16": 16, "int16": 16, "int32": 32, "int64": 64,
    "string": 32 * 8,  # size of one std::string in onnxruntime; the text itself is unknown
    "bool": 8, "float16": 16, "float64": 64, "uint32": 32, "uint64": 64, "complex64": 64, "complex128": 128,
    "bfloat16": 16, "float8e4m3fn": 8, "float8e4m3fnuz": 8, "float8e5m2": 8, "float8e5m2fnuz": 8, "uint4": 4, "int4": 4,
    "float4e2m1": 4, "float8e8m0": 8, "uint2": 2, "int2": 2, "float6e2m3": 6, "float6e3m2": 6,
}
# fmt: on
ELEMENT_TYPES = {number: ElementType(number, name, bits) for number, (name, bits) in enumerate(_BITS.items(), start=1)}
FLOAT32, INT64, STRING, BOOL = (ELEMENT_TYPES[number] for number in (1, 7, 8, 9))


def element_type(number: int, where: str) -> ElementType:
    """Return the element type with this number in ONNX.

    Args:
        number: a `TensorProto.DataType`.
        where: the value of this type, for the error message.

    Raises:
        GraphError: the number is unknown.
    """
    if number not in ELEMENT_TYPES:
        raise GraphError(
            f"{where} has the unknown element type {number}",
            hint=f"known types are 1 to {max(ELEMENT_TYPES)} (TensorProto.DataType); the file is damaged or too new",
        )
    return ELEMENT_TYPES[number]
