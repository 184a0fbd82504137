"""If, Loop and Scan: opaque ops with captured names, sized from their bodies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.operators import Role
from remat_cli.errors import GraphError, UsageError
from remat_cli.formats.onnx.structure import captured_names
from tests.unit.formats.onnx.models import (
    Model,
    body,
    float_input,
    integers,
    node,
    op,
    op_types,
    scalar,
    tensor,
    value,
    weight,
)

X = float_input("x", 250)  # 1000 bytes
CONDITION = value("c", [], TensorProto.BOOL)
ONE_RELU = body([node("Relu", ["x"], ["r"])], outputs=["r"])
# Peak: three tensors at once, one of them the result.
THREE_AT_ONCE = body(
    [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Add", ["a", "b"], ["s"])], outputs=["s"]
)


def choose(then_branch: onnx.GraphProto, else_branch: onnx.GraphProto, condition: str = "c") -> onnx.NodeProto:
    return node("If", [condition], ["y"], name="choice", then_branch=then_branch, else_branch=else_branch)


def loop_body(
    *nodes: onnx.NodeProto, outputs: tuple[str, ...], state: onnx.ValueInfoProto | None = None
) -> onnx.GraphProto:
    """Return a body that keeps its condition and has one state, s."""
    inputs = [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), state or value("s")]
    return body([node("Identity", ["go"], ["on"]), *nodes], inputs, ["on", *outputs])


def test_if_reads_what_its_branches_capture(tmp_path: Path) -> None:
    then_branch = body([node("Add", ["h", "w"], ["t"])], outputs=["t"])
    model = Model(
        [node("Relu", ["x"], ["h"]), choose(then_branch, ONE_RELU)], inputs=[X, CONDITION], stored=[weight("w", 250)]
    )
    reading = model.read(tmp_path)
    assert set(op(reading, "If").inputs) == {"c", "h", "x"}
    captured = {one.name: one.role for one in reading.operators["choice"].inputs[1:] if one}
    assert captured == {"h": Role.ACTIVATION, "w": Role.PARAMETER, "x": Role.ACTIVATION}


def test_names_are_captured_through_nested_bodies_unless_defined_on_the_way() -> None:
    innermost = body([node("Add", ["outer", "middle"], ["i"])], outputs=["i"])
    inner = node("If", ["flag"], ["m"], then_branch=innermost, else_branch=innermost)
    branch = body([node("Relu", ["given"], ["middle"]), inner], outputs=["m"], stored=[weight("flag", 1)])
    assert set(captured_names(choose(branch, branch))) == {"given", "outer"}


def test_output_that_a_body_merely_passes_on_is_captured() -> None:
    assert captured_names(choose(body([], outputs=["x"]), ONE_RELU)) == ("x",)


def test_workspace_of_if_is_the_worse_branch_without_its_result(tmp_path: Path) -> None:
    reading = Model([choose(ONE_RELU, THREE_AT_ONCE)], inputs=[X, CONDITION]).read(tmp_path)
    assert tensor(reading, "y").bytes == 1000
    assert op(reading, "If").workspace_bytes == 2000


def test_branches_of_different_shape_give_the_larger(tmp_path: Path) -> None:
    double = body([node("Concat", ["x", "x"], ["d"], axis=0)], outputs=["d"])
    assert tensor(Model([choose(ONE_RELU, double)], inputs=[X, CONDITION]).read(tmp_path), "y").shape == (500,)


@pytest.mark.parametrize(("condition", "expected"), [(True, 250), (False, 500)])
def test_known_condition_chooses_the_branch(tmp_path: Path, condition: bool, expected: int) -> None:
    double = body([node("Concat", ["x", "x"], ["d"], axis=0)], outputs=["d"])
    model = Model([choose(ONE_RELU, double, "known")], inputs=[X], stored=[scalar("known", condition)])
    assert tensor(model.read(tmp_path), "y").shape == (expected,)


def test_control_flow_runs_once_and_is_an_estimate(tmp_path: Path) -> None:
    reading = Model([choose(ONE_RELU, ONE_RELU)], inputs=[X, CONDITION]).read(tmp_path)
    assert not op(reading, "If").recomputable
    assert reading.estimated == ("choice",)
    with pytest.raises(GraphError, match="'choice'"):
        Model([choose(ONE_RELU, ONE_RELU)], inputs=[X, CONDITION]).read(tmp_path, strict=True)


def test_initializers_of_bodies_are_resident_and_parameters(tmp_path: Path) -> None:
    scaled = body([node("Mul", ["x", "factor"], ["m"])], outputs=["m"], stored=[weight("factor", 250)])
    reading = Model([choose(scaled, ONE_RELU)], inputs=[X, CONDITION]).read(tmp_path)
    assert reading.graph.resident_bytes == 1000
    assert [one.name for one in reading.parameters] == ["factor"]


def test_constants_of_bodies_are_resident(tmp_path: Path) -> None:
    scaled = body([node("Constant", [], ["k"], value_float=2.0), node("Mul", ["x", "k"], ["m"])], outputs=["m"])
    assert Model([choose(scaled, ONE_RELU)], inputs=[X, CONDITION]).read(tmp_path).graph.resident_bytes == 4


def test_shapes_fold_inside_bodies(tmp_path: Path) -> None:
    flattened = body([node("Size", ["x"], ["n"]), node("Reshape", ["x", "n1"], ["f"])], outputs=["f"])
    flattened.node.insert(1, node("Unsqueeze", ["n", "zero"], ["n1"]))
    model = Model(
        [choose(flattened, ONE_RELU)], inputs=[float_input("x", 10, 25), CONDITION], stored=[integers("zero", 0)]
    )
    assert tensor(model.read(tmp_path), "y").bytes == 1000


def test_fault_in_a_body_is_named_with_its_path(tmp_path: Path) -> None:
    broken = body([node("MatMul", ["x", "w"], ["m"], name="inner")], outputs=["m"])
    model = Model([choose(broken, broken)], inputs=[X, CONDITION], stored=[weight("w", 3, 3)])
    with pytest.raises(GraphError, match="no branch of op 'choice' fits these sizes: then_branch: op 'choice/inner'"):
        model.read(tmp_path)


class TestBranchThatCannotRun:
    """x has 250 elements, and one branch multiplies it by a matrix of 3 rows: only the other one can run."""

    MISFIT = body(
        [node("Reshape", ["x", "shape"], ["n"], name="guess"), node("MatMul", ["n", "w"], ["m"], name="inner")],
        outputs=["m"],
        stored=[integers("shape", 1, 250), weight("w", 3, 3), weight("unread", 100)],
    )
    EQUAL = node("Equal", ["rate", "usual"], ["c"])

    def model(self) -> Model:
        return Model(
            [self.EQUAL, choose(THREE_AT_ONCE, self.MISFIT)],
            inputs=[X, value("rate", [], TensorProto.INT64)],
            stored=[scalar("usual", 16000)],
        )

    def test_it_is_left_out_with_a_note(self, tmp_path: Path) -> None:
        reading = self.model().read(tmp_path)
        (note,) = (note for note in reading.notes if "left out" in note)
        assert note.startswith(
            "the else_branch of op 'choice' cannot run at these sizes, and is left out: op 'choice/in"
        )
        assert note.endswith("; --value rate=N says which branch runs")
        assert op(reading, "If").workspace_bytes == 2000

    def test_what_it_stores_is_in_memory(self, tmp_path: Path) -> None:
        assert self.model().read(tmp_path).graph.resident_bytes == 8 + 16 + 36 + 400

    def test_nothing_in_it_is_an_estimate_or_asked_for(self, tmp_path: Path) -> None:
        """A value that depends on data comes before the op that does not fit."""
        misfit = body([node("NonZero", ["x"], ["z"]), *self.MISFIT.node], outputs=["m"], stored=self.MISFIT.initializer)
        model = self.model()
        model.nodes = [self.EQUAL, choose(THREE_AT_ONCE, misfit)]
        assert model.read(tmp_path).estimated == ("choice",)

    def test_a_given_value_says_which_one_runs(self, tmp_path: Path) -> None:
        reading = self.model().read(tmp_path, values={"rate": 16000})
        assert not [note for note in reading.notes if "left out" in note]
        without = self.model().read(tmp_path).graph
        assert (reading.graph.ops, reading.graph.resident_bytes) == (without.ops, without.resident_bytes)
        with pytest.raises(GraphError, match="'choice/inner'") as caught:
            self.model().read(tmp_path, values={"rate": 8000})
        assert "--value" in caught.value.hint

    def test_one_in_a_branch_that_fits(self, tmp_path: Path) -> None:
        outer = body([choose(ONE_RELU, self.MISFIT, "c")], outputs=["y"])
        model = self.model()
        model.nodes = [self.EQUAL, node("If", ["c"], ["o"], name="outer", then_branch=outer, else_branch=self.MISFIT)]
        model.outputs = ("o",)
        notes = [note for note in model.read(tmp_path).notes if "left out" in note]
        assert len(notes) == 2
        assert "op 'outer/choice'" in notes[0]


def test_if_without_a_branch(tmp_path: Path) -> None:
    model = Model([node("If", ["c"], ["y"], name="choice", then_branch=ONE_RELU)], inputs=[X, CONDITION])
    with pytest.raises(GraphError, match=r"'choice' .* no else_branch"):
        model.read(tmp_path)


def test_branch_with_the_wrong_number_of_results(tmp_path: Path) -> None:
    two = body([node("Relu", ["x"], ["a"]), node("Neg", ["x"], ["b"])], outputs=["a", "b"])
    with pytest.raises(GraphError, match="2 outputs where its node needs 1"):
        Model([choose(two, ONE_RELU)], inputs=[X, CONDITION]).read(tmp_path)


def loop(trips: int | None, loop_graph: onnx.GraphProto, *outputs: str) -> Model:
    stored = [] if trips is None else [scalar("trips", trips)]
    inputs = [X] if trips is not None else [X, value("trips", [], TensorProto.INT64)]
    return Model(
        [node("Relu", ["x"], ["h"]), node("Loop", ["trips", "", "h"], list(outputs), body=loop_graph)],
        inputs=inputs,
        outputs=outputs,
        stored=stored,
    )


STEP = loop_body(node("Add", ["s", "x"], ["next"]), node("Neg", ["next"], ["o"]), outputs=("next", "o"))


def test_loop_keeps_its_state_s_shape_and_stacks_its_scans(tmp_path: Path) -> None:
    reading = loop(7, STEP, "last", "all").read(tmp_path)
    assert tensor(reading, "last").shape == (250,)
    assert tensor(reading, "all").shape == (7, 250)
    assert op(reading, "Loop").inputs == ("h", "x")


def test_workspace_of_a_loop_is_one_iteration(tmp_path: Path) -> None:
    # The condition is one byte; next and o are alive together.
    assert op(loop(7, STEP, "last", "all").read(tmp_path), "Loop").workspace_bytes == 2001


def test_scans_of_an_unknown_number_of_trips_need_a_shape(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'all' .* Loop"):
        loop(None, STEP, "last", "all").read(tmp_path)
    reading = loop(None, STEP, "last", "all").read(tmp_path, value_shapes={"all": (9, 250)})
    assert tensor(reading, "all").bytes == 9000


def test_state_that_grows_needs_a_shape(tmp_path: Path) -> None:
    growing = loop_body(node("Concat", ["s", "x"], ["next"], axis=0), outputs=("next",))
    with pytest.raises(UsageError, match=r"'last' .* Loop"):
        loop(7, growing, "last").read(tmp_path)


def test_loop_body_with_the_wrong_number_of_inputs(tmp_path: Path) -> None:
    short = body([node("Identity", ["go"], ["on"])], [value("go", [], TensorProto.BOOL)], ["on"])
    with pytest.raises(GraphError, match="1 inputs, but is given 3"):
        loop(7, short, "last").read(tmp_path)


def test_sequence_that_a_loop_fills_grows_with_its_trips(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    filling = loop_body(
        node("Neg", ["x"], ["n"]), node("SequenceInsert", ["s", "n"], ["next"]), outputs=("next",), state=sequence
    )
    model = Model(
        [
            node("SequenceEmpty", [], ["empty"]),
            node("Loop", ["trips", "", "empty"], ["filled"], body=filling),
            node("ConcatFromSequence", ["filled"], ["y"], axis=0),
        ],
        inputs=[X],
        stored=[scalar("trips", 5)],
    )
    reading = model.read(tmp_path)
    assert tensor(reading, "filled").bytes == 5000
    assert tensor(reading, "y").shape == (1250,)


def scan_model(opset: int = 21) -> Model:
    step = body(
        [node("Add", ["s", "slice"], ["next"]), node("Neg", ["next"], ["o"])],
        [value("s"), value("slice")],
        ["next", "o"],
    )
    axes: dict[str, Any] = {"scan_input_axes": [1], "scan_output_axes": [-1]}
    scan = node("Scan", ["start", "x"], ["last", "all"], body=step, num_scan_inputs=1, **axes)
    return Model(
        [scan], inputs=[float_input("start", 10), float_input("x", 10, 7)], outputs=["last", "all"], opset=opset
    )


def test_scan_takes_slices_and_stacks_them_along_its_axes(tmp_path: Path) -> None:
    reading = scan_model().read(tmp_path)
    assert tensor(reading, "last").shape == (10,)
    assert tensor(reading, "all").shape == (10, 7)


def test_scan_of_opset_8_needs_shapes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'last' .* Scan"):
        scan_model(opset=8).read(tmp_path)


def nested(depth: int) -> onnx.GraphProto:
    if depth == 0:
        return ONE_RELU
    inner = node("If", ["c"], [f"n{depth}"], then_branch=nested(depth - 1), else_branch=ONE_RELU)
    return body([inner], outputs=[f"n{depth}"])


def test_deeply_nested_bodies(tmp_path: Path) -> None:
    reading = Model([choose(nested(25), ONE_RELU)], inputs=[X, CONDITION]).read(tmp_path)
    assert op_types(reading) == ["If"]
    assert tensor(reading, "y").shape == (250,)


def test_workspace_of_nested_bodies_adds_up(tmp_path: Path) -> None:
    inner = node("If", ["c"], ["i"], then_branch=THREE_AT_ONCE, else_branch=ONE_RELU)
    outer = body([node("Relu", ["x"], ["kept"]), inner, node("Add", ["kept", "i"], ["o"])], outputs=["o"])
    # In the outer branch while the inner If runs: kept, i, and the inner If's two; the outer result comes later.
    reading = Model([choose(outer, ONE_RELU)], inputs=[X, CONDITION]).read(tmp_path)
    assert op(reading, "If").workspace_bytes == 4000 - 1000


def test_body_may_be_empty(tmp_path: Path) -> None:
    reading = Model([choose(body([], outputs=["x"]), ONE_RELU)], inputs=[X, CONDITION]).read(tmp_path)
    assert tensor(reading, "y").bytes == 1000


def test_trip_count_may_be_a_vector_of_one(tmp_path: Path) -> None:
    model = loop(None, STEP, "last", "all")
    trips = numpy_helper.from_array(np.array([3], dtype=np.int64), "trips")
    assert tensor(Model(model.nodes, [X], model.outputs, [trips]).read(tmp_path), "all").shape == (3, 250)


def detection() -> Model:
    """Return a model whose sizes depend on data: of its own ops, within an If, and of what comes after both."""
    return Model(
        [
            node("NonZero", ["x"], ["a"]),
            node("Transpose", ["a"], ["t"]),
            node(
                "If",
                ["c"],
                ["i"],
                "choice",
                then_branch=body([node("NonZero", ["x"], ["inner"], "within")], outputs=["inner"]),
                else_branch=body([node("Identity", ["t"], ["other"])], outputs=["other"]),
            ),
            # Gather takes whole numbers alone: what the If gives must not be taken for floats.
            node("Gather", ["t", "i"], ["g"]),
            node("Cast", ["g"], ["f"], to=TensorProto.FLOAT),
            node("Unique", ["f"], ["u"]),
            node("Relu", ["u"], ["y"]),
        ],
        inputs=[float_input("x", 2, 3), value("c", (), TensorProto.BOOL)],
    )


def test_all_unknown_sizes_are_asked_for_at_once_with_their_ranks(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        detection().read(tmp_path)
    assert "'a' (op 'NonZero_0', NonZero), 'inner' (op 'choice/within', NonZero), 'u' (" in caught.value.message
    assert "--value-shape a:2,8 --value-shape inner:2,8 --value-shape u:8," in caught.value.hint


def test_what_the_hint_says_is_enough(tmp_path: Path) -> None:
    reading = detection().read(tmp_path, value_shapes={"a": (2, 8), "inner": (2, 8), "u": (8,)})
    assert tensor(reading, "y").shape == (8,)
