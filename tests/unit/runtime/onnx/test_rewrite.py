"""The model that runs a schedule: names, order, views, constants, and what it keeps of the model as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from remat_cli.errors import GraphError
from remat_cli.runtime.onnx.apply import model_bytes
from tests.unit.formats.onnx.models import Model, body, elsewhere, float_input, integers, node, scalar, value, weight
from tests.unit.runtime.onnx.rewriting import assert_follows, planned, rewritten, rewritten_model, run


def wires(model: onnx.ModelProto) -> list[tuple[str, list[str], list[str]]]:
    """The nodes with what they read and make."""
    return [(one.name, list(one.input), list(one.output)) for one in model.graph.node]


CHAIN = Model(
    [
        node("Neg", ["x"], ["a"], "neg"),
        node("Exp", ["a"], ["b"], "exp"),
        node("Sin", ["b"], ["c"], "sin"),
        node("Add", ["c", "a"], ["y"], "add"),
    ]
)


def test_repeats_have_names_of_their_own_and_are_read_from_then_on(tmp_path: Path) -> None:
    result = rewritten_model(tmp_path, CHAIN, ["neg", "exp", "sin", "neg", "add"])
    assert wires(result.proto) == [
        ("neg", ["x"], ["a"]),
        ("exp", ["a"], ["b"]),
        ("sin", ["b"], ["c"]),
        ("neg__remat2", ["x"], ["a__remat2"]),
        ("add", ["c", "a__remat2"], ["y"]),
    ]
    assert result.positions == (0, 1, 2, 3, 4)
    assert_follows(result, CHAIN.proto(), tmp_path)


def test_every_further_repeat_is_numbered(tmp_path: Path) -> None:
    result = rewritten_model(tmp_path, CHAIN, ["neg", "exp", "neg", "exp", "sin", "neg", "add"])
    repeats = [name for name in result.order if name.startswith("neg")]
    assert repeats == ["neg", "neg__remat2", "neg__remat3"]
    assert wires(result.proto)[-1] == ("add", ["c", "a__remat3"], ["y"])


def test_an_output_of_the_graph_keeps_its_name_in_its_last_instance(tmp_path: Path) -> None:
    model = Model(CHAIN.nodes, outputs=["a", "y"])
    result = rewritten_model(tmp_path, model, ["neg", "exp", "neg", "sin", "add"])
    assert [made for _, _, (made,) in wires(result.proto)] == ["a__remat1", "b", "a", "c", "y"]
    assert [output.name for output in result.proto.graph.output] == ["a", "y"]
    assert_follows(result, model.proto(), tmp_path)


def test_names_that_the_model_has_already_are_not_taken(tmp_path: Path) -> None:
    model = Model([*CHAIN.nodes[:3], node("Add", ["c", "a"], ["a__remat2"], "neg__remat2")], outputs=["a__remat2"])
    result = rewritten_model(tmp_path, model, ["neg", "exp", "sin", "neg", "neg__remat2"])
    assert wires(result.proto)[-2:] == [
        ("neg__remat2_", ["x"], ["a__remat2_"]),
        ("neg__remat2", ["c", "a__remat2_"], ["a__remat2"]),
    ]
    assert_follows(result, model.proto(), tmp_path)


def test_another_order_than_the_file_s(tmp_path: Path) -> None:
    model = Model([node("Neg", ["x"], ["a"], "a"), node("Exp", ["x"], ["b"], "b"), node("Add", ["a", "b"], ["y"], "y")])
    result = rewritten_model(tmp_path, model, ["b", "a", "y"])
    assert result.order == ("b", "a", "y")
    assert_follows(result, model.proto(), tmp_path)


def test_nodes_without_a_name_get_one(tmp_path: Path) -> None:
    model = Model([node("Neg", ["x"], ["a"]), node("Exp", ["a"], ["y"])])
    assert rewritten_model(tmp_path, model, ["Neg_0", "Exp_1"]).order == ("Neg_0", "Exp_1")


def test_all_outputs_of_a_repeat_are_new(tmp_path: Path) -> None:
    model = Model(
        [
            node("Split", ["x"], ["a", "b"], "split", axis=1, split=None),
            node("Exp", ["a"], ["c"], "exp"),
            node("Concat", ["b", "c", "a"], ["y"], "join", axis=1),
        ],
        inputs=[float_input("x", 2, 4)],
    )
    model.nodes[0].attribute.extend([helper.make_attribute("num_outputs", 2)])
    result = rewritten_model(tmp_path, model, ["split", "exp", "split", "join"])
    assert ("split__remat2", ["x"], ["a__remat2", "b__remat2"]) in wires(result.proto)
    assert wires(result.proto)[-1] == ("join", ["b__remat2", "c", "a__remat2"], ["y"])
    assert_follows(result, model.proto(), tmp_path)


class TestUnread:
    """Values that nobody reads, which onnxruntime would keep to the end."""

    def model(self, opset: int) -> Model:
        split = node("Split", ["x"], ["a", "b"], "split", axis=1)
        if opset >= 18:
            split.attribute.append(helper.make_attribute("num_outputs", 2))
        return Model(
            [split, node("Exp", ["a"], ["c"], "exp"), node("Concat", ["b", "c"], ["y"], "join", axis=1)],
            inputs=[float_input("x", 2, 4)],
            opset=opset,
        )

    @pytest.mark.parametrize("opset", [13, 21])
    def test_their_life_is_ended_at_once(self, tmp_path: Path, opset: int) -> None:
        model = self.model(opset)
        result = rewritten_model(tmp_path, model, ["split", "exp", "split", "join"])
        # The first b is read by nobody, nor is the second a.
        assert result.order == ("split", "b__unread", "exp", "split__remat2", "a__remat2__unread", "join")
        assert result.positions == (0, None, 1, 2, None, 3)
        assert result.releases == 2
        ends = [one for one in result.proto.graph.node if one.op_type == "Shape"]
        assert [list(one.input) for one in ends] == [["b"], ["a__remat2"]]
        assert_follows(result, model.proto(), tmp_path)

    def test_outputs_of_the_graph_and_what_is_read_stay(self, tmp_path: Path) -> None:
        model = self.model(21)
        model.outputs = ["b", "y"]
        assert rewritten_model(tmp_path, model, ["split", "exp", "join"]).releases == 0

    def test_what_only_a_body_reads_is_read(self, tmp_path: Path) -> None:
        result = rewritten_model(tmp_path, CONDITIONAL, ["neg", "exp", "if"])
        assert result.releases == 0


class TestViews:
    """Reshapes and the like share a storage."""

    MODEL = Model(
        [
            node("Neg", ["x"], ["a"], "neg"),
            node("Reshape", ["a", "flat"], ["v"], "view"),
            node("Unsqueeze", ["v", "axis"], ["w"], "again"),
            node("Exp", ["a"], ["b"], "exp"),
            node("Reshape", ["b", "flat"], ["c"], "flat-b"),
            node("Add", ["c", "w"], ["y"], "add"),
        ],
        stored=[integers("flat", -1), integers("axis", 0)],
    )

    def test_a_view_is_made_again_with_what_it_is_a_view_of(self, tmp_path: Path) -> None:
        result = rewritten_model(tmp_path, self.MODEL, ["neg", "view", "again", "exp", "neg", "flat-b", "add"])
        assert wires(result.proto)[-4:] == [
            ("flat-b", ["b", "flat"], ["c"]),
            ("view__remat2", ["a__remat2", "flat"], ["v__remat2"]),
            ("again__remat2", ["v__remat2", "axis"], ["w__remat2"]),
            ("add", ["c", "w__remat2"], ["y"]),
        ]
        assert (result.views, result.releases) == (2, 0)
        assert result.positions == (0, 1, 2, 3, 4, 5, None, None, 6)
        assert_follows(result, self.MODEL.proto(), tmp_path)

    def test_a_view_that_the_schedule_makes_again_is_not_made_twice(self, tmp_path: Path) -> None:
        computes = ["neg", "view", "again", "exp", "neg", "view", "flat-b", "again", "add"]
        result = rewritten_model(tmp_path, self.MODEL, computes)
        assert result.views == 0
        assert len(result.order) == len(computes)
        assert_follows(result, self.MODEL.proto(), tmp_path)

    def test_views_of_inputs_and_weights_stay(self, tmp_path: Path) -> None:
        model = Model(
            [
                node("Reshape", ["x", "flat"], ["v"], "view"),
                node("Reshape", ["w", "flat"], ["u"], "weight"),
                node("Exp", ["v"], ["a"], "exp"),
                node("Add", ["a", "u"], ["b"], "add"),
                node("Add", ["b", "v"], ["y"], "last"),
            ],
            stored=[integers("flat", -1), weight("w", 6)],
        )
        result = rewritten_model(tmp_path, model, ["view", "weight", "exp", "add", "exp", "last"])
        assert result.views == 0
        assert_follows(result, model.proto(), tmp_path)

    def test_an_output_of_the_graph_is_a_copy_and_stays(self, tmp_path: Path) -> None:
        model = Model(self.MODEL.nodes, outputs=["v", "y"], stored=self.MODEL.stored)
        result = rewritten_model(tmp_path, model, ["neg", "view", "exp", "neg", "again", "flat-b", "add"])
        assert result.views == 0
        assert_follows(result, model.proto(), tmp_path)


class TestConstants:
    """Nodes that only make constants or shapes, and are no ops of the plan."""

    MODEL = Model(
        [
            node("Neg", ["x"], ["a"], "neg"),
            node("Shape", ["a"], ["s"], "shape"),
            node("Constant", [], ["two"], "two", value_ints=[2]),
            node("Concat", ["two", "s"], ["t"], "concat", axis=0),
            node("Expand", ["x", "t"], ["e"], "expand"),
            node("Add", ["e", "a"], ["y"], "add"),
        ],
        inputs=[float_input("x", "rows", 3)],
    )

    def test_sizes_are_constants_and_what_is_made_of_them_runs_before_it_is_needed(self, tmp_path: Path) -> None:
        result = rewritten_model(tmp_path, self.MODEL, ["neg", "expand", "add"], dims={"rows": 2})
        assert result.order == ("neg", "concat", "expand", "add")
        (sizes,) = (one for one in result.proto.graph.initializer if one.name == "s")
        assert list(onnx.numpy_helper.to_array(sizes)) == [2, 3]
        assert_follows(result, self.MODEL.proto(), tmp_path)

    def test_a_size_can_be_needed_before_the_value_is_made(self, tmp_path: Path) -> None:
        result = rewritten_model(tmp_path, self.MODEL, ["expand", "neg", "add"], dims={"rows": 2})
        assert result.order == ("concat", "expand", "neg", "add")
        assert_follows(result, self.MODEL.proto(), tmp_path)

    def test_they_run_once(self, tmp_path: Path) -> None:
        result = rewritten_model(tmp_path, self.MODEL, ["neg", "expand", "neg", "expand", "add"], dims={"rows": 2})
        assert result.order.count("concat") == 1
        assert_follows(result, self.MODEL.proto(), tmp_path)

    def test_what_nobody_needs_is_left_out_unless_it_is_an_output(self, tmp_path: Path) -> None:
        model = Model([*self.MODEL.nodes[:3], node("Exp", ["a"], ["y"], "exp")], inputs=self.MODEL.inputs)
        assert rewritten_model(tmp_path, model, ["neg", "exp"], dims={"rows": 2}).order == ("neg", "exp")
        model.outputs = ["y", "s", "two"]
        result = rewritten_model(tmp_path, model, ["neg", "exp"], dims={"rows": 2})
        assert [one.name for one in result.proto.graph.node] == ["neg", "exp", "two"]

    CUSTOM = Model(
        [
            node("Frobnicate", ["x"], ["a"], "custom", domain="com.acme"),
            node("Shape", ["a"], ["s"], "shape"),
            node("Expand", ["x", "s"], ["e"], "expand"),
            node("Exp", ["x"], ["b"], "exp"),
            node("Sum", ["e", "b", "a"], ["y"], "sum"),
        ],
        other_opsets={"com.acme": 1},
    )

    def test_a_size_that_is_an_estimate_is_read_right_behind_the_value(self, tmp_path: Path) -> None:
        path = self.CUSTOM.save(tmp_path)
        result = rewritten(path, ["custom", "exp", "expand", "custom", "sum"], passes=False)
        assert result.order == ("custom", "shape", "exp", "expand", "custom__remat2", "sum")

    def test_an_estimate_that_is_needed_before_the_value_is_made_is_refused(self, tmp_path: Path) -> None:
        path = self.CUSTOM.save(tmp_path)
        with pytest.raises(GraphError) as refused:
            rewritten(path, ["exp", "expand", "custom", "sum"])
        assert "the size of 'a' is an estimate" in refused.value.message
        assert "--value-shape a:" in refused.value.hint
        known = rewritten(path, ["exp", "expand", "custom", "sum"], value_shapes={"a": (2, 3)})
        assert known.order == ("exp", "expand", "custom", "sum")


CONDITIONAL = Model(
    [
        node("Neg", ["x"], ["a"], "neg"),
        node("Exp", ["a"], ["b"], "exp"),
        node(
            "If",
            ["condition"],
            ["y"],
            "if",
            then_branch=body([node("Add", ["a", "b"], ["z"], "inside")], outputs=["z"]),
            else_branch=body(
                [
                    node("Sin", ["b"], ["c"], "shadow"),
                    node(
                        "If",
                        ["condition"],
                        ["r"],
                        then_branch=body([node("Mul", ["c", "a"], ["p"])], outputs=["p"]),
                        else_branch=body([node("Identity", ["b"], ["q"])], outputs=["q"]),
                    ),
                ],
                outputs=["r"],
            ),
        ),
    ],
    inputs=[float_input("x", 2, 3)],
    stored=[scalar("condition", False)],
)


class TestBodies:
    """If, Loop and Scan read values from outside."""

    def test_what_a_body_reads_from_outside_is_the_latest_instance_at_any_depth(self, tmp_path: Path) -> None:
        result = rewritten_model(tmp_path, CONDITIONAL, ["neg", "exp", "neg", "exp", "if"])
        text = str(result.proto.graph.node[-1])
        assert '"a__remat2"' in text
        assert '"b__remat2"' in text
        assert '"a"' not in text
        assert '"c"' in text
        feeds = {"x": np.ones((2, 3), np.float32)}
        before, after = (run(model, feeds, tmp_path)[0] for model in (CONDITIONAL.proto(), result.proto))
        assert before["y"].tobytes() == after["y"].tobytes()

    def test_what_a_body_defines_itself_is_its_own(self, tmp_path: Path) -> None:
        loop = node(
            "Loop",
            ["trips", "", "x"],
            ["y"],
            "loop",
            body=body(
                [node("Add", ["state", "b"], ["next"]), node("Identity", ["go"], ["on"])],
                [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("state", [2, 3])],
                ["on", "next"],
            ),
        )
        loop.attribute[0].g.output[0].type.tensor_type.elem_type = TensorProto.BOOL
        nodes = [node("Neg", ["x"], ["b"], "neg"), node("Exp", ["b"], ["next_"], "exp"), loop]
        model = Model([*nodes, node("Add", ["y", "next_"], ["z"], "add")], outputs=["z"], stored=[scalar("trips", 2)])
        result = rewritten_model(tmp_path, model, ["neg", "exp", "neg", "loop", "add"])
        (inner, _) = result.proto.graph.node[3].attribute[0].g.node
        assert list(inner.input) == ["state", "b__remat2"]
        feeds = {"x": np.ones((2, 3), np.float32)}
        before, after = (run(model_, feeds, tmp_path)[0] for model_ in (model.proto(), result.proto))
        assert before["z"].tobytes() == after["z"].tobytes()


class TestDeclarations:
    """What the file says of types and sizes."""

    def test_every_value_has_its_sizes(self, tmp_path: Path) -> None:
        model = Model(CHAIN.nodes, inputs=[float_input("x", "rows", 3)], declared=[value("a", ["rows", 3])])
        result = rewritten_model(tmp_path, model, ["neg", "exp", "sin", "neg", "add"], dims={"rows": 5})
        graph = result.proto.graph
        assert [info.name for info in graph.value_info] == ["a", "b", "c", "a__remat2"]
        for info in (*graph.input, *graph.output, *graph.value_info):
            assert [dim.dim_value for dim in info.type.tensor_type.shape.dim] == [5, 3]
            assert info.type.tensor_type.elem_type == TensorProto.FLOAT

    def test_an_estimate_is_not_declared(self, tmp_path: Path) -> None:
        path = TestConstants.CUSTOM.save(tmp_path)
        result = rewritten(path, ["custom", "exp", "expand", "sum"], passes=False)
        assert "a" not in {info.name for info in result.proto.graph.value_info}

    def test_what_is_no_tensor_is_declared_as_it_was(self, tmp_path: Path) -> None:
        sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2, 3])
        model = Model(
            [
                node("Neg", ["x"], ["a"], "neg"),
                node("SequenceConstruct", ["x", "a"], ["s"], "sequence"),
                node("SequenceAt", ["s", "one"], ["y"], "at"),
            ],
            stored=[scalar("one", 1)],
            declared=[sequence],
        )
        result = rewritten_model(tmp_path, model, ["neg", "sequence", "at"])
        assert [info.name for info in result.proto.graph.value_info] == ["a", "s"]
        assert result.proto.graph.value_info[1].type == sequence.type
        assert_follows(result, model.proto(), tmp_path)


class TestKept:
    """What a rewritten model keeps of the model as it is."""

    def test_inputs_and_outputs_by_name_and_order(self, tmp_path: Path) -> None:
        model = Model(
            [node("Neg", ["x"], ["a"], "neg"), node("Add", ["a", "z"], ["b"], "add")],
            inputs=[float_input("z", 2, 3), float_input("unused", 7), float_input("x", 2, 3)],
            outputs=["b", "a", "x"],
        )
        result = rewritten_model(tmp_path, model, ["neg", "add", "neg"])
        assert [info.name for info in result.proto.graph.input] == ["z", "unused", "x"]
        assert [info.name for info in result.proto.graph.output] == ["b", "a", "x"]
        assert_follows(result, model.proto(), tmp_path)

    def test_weights_byte_by_byte_and_references_to_others(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        large = onnx.numpy_helper.from_array(rng.random((100, 100), dtype=np.float32), "large")
        outside = elsewhere("outside", [100, 100], "absent.bin")
        model = Model(
            [node("MatMul", ["x", "large"], ["a"], "one"), node("MatMul", ["a", "outside"], ["y"], "two")],
            inputs=[float_input("x", 2, 100)],
            stored=[large, outside],
        )
        result = rewritten_model(tmp_path, model, ["one", "one", "two"])
        kept = {one.name: one.SerializeToString() for one in result.proto.graph.initializer}
        assert kept == {one.name: one.SerializeToString() for one in (large, outside)}

    def test_metadata_but_that_of_an_earlier_plan(self, tmp_path: Path) -> None:
        path = CHAIN.save(tmp_path)
        proto = onnx.load(path)
        for key, text in (("author", "me"), ("remat.planner", "old"), ("remat.budget_bytes", "1")):
            proto.metadata_props.add(key=key, value=text)
        onnx.save(proto, path)
        found = {one.key: one.value for one in rewritten(path, ["neg", "exp", "sin", "add"]).proto.metadata_props}
        assert found["author"] == "me"
        assert found["remat.planner"] == "by hand"
        assert "remat.budget_bytes" not in found

    def test_a_file_whose_initializers_are_inputs_too(self, tmp_path: Path) -> None:
        model = Model(
            [node("Add", ["x", "w"], ["a"], "add"), node("Exp", ["a"], ["y"], "exp")],
            inputs=[float_input("x", 2, 3), float_input("w", 3)],
            stored=[weight("w", 3)],
            ir_version=3,
            opset=8,
        )
        result = rewritten_model(tmp_path, model, ["add", "exp", "add", "exp"])
        assert [info.name for info in result.proto.graph.input] == ["x", "w"]
        assert_follows(result, model.proto(), tmp_path)

    def test_nodes_that_are_out_of_order_are_put_in_order(self, tmp_path: Path) -> None:
        model = Model([CHAIN.nodes[i] for i in (2, 0, 3, 1)])
        result = rewritten_model(tmp_path, model, ["neg", "exp", "sin", "neg", "add"])
        assert_follows(result, CHAIN.proto(), tmp_path)


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    function = helper.make_function(
        "com.acme",
        "Twice",
        ["p"],
        ["r"],
        [node("Neg", ["p"], ["q"], "neg"), node("Exp", ["q"], ["r"], "exp")],
        [helper.make_opsetid("", 21)],
    )
    model = Model(
        [node("Twice", ["x"], ["a"], "call", domain="com.acme"), node("Sin", ["a"], ["y"], "sin")],
        functions=[function],
        other_opsets={"com.acme": 1},
    )
    path = model.save(tmp_path)
    names = [one.name for one in planned(path).ops]
    assert len(names) == 3
    result = rewritten(path, [names[0], names[1], names[0], names[1], names[2]])
    assert not result.proto.functions
    assert_follows(result, model.proto(), tmp_path)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    path = TestViews.MODEL.save(tmp_path)
    computes = ["neg", "view", "again", "exp", "neg", "flat-b", "add"]
    first, second = (model_bytes(rewritten(path, computes).proto) for _ in range(2))
    assert first == second


def tensor_type(*dims: int) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(TensorProto.FLOAT, dims)


def optional_branch(op_type: str, name: str) -> onnx.GraphProto:
    made = helper.make_value_info(name, helper.make_optional_type_proto(tensor_type(2, 3)))
    nodes = [node(op_type, ["a"], [f"{name}_plain"]), node("Optional", [f"{name}_plain"], [name])]
    return helper.make_graph(nodes, name, [], [made])


@pytest.mark.parametrize(
    "wrapping",
    [
        [node("Optional", ["a"], ["o"])],
        [node("Optional", ["a"], ["p"]), node("Identity", ["p"], ["o"])],
        [
            node(
                "If",
                ["go"],
                ["o"],
                then_branch=optional_branch("Exp", "then"),
                else_branch=optional_branch("Neg", "else"),
            )
        ],
    ],
    ids=["made", "handed on", "from a branch"],
)
def test_optional_values_are_not_declared_as_what_they_hold(tmp_path: Path, wrapping: list[onnx.NodeProto]) -> None:
    nodes = [node("Exp", ["x"], ["a"], "first"), *wrapping, node("OptionalGetElement", ["o"], ["b"], "get")]
    model = Model([*nodes, node("Neg", ["b"], ["y"], "last")], opset=18)
    if wrapping[0].op_type == "If":
        model.stored = [scalar("go", True)]
    proto = model.proto()
    proto.graph.output[0].type.CopyFrom(tensor_type(2, 3))
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    order = [op.name for op in planned(path).ops]
    result = rewritten(path, order)
    onnx.checker.check_model(result.proto, full_check=True)
    x = np.ones((2, 3), np.float32)
    assert run(result.proto, {"x": x}, tmp_path)[0]["y"] == pytest.approx(run(proto, {"x": x}, tmp_path)[0]["y"])
