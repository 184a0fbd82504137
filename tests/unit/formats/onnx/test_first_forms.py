"""Ops as ONNX's first operator sets wrote them are sized as those of today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from remat_cli.errors import GraphError
from tests.unit.formats.onnx.models import Model, float_input, node

X = (1, 2, 3, 4)
CASES = (
    (1, "Reshape", {"shape": [0, 6, -1]}, (1, 6, 4)),
    (4, "Reshape", {"shape": [24]}, (24,)),
    (5, "Cast", {"to": "FLOAT16"}, X),
    (1, "Pad", {"paddings": [0, 0, 1, 1, 0, 0, 1, 1]}, (1, 2, 5, 6)),
    (1, "Upsample", {"height_scale": 2.0, "width_scale": 3.0}, (1, 2, 6, 12)),
    (7, "Upsample", {"scales": [1.0, 1.0, 2.0, 2.0]}, (1, 2, 6, 8)),
)


def model(opset: int, op: str, attributes: dict[str, Any], **more: Any) -> Model:
    written = node(op, ["x"], ["y"], name="op", **attributes)
    return Model([written], inputs=[float_input("x", *X)], opset=opset, ir_version=3, **more)


@pytest.mark.parametrize(("opset", "op", "attributes", "shape"), CASES)
def test_its_result_has_its_shape(
    opset: int, op: str, attributes: dict[str, Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    reading = model(opset, op, attributes).read(tmp_path, mode="inference")
    assert reading.graph.tensors["y"].shape == shape
    assert reading.graph.tensors["y"].bytes in (0, int(np.prod(shape)) * (2 if op == "Cast" else 4))  # 0 of a view
    assert not reading.estimated


@pytest.mark.parametrize(("axis", "shape"), [({}, (1, 4, 3, 4)), ({"axis": 3}, (1, 2, 3, 8))])
def test_concat_joined_channels_where_it_named_no_axis(
    axis: dict[str, Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    written = node("Concat", ["x", "x"], ["y"], **axis)
    reading = Model([written], inputs=[float_input("x", *X)], opset=3, ir_version=3).read(tmp_path, mode="inference")
    assert reading.graph.tensors["y"].shape == shape


def test_tile_repeated_along_one_axis(tmp_path: Path) -> None:
    stored = [numpy_helper.from_array(np.array(number, np.float32), name) for name, number in (("n", 3), ("axis", 2))]
    inputs = [float_input("x", *X), *(helper.make_tensor_value_info(one.name, 1, []) for one in stored)]
    tile = Model([node("Tile", ["x", "n", "axis"], ["y"])], inputs=inputs, stored=stored, opset=1, ir_version=3)
    assert tile.read(tmp_path, mode="inference").graph.tensors["y"].shape == (1, 2, 9, 4)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="Reshape"):
        model(1, "Reshape", {"shape": [7]}).read(tmp_path, mode="inference")
