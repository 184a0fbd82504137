"""Values that users give to graph inputs, as arrays of their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper

from remat_cli.errors import UsageError
from remat_cli.formats.input_values import as_array
from remat_cli.formats.onnx.values import TensorType, ValueType, shape_text

if TYPE_CHECKING:
    from remat_cli.formats.onnx.values import Array


def fitted(name: str, value: Any, kind: ValueType | None, *, may_be_text: bool = False) -> Array:
    """Convert a value to an input's type and shape.

    A single number or text fills all elements.

    Args:
        name: name of the input.
        value: a number, nested lists of numbers, an array, or the name of a file.
        kind: type of the input; None if the model has no such input.
        may_be_text: whether inputs of text take values.

    Raises:
        UsageError: the value is no array of numbers, or does not match the input's type or shape.
    """
    if kind is None:
        raise UsageError(f"a value is given for {name!r}, and the model has no such input", hint="check its name")
    if not isinstance(kind, TensorType) or kind.shape is None or (kind.element.is_string and not may_be_text):
        raise UsageError(f"input {name!r} is no tensor of numbers, and takes no value", hint="leave it out")
    array = as_array(name, value, of_text=kind.element.is_string)
    if array.shape not in (kind.shape, ()):
        raise UsageError(
            f"the value of input {name!r} has shape {shape_text(array.shape)}, but the input has "
            f"{shape_text(kind.shape)}",
            hint="give an array of that shape, or one number for all of it",
        )
    if kind.element.is_string:
        return np.broadcast_to(array, kind.shape).astype(str)
    dtype = helper.tensor_dtype_to_np_dtype(kind.element.id)
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    is_float = array.dtype.kind == "f" and np.issubdtype(dtype, np.floating)
    if not is_float and not np.array_equal(cast.astype(array.dtype), array):
        raise UsageError(
            f"the value of input {name!r} does not fit its type, {kind.element.name}", hint="correct the value"
        )
    return np.full(kind.shape, cast) if array.shape != kind.shape else cast


def shapes_of(values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of given arrays; a single number suits any shape."""
    arrays = {name: as_array(name, value) for name, value in values.items()}
    return {name: tuple(array.shape) for name, array in arrays.items() if array.ndim}
