"""What is not counted as scratch memory. (What is counted is held against onnxruntime in tests/unit/runtime.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.formats.onnx.einsum_memory import einsum_elements
from remat_cli.formats.reader import Aliasing, Workspace
from tests.unit.formats.onnx.models import Model, float_input, node, op, weight


def transposed_convolution(opset: int = 21) -> Model:
    return Model(
        [node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])],
        inputs=[float_input("x", 1, 4, 8, 8)],
        stored=[weight("w", 4, 3, 2, 2)],
        opset=opset,
    )


def test_each_pixel_is_spread_before_it_is_summed(tmp_path: Path) -> None:
    reading = transposed_convolution().read(tmp_path, aliasing=Aliasing.ORT_CPU)
    assert op(reading, "ConvTranspose").workspace_bytes == 4 * (3 * 2 * 2) * (8 * 8)


@pytest.mark.parametrize("aliasing", [None, *Aliasing])
@pytest.mark.parametrize("workspace", Workspace)
def test_workspace_is_asked_for_apart_from_aliasing(
    tmp_path: Path, aliasing: Aliasing | None, workspace: Workspace
) -> None:
    reading = transposed_convolution().read(tmp_path, mode="inference", aliasing=aliasing, workspace=workspace)
    assert (reading.graph.ops[0].workspace_bytes > 0) == (workspace is Workspace.ONNXRUNTIME)
    named = "onnxruntime's" if workspace is Workspace.ONNXRUNTIME else "none"
    assert f"workspace of kernels that is counted, as asked for: {named}" in reading.notes


@pytest.mark.parametrize("profile", [Aliasing.TORCH, Aliasing.NONE])
def test_of_other_runtimes_nothing_is_known(tmp_path: Path, profile: Aliasing) -> None:
    assert op(transposed_convolution().read(tmp_path, aliasing=profile), "ConvTranspose").workspace_bytes == 0


@pytest.mark.parametrize("dims", [(), (4,), (2, 3), (2, 3, 4), (2, 3, 4, 5, 6)])
@pytest.mark.parametrize(
    "type_",
    ["Attention", "Conv", "ConvTranspose", "DeformConv", "GridSample", "LRN", "LSTM", "Softmax", "Unique", "Where"],
)
def test_estimated_shapes_that_do_not_fit_are_no_fault(tmp_path: Path, type_: str, dims: tuple[int, ...]) -> None:
    operands = {"LRN": 1, "Softmax": 1, "Unique": 1, "GridSample": 2}.get(type_, 3)
    model = Model(
        [node("Frobnicate", ["x"], ["h"], domain="com.acme"), node(type_, ["h"] * operands, ["y"])],
        inputs=[float_input("x", *dims)],
        other_opsets={"com.acme": 1},
        opset=23,
    )
    reading = model.read(tmp_path, aliasing=Aliasing.ORT_CPU)
    assert reading.graph.ops[-1].workspace_bytes >= 0
    assert "Frobnicate_0" in reading.estimated


def test_an_op_of_another_domain_is_another_op(tmp_path: Path) -> None:
    model = Model([node("NonZero", ["x"], ["y"], domain="com.acme")], other_opsets={"com.acme": 1})
    assert model.read(tmp_path, aliasing=Aliasing.ORT_CPU).graph.ops[0].workspace_bytes == 0


@pytest.mark.parametrize("equation", ["...ij,jk->ik", "ii,ij->ij", "ij,jk->iz", "ijk,jk->i", "ij", "", "é,ij->i"])
def test_an_equation_of_another_form_is_no_fault(equation: str) -> None:
    with pytest.raises(ValueError, match=r"form|label|zip|argument"):
        einsum_elements(equation, [(2, 2), (2, 2)])
