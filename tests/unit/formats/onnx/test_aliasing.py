"""Views and in-place ops, by profile."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from remat_cli.core.schedule import Inplace, input_order, with_frees
from remat_cli.core.simulate import simulate
from remat_cli.formats.reader import Aliasing
from tests.unit.formats.onnx.models import Model, float_input, integers, node, op, scalar, tensor, value, weight

TORCH, ORT, NONE = Aliasing.TORCH, Aliasing.ORT_CPU, Aliasing.NONE
STORED = [
    integers("flat", -1),
    integers("axis", 0),
    integers("sizes", 4, 1, 6),
    integers("start", 0),
    integers("end", 2),
    integers("back", -1),
    integers("forth", 1),
    scalar("index", 1),
    integers("indices", 1, 2),
    weight("other", 1),
]
# What is a view of x, shape [4, 1, 6], under which profile.
VIEWS = [
    (node("Identity", ["x"], ["v"]), {TORCH, ORT}),
    (node("Reshape", ["x", "flat"], ["v"]), {TORCH, ORT}),
    (node("Flatten", ["x"], ["v"]), {TORCH, ORT}),
    (node("Squeeze", ["x"], ["v"]), {TORCH, ORT}),
    (node("Unsqueeze", ["x", "axis"], ["v"]), {TORCH, ORT}),
    (node("Cast", ["x"], ["v"], to=TensorProto.FLOAT), {TORCH}),
    (node("CastLike", ["x", "other"], ["v"]), {TORCH}),
    (node("Cast", ["x"], ["v"], to=TensorProto.FLOAT16), set()),
    (node("Transpose", ["x"], ["v"]), {TORCH}),
    (node("Expand", ["x", "sizes"], ["v"]), {TORCH}),
    (node("Split", ["x"], ["v"], num_outputs=1), {TORCH}),
    (node("Slice", ["x", "start", "end"], ["v"]), {TORCH}),
    (node("Slice", ["x", "start", "end", "axis", "forth"], ["v"]), {TORCH}),
    (node("Slice", ["x", "end", "start", "axis", "back"], ["v"]), set()),
    (node("Slice", ["x", "start", "end", "axis", "step"], ["v"]), set()),
    (node("Gather", ["x", "index"], ["v"]), {TORCH}),
    (node("Gather", ["x", "indices"], ["v"]), set()),
    (node("Gather", ["x", "pick"], ["v"]), set()),
    (node("Dropout", ["x"], ["v"]), {TORCH}),
    (node("Concat", ["x"], ["v"], axis=0), set()),
    (node("Relu", ["x"], ["v"]), set()),
    (node("Identity", ["x"], ["v"], domain="com.acme"), set()),
]


def viewing(view: onnx.NodeProto) -> Model:
    """Return a model that makes v of h, which an op has made."""
    made = onnx.NodeProto()
    made.CopyFrom(view)
    made.input[0] = "h"
    return Model(
        [node("Neg", ["x"], ["h"]), made, node("Abs", ["v"], ["y"])],
        inputs=[
            float_input("x", 4, 1, 6),
            value("step", [1], TensorProto.INT64),
            value("pick", [], TensorProto.INT64),
        ],
        stored=STORED,
        declared=[value("v", [4, 6])],
    )


def view_id(case: object) -> str:
    return "-".join([case.op_type, *case.input]) if isinstance(case, onnx.NodeProto) else ""


@pytest.mark.parametrize("profile", [TORCH, ORT, NONE])
@pytest.mark.parametrize(("view", "viewed_in"), VIEWS, ids=view_id)
def test_views_by_profile(tmp_path: Path, view: onnx.NodeProto, viewed_in: set[Aliasing], profile: Aliasing) -> None:
    given = {"v": (1, 1, 6)} if "step" in view.input else {}
    reading = viewing(view).read(tmp_path, aliasing=profile, value_shapes=given)
    expected = "h" if profile in viewed_in else None
    assert tensor(reading, "v").view_of == expected
    assert (tensor(reading, "v").bytes == 0) == (profile in viewed_in)


def test_operand_of_a_view_has_its_real_size(tmp_path: Path) -> None:
    reading = viewing(node("Expand", ["x", "sizes"], ["v"])).read(tmp_path, aliasing=TORCH)
    (expanded,) = (one for one in reading.operators["Expand_1"].outputs if one)
    assert (expanded.shape, expanded.bytes) == ((4, 1, 6), 96)


def test_all_outputs_of_split_are_views(tmp_path: Path) -> None:
    model = Model([node("Split", ["x"], ["a", "", "b"], axis=1, num_outputs=3), node("Add", ["a", "b"], ["y"])])
    reading = model.read(tmp_path, aliasing=TORCH)
    assert [tensor(reading, name).view_of for name in ("a", "b")] == ["x", "x"]


def test_views_of_views_point_to_the_storage_s_owner(tmp_path: Path) -> None:
    model = Model([node("Neg", ["x"], ["h"]), node("Flatten", ["h"], ["a"]), node("Transpose", ["a"], ["y"])])
    reading = model.read(tmp_path, aliasing=TORCH)
    assert tensor(reading, "y").view_of == "h"
    assert set(reading.graph.outputs) == {"y", "h"}


def test_view_of_a_graph_input(tmp_path: Path) -> None:
    reading = Model([node("Transpose", ["x"], ["y"])]).read(tmp_path, aliasing=TORCH)
    assert tensor(reading, "y").view_of == "x"


def test_view_of_a_weight_takes_no_memory_and_has_no_base(tmp_path: Path) -> None:
    model = Model(
        [node("Transpose", ["w"], ["t"]), node("Flatten", ["t"], ["f"]), node("MatMul", ["x", "f"], ["y"])],
        stored=[weight("w", 5, 3)],
    )
    reading = model.read(tmp_path, aliasing=TORCH)
    assert [tensor(reading, name).bytes for name in ("t", "f")] == [0, 0]
    assert [tensor(reading, name).view_of for name in ("t", "f")] == [None, None]
    assert reading.graph.resident_bytes == 60


def test_mask_of_an_inference_dropout_is_storage_of_its_own(tmp_path: Path) -> None:
    reading = Model([node("Dropout", ["x"], ["y", "mask"])]).read(tmp_path, aliasing=TORCH)
    assert tensor(reading, "y").view_of == "x"
    assert tensor(reading, "mask").bytes == 6


def convolution_then(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("result",)) -> Model:
    """Return a model that ends with Abs: onnxruntime gives what it hands out storage of its own."""
    last = node("Abs", [nodes[-1].output[0]], ["result"])
    return Model(
        [node("Conv", ["x", "w"], ["h"]), *nodes, last],
        inputs=[float_input("x", 1, 1, 4, 4)],
        outputs=outputs,
        stored=[weight("w", 1, 1, 1, 1), integers("flat", -1)],
    )


IN_PLACE = ["Relu", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "Sigmoid", "HardSigmoid", "Tanh", "Clip"]
IN_PLACE += ["Softplus", "Softsign", "Shrink", "Softmax", "LogSoftmax", "Trilu"]
NOT_IN_PLACE = ["Neg", "Sqrt", "Exp", "Log", "Erf", "Floor"]


@pytest.mark.parametrize("type_", IN_PLACE)
def test_ops_that_onnxruntime_runs_in_place(tmp_path: Path, type_: str) -> None:
    model = convolution_then(node(type_, ["h"], ["y"]))
    assert op(model.read(tmp_path, aliasing=ORT), type_).inplace == "h"
    assert op(model.read(tmp_path, aliasing=TORCH), type_).inplace is None
    assert op(model.read(tmp_path, aliasing=NONE), type_).inplace is None


@pytest.mark.parametrize("type_", NOT_IN_PLACE)
def test_ops_that_onnxruntime_does_not_run_in_place(tmp_path: Path, type_: str) -> None:
    assert op(convolution_then(node(type_, ["h"], ["y"])).read(tmp_path, aliasing=ORT), type_).inplace is None


def test_a_cast_to_the_same_type_is_in_place_in_onnxruntime(tmp_path: Path) -> None:
    model = convolution_then(node("Cast", ["h"], ["y"], to=TensorProto.FLOAT))
    assert op(model.read(tmp_path, aliasing=ORT), "Cast").inplace == "h"
    other = convolution_then(node("Cast", ["h"], ["y"], to=TensorProto.INT32))
    assert op(other.read(tmp_path, aliasing=ORT), "Cast").inplace is None


def test_the_addend_of_a_fused_convolution_is_overwritten(tmp_path: Path) -> None:
    fused = node("FusedConv", ["x", "w", "", "h"], ["y"], domain="com.microsoft", activation="Relu")
    model = convolution_then(fused)
    model.other_opsets = {"com.microsoft": 1}
    assert op(model.read(tmp_path, aliasing=ORT), "com.microsoft.FusedConv").inplace == "h"


@pytest.mark.parametrize("type_", ["Relu", "Reshape"])
def test_onnxruntime_gives_an_output_of_the_graph_storage_of_its_own(tmp_path: Path, type_: str) -> None:
    inputs = ["h", "flat"] if type_ == "Reshape" else ["h"]
    reading = convolution_then(node(type_, inputs, ["y"]), outputs=("y", "result")).read(tmp_path, aliasing=ORT)
    assert op(reading, type_).inplace is None
    assert tensor(reading, "y").view_of is None
    assert tensor(reading, "y").bytes == 64
    assert "h" not in reading.graph.outputs


def test_graph_input_is_not_overwritten(tmp_path: Path) -> None:
    model = Model([node("Relu", ["x"], ["r"]), node("Abs", ["r"], ["y"])])
    assert op(model.read(tmp_path, aliasing=ORT), "Relu").inplace is None


def test_weight_is_not_overwritten(tmp_path: Path) -> None:
    model = Model([node("Relu", ["w"], ["r"]), node("Add", ["x", "r"], ["y"])], stored=[weight("w", 3)])
    assert op(model.read(tmp_path, aliasing=ORT), "Relu").inplace is None


def test_storage_of_another_size_is_not_taken_over(tmp_path: Path) -> None:
    model = Model(
        [node("Frobnicate", ["x"], ["h"], domain="com.acme"), node("Relu", ["h"], ["r"]), node("Abs", ["r"], ["y"])],
        other_opsets={"com.acme": 1},
    )
    assert op(model.read(tmp_path, aliasing=ORT), "Relu").inplace == "h"
    assert op(model.read(tmp_path, aliasing=ORT, value_shapes={"r": (7,)}), "Relu").inplace is None


def test_view_is_overwritten_in_its_base(tmp_path: Path) -> None:
    model = convolution_then(node("Reshape", ["h", "flat"], ["v"]), node("Sigmoid", ["v"], ["y"]))
    reading = model.read(tmp_path, aliasing=ORT)
    assert op(reading, "Sigmoid").inplace == "h"
    graph = reading.graph
    schedule = with_frees(graph, input_order(graph))
    assert Inplace("Sigmoid_2") in schedule.steps
    # The convolution's result, which the sigmoid overwrites through its view, and the absolute values.
    assert simulate(graph, schedule).peak_bytes - graph.fixed_bytes == 128
