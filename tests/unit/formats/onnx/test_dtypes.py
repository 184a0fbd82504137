"""Sizes of element types: packed, whatever numpy stores them in."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto

from remat_cli.errors import GraphError
from remat_cli.formats.onnx.dtypes import element_type
from tests.unit.formats.onnx.models import Model, node, tensor, value


@pytest.mark.parametrize(
    ("element", "elements", "expected_bytes"),
    [
        (TensorProto.FLOAT, 5, 20),
        (TensorProto.DOUBLE, 5, 40),
        (TensorProto.FLOAT16, 5, 10),
        (TensorProto.BFLOAT16, 5, 10),
        (TensorProto.INT64, 5, 40),
        (TensorProto.BOOL, 5, 5),
        (TensorProto.FLOAT8E4M3FN, 5, 5),
        (TensorProto.INT4, 5, 3),
        (TensorProto.UINT4, 4, 2),
        (TensorProto.FLOAT4E2M1, 5, 3),
        (TensorProto.COMPLEX64, 5, 40),
        (TensorProto.COMPLEX128, 5, 80),
    ],
)
def test_bytes_are_the_bits_rounded_up(tmp_path: Path, element: int, elements: int, expected_bytes: int) -> None:
    model = Model([node("Identity", ["x"], ["y"])], inputs=[value("x", [elements], element)], opset=23)
    assert tensor(model.read(tmp_path), "x").bytes == expected_bytes


def test_two_bit_and_six_bit_types_are_known_to_any_onnx() -> None:
    assert [element_type(number, "x").bits for number in (25, 26, 27, 28)] == [2, 2, 6, 6]


def test_unknown_element_type_of_an_input_is_named(tmp_path: Path) -> None:
    model = Model([node("Relu", ["x"], ["y"])], inputs=[value("x", [2], 999)])
    with pytest.raises(GraphError, match="input 'x' has the unknown element type 999"):
        model.read(tmp_path)


def test_unknown_element_type_of_an_initializer_is_named(tmp_path: Path) -> None:
    strange = TensorProto(name="w", data_type=999, dims=[3])
    model = Model([node("Add", ["x", "w"], ["y"])], stored=[strange])
    with pytest.raises(GraphError, match="'w' has the unknown element type 999"):
        model.read(tmp_path)
