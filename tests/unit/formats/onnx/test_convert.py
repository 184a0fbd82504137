"""The graph, its operators and its weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Kind
from remat_cli.core.operators import Operand, Role
from remat_cli.errors import GraphError
from remat_cli.prepare import prepare
from tests.unit.formats.onnx.models import Model, elsewhere, float_input, integers, node, tensor, value, weight


def test_graph_is_a_forward_graph_without_times(tmp_path: Path) -> None:
    graph = Model([node("Relu", ["x"], ["y"])]).read(tmp_path).graph
    assert (graph.kind, graph.time_unit, graph.name, graph.total_time) == (Kind.FORWARD, "flop", "model", 0)
    assert graph.ops[0].saves is None
    assert graph.outputs == ("y",)


def test_weights_are_resident_once_and_no_inputs_of_ops(tmp_path: Path) -> None:
    model = Model([node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "w"], ["y"])], stored=[weight("w", 3, 3)])
    reading = model.read(tmp_path)
    assert reading.graph.resident_bytes == 36
    assert [one.inputs for one in reading.graph.ops] == [("x",), ("h",)]
    assert reading.parameters == (Operand("w", Role.PARAMETER, (3, 3), "float32", 36),)


def test_unread_weights_are_resident_and_not_trained(tmp_path: Path) -> None:
    reading = Model([node("Relu", ["x"], ["y"])], stored=[weight("w", 3, 3)]).read(tmp_path)
    assert reading.graph.resident_bytes == 36
    assert reading.parameters == ()


def test_sparse_weight_counts_as_the_dense_one_that_runtimes_make_of_it(tmp_path: Path) -> None:
    model = Model([node("Add", ["x", "s"], ["y"])]).proto()
    values = helper.make_tensor("s", TensorProto.FLOAT, [2], [1.0, 2.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [2], [0, 4])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))

    class Given(Model):
        def proto(self) -> onnx.ModelProto:
            return model

    reading = Given([]).read(tmp_path)
    assert reading.graph.resident_bytes == 2 * 3 * 4
    assert tensor(reading, "y").shape == (2, 3)
    assert reading.parameters[0].shape == (2, 3)


def test_folded_values_are_resident_where_an_op_reads_them(tmp_path: Path) -> None:
    model = Model(
        [node("Shape", ["x"], ["s"]), node("Add", ["s", "s"], ["t"]), node("Tile", ["x", "s"], ["y"])],
        inputs=[float_input("x", 2, 3)],
    )
    # s is read by Tile; t by nobody.
    assert model.read(tmp_path).graph.resident_bytes == 16


def test_unread_graph_inputs_are_tensors(tmp_path: Path) -> None:
    model = Model([node("Relu", ["x"], ["y"])], inputs=[float_input("x", 2), float_input("unused", 5)])
    assert model.read(tmp_path).graph.inputs == ("x", "unused")


def test_graph_output_that_is_a_graph_input(tmp_path: Path) -> None:
    reading = Model([node("Relu", ["x"], ["y"])], outputs=["x", "y"]).read(tmp_path)
    assert reading.graph.outputs == ("x", "y")


def test_graph_output_that_is_a_weight_is_in_memory_anyway(tmp_path: Path) -> None:
    reading = Model([node("Relu", ["x"], ["y"])], outputs=["w", "y"], stored=[weight("w", 9)]).read(tmp_path)
    assert reading.graph.outputs == ("y",)
    assert reading.graph.resident_bytes == 36


def test_output_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    assert Model([node("Relu", ["x"], ["y"])], outputs=["y", "y"]).read(tmp_path).graph.outputs == ("y",)


def test_input_that_is_read_twice_by_one_op(tmp_path: Path) -> None:
    reading = Model([node("Add", ["x", "x"], ["y"])]).read(tmp_path)
    assert reading.graph.ops[0].inputs == ("x",)
    assert [one.name for one in reading.operators["Add_0"].inputs if one] == ["x", "x"]


def test_model_that_only_computes_constants(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="no ops"):
        Model([node("Shape", ["x"], ["y"])]).read(tmp_path)


@pytest.mark.parametrize(
    ("stored", "role"),
    [
        (weight("v", 3), Role.PARAMETER),
        (elsewhere("v", [3], "absent.bin"), Role.PARAMETER),
        (numpy_helper.from_array(np.ones(3, dtype=np.float16), "v"), Role.PARAMETER),
        (numpy_helper.from_array(np.ones((), dtype=np.float32), "v"), Role.CONSTANT),
        (numpy_helper.from_array(np.ones(1, dtype=np.float32), "v"), Role.CONSTANT),
        (integers("v", 1, 2, 3), Role.CONSTANT),
    ],
    ids=["weight", "elsewhere", "half", "scalar", "single", "integers"],
)
def test_roles_of_stored_values(tmp_path: Path, stored: onnx.TensorProto, role: Role) -> None:
    model = Model([node("Mul", ["x", "v"], ["y"])], inputs=[value("x", [2, 3], stored.data_type)], stored=[stored])
    operand = model.read(tmp_path).operators["Mul_0"].inputs[1]
    assert operand is not None
    assert operand.role is role


def test_running_statistics_and_scales_are_no_parameters(tmp_path: Path) -> None:
    model = Model(
        [
            node("BatchNormalization", ["x", "gamma", "beta", "mean", "variance"], ["h"]),
            node("Resize", ["h", "", "scales"], ["y"]),
        ],
        inputs=[float_input("x", 1, 4, 5, 5)],
        stored=[
            *(weight(name, 4) for name in ("gamma", "beta", "mean", "variance")),
            numpy_helper.from_array(np.array([1, 1, 2, 2], dtype=np.float32), "scales"),
        ],
    )
    reading = model.read(tmp_path)
    assert [one.name for one in reading.parameters] == ["gamma", "beta"]
    assert tensor(reading, "y").shape == (1, 4, 10, 10)


def test_weight_that_only_a_body_reads_is_a_parameter(tmp_path: Path) -> None:
    branch = helper.make_graph([node("Add", ["x", "w"], ["b"])], "branch", [], [value("b")])
    model = Model(
        [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)],
        inputs=[float_input("x", 3), value("c", [], TensorProto.BOOL)],
        stored=[weight("w", 3)],
    )
    assert [one.name for one in model.read(tmp_path).parameters] == ["w"]


def test_operator_has_positions_attributes_and_opset(tmp_path: Path) -> None:
    model = Model(
        [node("Conv", ["x", "w", ""], ["y"], name="c", strides=[2, 2], group=1, auto_pad="VALID")],
        inputs=[float_input("x", 1, 3, 8, 8)],
        stored=[weight("w", 4, 3, 2, 2)],
        opset=20,
    )
    operator = model.read(tmp_path).operators["c"]
    assert operator.type == "Conv"
    assert operator.opset == 20
    assert operator.attributes == {"strides": (2, 2), "group": 1, "auto_pad": "VALID"}
    assert operator.inputs == (
        Operand("x", Role.ACTIVATION, (1, 3, 8, 8), "float32", 768),
        Operand("w", Role.PARAMETER, (4, 3, 2, 2), "float32", 192),
        None,
    )
    assert operator.outputs == (Operand("y", Role.ACTIVATION, (1, 4, 4, 4), "float32", 256),)


def test_attributes_of_all_plain_kinds_are_carried_and_others_left_out(tmp_path: Path) -> None:
    custom = node(
        "Custom",
        ["x"],
        ["y"],
        domain="com.acme",
        integer=1,
        number=0.5,
        text="abc",
        integers=[1, 2],
        numbers=[0.5, 1.5],
        texts=["a", "b"],
        tensor=weight("t", 2),
    )
    operator = Model([custom], other_opsets={"com.acme": 3}).read(tmp_path).operators["Custom_0"]
    assert operator.type == "com.acme.Custom"
    assert operator.opset == 3
    assert operator.attributes == {
        "integer": 1,
        "number": 0.5,
        "text": "abc",
        "integers": (1, 2),
        "numbers": (0.5, 1.5),
        "texts": ("a", "b"),
    }


class TestWeightsThatAreConstantNodes:
    """Paddle's exporter writes each weight as a Constant node."""

    @staticmethod
    def constant(name: str, *dims: int, dtype: type = np.float32) -> onnx.NodeProto:
        return node("Constant", [], [name], value=numpy_helper.from_array(np.ones(dims, dtype=dtype)))

    def model(self) -> Model:
        kernels = [
            self.constant("w", 4, 3, 1, 1),
            self.constant("b", 4),
            self.constant("half", 1),
            self.constant("s", 9),
        ]
        steps = [
            node("Conv", ["x", "w", "b"], ["h"]),
            node("Mul", ["h", "half"], ["m"]),
            node("Mul", ["m", "s"], ["y"]),
        ]
        return Model([*kernels, *steps], inputs=[float_input("x", 1, 3, 9, 9)])

    def test_they_are_trained(self, tmp_path: Path) -> None:
        reading = self.model().read(tmp_path)
        assert [(one.name, one.bytes) for one in reading.parameters] == [("w", 48), ("b", 16)]
        assert "2 weights are Constant nodes in the file, 64 B: they count as trained" in reading.training_notes
        prepared = prepare(self.model().save(tmp_path), GraphOptions(mode="training", optimizer="sgd"))
        assert prepared.parameter_bytes == 64
        assert prepared.graph.resident_bytes == 64 + 64 + 4 + 36

    def test_where_they_multiply_in_a_body(self, tmp_path: Path) -> None:
        inner = [self.constant("w", 3, 3), node("MatMul", ["x", "w"], ["b"])]
        branch = helper.make_graph(inner, "branch", [], [value("b")])
        other = helper.make_graph([node("Relu", ["x"], ["r"])], "other", [], [value("r")])
        chosen = node("If", ["c"], ["y"], then_branch=branch, else_branch=other)
        model = Model([chosen], inputs=[float_input("x", 3, 3), value("c", [], TensorProto.BOOL)])
        assert [one.name for one in model.read(tmp_path).parameters] == ["w"]

    def test_whole_numbers_and_stored_weights_need_no_note(self, tmp_path: Path) -> None:
        steps = [self.constant("i", 3, 3, dtype=np.int64), node("MatMul", ["x", "i"], ["h"])]
        model = Model(
            [*steps, node("Cast", ["h"], ["f"], to=TensorProto.FLOAT), node("MatMul", ["f", "w"], ["y"])],
            inputs=[value("x", [3, 3], TensorProto.INT64)],
            stored=[weight("w", 3, 3)],
        )
        reading = model.read(tmp_path)
        assert [one.name for one in reading.parameters] == ["w"]
        assert not [note for note in reading.training_notes if "Constant" in note]
