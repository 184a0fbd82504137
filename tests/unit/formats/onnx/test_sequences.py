"""Sequences and optionals are sized by what is in them, and run once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from remat_cli.errors import GraphError, UsageError
from remat_cli.formats.reader import Reading
from tests.unit.formats.onnx.models import Model, float_input, integers, node, op, scalar, tensor

X = float_input("x", 10, 7)


def read(tmp_path: Path, *nodes: onnx.NodeProto, **options: object) -> Reading:
    stored = [scalar("zero", 0), scalar("three", 3), scalar("five", 5), integers("uneven", 4, 6)]
    return Model(nodes, inputs=[X], stored=stored).read(tmp_path, **options)


def test_sequence_is_the_sum_of_its_tensors(tmp_path: Path) -> None:
    reading = read(tmp_path, node("SequenceConstruct", ["x", "x"], ["y"]))
    assert tensor(reading, "y").bytes == 560
    assert not op(reading, "SequenceConstruct").recomputable


def test_tensor_of_a_sequence_of_equal_shapes(tmp_path: Path) -> None:
    sequence = node("SequenceConstruct", ["x", "x"], ["q"])
    assert tensor(read(tmp_path, sequence, node("SequenceAt", ["q", "zero"], ["y"])), "y").shape == (10, 7)


def test_tensor_of_a_sequence_of_different_shapes_needs_a_shape(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["x"], ["t"]),
        node("SequenceConstruct", ["x", "t"], ["q"]),
        node("SequenceAt", ["q", "zero"], ["y"]),
    ]
    with pytest.raises(UsageError, match=r"'y' .* SequenceAt"):
        read(tmp_path, *nodes)
    assert tensor(read(tmp_path, *nodes, value_shapes={"y": (10, 7)}), "y").bytes == 280


def test_insertions_and_erasures_add_up(tmp_path: Path) -> None:
    reading = read(
        tmp_path,
        node("SequenceEmpty", [], ["q0"]),
        node("SequenceInsert", ["q0", "x"], ["q1"]),
        node("SequenceInsert", ["q1", "x"], ["q2"]),
        node("SequenceErase", ["q2"], ["y"]),
    )
    assert [tensor(reading, name).bytes for name in ("q0", "q1", "q2", "y")] == [0, 280, 560, 280]


@pytest.mark.parametrize(("attributes", "slice_shape"), [({}, (1, 7)), ({"axis": 1}, (10, 1)), ({"keepdims": 0}, (7,))])
def test_splitting_into_single_slices(tmp_path: Path, attributes: dict[str, Any], slice_shape: tuple[int, ...]) -> None:
    split = node("SplitToSequence", ["x"], ["q"], **attributes)
    reading = read(tmp_path, split, node("SequenceAt", ["q", "zero"], ["y"]))
    assert tensor(reading, "q").bytes == 280
    assert tensor(reading, "y").shape == slice_shape


def test_concatenation_along_an_axis(tmp_path: Path) -> None:
    split = node("SplitToSequence", ["x"], ["q"], axis=0)
    assert tensor(read(tmp_path, split, node("ConcatFromSequence", ["q"], ["y"], axis=1)), "y").shape == (1, 70)


def test_splitting_into_equal_pieces(tmp_path: Path) -> None:
    split = node("SplitToSequence", ["x", "five"], ["q"], axis=0)
    assert tensor(read(tmp_path, split, node("SequenceAt", ["q", "zero"], ["y"])), "y").shape == (5, 7)


@pytest.mark.parametrize("sizes", ["three", "uneven"])
def test_splitting_into_uneven_pieces_leaves_their_shape_open(tmp_path: Path, sizes: str) -> None:
    split = node("SplitToSequence", ["x", sizes], ["q"], axis=0)
    assert tensor(read(tmp_path, split, node("SequenceLength", ["q"], ["y"])), "q").bytes == 280
    with pytest.raises(UsageError, match="SequenceAt"):
        read(tmp_path, split, node("SequenceAt", ["q", "zero"], ["y"]))


def test_concatenation_along_a_new_axis(tmp_path: Path) -> None:
    reading = read(
        tmp_path,
        node("SequenceConstruct", ["x", "x", "x"], ["q"]),
        node("ConcatFromSequence", ["q"], ["y"], axis=-1, new_axis=1),
    )
    assert tensor(reading, "y").shape == (10, 7, 3)


def test_optional_is_what_it_holds(tmp_path: Path) -> None:
    reading = read(
        tmp_path,
        node("Optional", ["x"], ["o"]),
        node("OptionalHasElement", ["o"], ["has"]),
        node("OptionalGetElement", ["o"], ["y"]),
    )
    assert tensor(reading, "has").bytes == 1
    assert tensor(reading, "y").shape == (10, 7)
    assert not op(reading, "Optional").recomputable
    assert op(reading, "OptionalGetElement").recomputable


def test_empty_optional_has_its_declared_type(tmp_path: Path) -> None:
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [4])
    assert tensor(read(tmp_path, node("Optional", [], ["y"], type=kind)), "y").bytes == 16


def sequence_input() -> Model:
    sequence = helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, [3, 4])
    return Model([node("SequenceAt", ["q", "zero"], ["y"])], inputs=[sequence], stored=[scalar("zero", 0)])


def test_sequence_input_needs_the_shape_of_all_its_elements(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the shape of input 'q'"):
        sequence_input().read(tmp_path)
    reading = sequence_input().read(tmp_path, input_shapes={"q": (5, 3, 4)})
    assert tensor(reading, "q").bytes == 240
    assert tensor(reading, "y").shape == (3, 4)


def test_optional_input_is_bound_like_a_tensor(tmp_path: Path) -> None:
    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, ["batch", 4])
    optional = helper.make_value_info("o", helper.make_optional_type_proto(inner))
    model = Model([node("OptionalGetElement", ["o"], ["y"])], inputs=[optional])
    assert tensor(model.read(tmp_path, dims={"batch": 2}), "y").shape == (2, 4)
    assert tensor(model.read(tmp_path, input_shapes={"o": (3, 4)}), "y").shape == (3, 4)


def test_map_input_is_refused(tmp_path: Path) -> None:
    mapping = onnx.ValueInfoProto(name="m")
    mapping.type.map_type.key_type = TensorProto.INT64
    mapping.type.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    model = Model([node("Relu", ["x"], ["y"])], inputs=[X, mapping])
    with pytest.raises(UsageError, match="the shape of input 'm'"):
        model.read(tmp_path)
    with pytest.raises(GraphError, match="neither a tensor nor a sequence"):
        model.read(tmp_path, input_shapes={"m": (1,)})


def test_mapped_sequence_has_as_many_items(tmp_path: Path) -> None:
    item = helper.make_graph(
        [node("Shape", ["i"], ["o"])],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.FLOAT, [10, 7])],
        [helper.make_tensor_value_info("o", TensorProto.INT64, [2])],
    )
    nodes = [node("SequenceConstruct", ["x", "x", "x"], ["q"]), node("SequenceMap", ["q"], ["m"], body=item)]
    reading = read(tmp_path, *nodes, node("ConcatFromSequence", ["m"], ["y"], axis=0))
    assert tensor(reading, "m").bytes == 3 * 2 * 8
    assert tensor(reading, "y").shape == (6,)
