"""Values that are given to inputs: shapes and branches follow from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from remat_cli.errors import UsageError
from tests.unit.formats.onnx.models import Model, float_input, node, op, tensor, value

X = float_input("x", 2, 3)


def reshaped() -> Model:
    """Return a model that reshapes x to what input s says."""
    return Model([node("Reshape", ["x", "s"], ["y"])], inputs=[X, value("s", ["rank"], TensorProto.INT64)])


def filled() -> Model:
    """Return a model whose result has as many elements as input n says."""
    return Model([node("Range", ["zero", "n", "one"], ["y"])], inputs=[value(n, []) for n in ("zero", "n", "one")])


def test_a_shape_follows_from_a_value(tmp_path: Path) -> None:
    reading = reshaped().read(tmp_path, values={"s": [3, 1, 2]})
    assert tensor(reading, "y").shape == (3, 1, 2)
    assert tensor(reading, "s").shape == (3,)
    assert op(reading, "Reshape").inputs == ("x", "s")


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64, np.uint8])
def test_a_value_from_a_file(tmp_path: Path, dtype: Any) -> None:
    np.save(tmp_path / "s.npy", np.array([6], dtype=dtype))
    assert tensor(reshaped().read(tmp_path, values={"s": str(tmp_path / "s.npy")}), "y").shape == (6,)


def test_an_array_from_python(tmp_path: Path) -> None:
    assert tensor(reshaped().read(tmp_path, values={"s": np.array([6, 1])}), "y").shape == (6, 1)


def test_one_number_stands_in_all_elements(tmp_path: Path) -> None:
    assert tensor(filled().read(tmp_path, values={"zero": 0, "n": 7, "one": 1}), "y").shape == (7,)
    same = Model([node("Expand", ["x", "s"], ["y"])], inputs=[float_input("x"), value("s", [2], TensorProto.INT64)])
    assert tensor(same.read(tmp_path, values={"s": 5}), "y").shape == (5, 5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"S": 1}, "a value is given for 'S', and the model has no such input"),
        ({"s": [2.5, 1]}, "the value of input 's' does not fit its type, int64"),
        ({"s": [2**70]}, "the value of input 's' is no array of numbers"),
        ({"s": [[1], [2, 3]]}, "the value of input 's' is no array of numbers"),
        ({"s": [[1, 6]]}, "input 's' has 1 dimensions"),
        ({"s": ["a"]}, "the value of input 's' is no array of numbers"),
        ({"s": "a"}, "'a', is neither a number nor a .npy file"),
        ({"s": {"a": 1}}, "the value of input 's' is no array of numbers"),
        ({"s": None}, "the value of input 's' is no array of numbers"),
        ({"x": np.zeros((2, 4))}, "axis 1 of input 'x' is fixed to 3"),
        ({"s": np.ones(5000)}, "has 5,000 elements: shapes depend on at most 4,096"),
    ],
)
def test_values_that_do_not_fit(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        reshaped().read(tmp_path, values=values)
    assert message in caught.value.message


@pytest.mark.parametrize("content", [b"hello", b"\x93NUMPY", b"\x93NUMPY\x01\x00v\x00{'descr': '<i8'", b"PK\x03\x04"])
def test_files_that_hold_no_array(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.npy").write_bytes(content)
    with pytest.raises(UsageError, match=r"s\.npy"):
        reshaped().read(tmp_path, values={"s": str(tmp_path / "s.npy")})


def test_an_array_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.array([Path()], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match="no array that numpy saved"):
        reshaped().read(tmp_path, values={"s": str(tmp_path / "s.npy")})
