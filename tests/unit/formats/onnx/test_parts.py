"""Models with regions in parts: the same results in less memory, and what cannot be split is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from remat_cli.core.bounds import largest_working_set
from remat_cli.errors import UsageError
from remat_cli.formats import read_graph, reader_in_parts
from remat_cli.formats.native import graph_sha256
from remat_cli.formats.onnx import load
from remat_cli.formats.onnx.load import parsed as load_parsed
from remat_cli.formats.onnx.reader import read_sized
from remat_cli.formats.reader import Aliasing, ReadOptions
from remat_cli.formats.source import Source
from tests.unit.formats.onnx.models import Model, body, float_input, integers, node, scalar, value

RANDOM = np.random.default_rng(0)


def weights(name: str, *dims: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.random.default_rng(len(name)).standard_normal(dims).astype(np.float32), name)


def network(**more: Any) -> Model:
    """A convolution whose results are flattened by a shape that is computed from them."""
    return Model(
        [
            node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["b"], "relu"),
            node("Shape", ["b"], ["sizes"], "shape"),
            node("Gather", ["sizes", "first"], ["batch"], "batch"),
            node("Concat", ["batch", "rest"], ["flat"], "flat", axis=0),
            node("GlobalAveragePool", ["b"], ["c"], "pool"),
            node("Reshape", ["c", "flat"], ["d"], "reshape"),
            node("Gemm", ["d", "v"], ["y"], ""),
        ],
        inputs=[float_input("x", "batch", 3, 8, 8)],
        stored=[weights("w", 16, 3, 3, 3), weights("v", 16, 4), integers("first", 0), integers("rest", -1)],
        **more,
    )


def split_as(model: Model, folder: Path, parts: dict[str, str], **options: Any) -> onnx.ModelProto:
    given = ReadOptions(mode="inference", parts=parts, **options)
    return read_sized(Source(model.save(folder)), given, keep_data=True).model.proto


def test_a_model_is_parsed_once_for_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = network().save(tmp_path)
    given = ReadOptions(mode="inference", dims={"batch": 4})
    parsed: list[Path] = []

    def parse(source: Source) -> onnx.ModelProto:
        parsed.append(source.path)
        return load_parsed(source)

    monkeypatch.setattr(load, "parsed", parse)
    read = reader_in_parts(path, given)
    cuts: list[dict[str, str | int]] = [{"conv": "2"}, {}, {"pool": "4,wide"}, {"conv": "2"}]
    several = [read(replace(given, parts=parts)) for parts in cuts]
    assert parsed == [path]
    for parts, reading in zip(cuts, several, strict=True):
        alone = read_graph(path, replace(given, parts=parts))
        assert graph_sha256(reading.graph.checked()) == graph_sha256(alone.graph.checked())
        assert (reading.notes, reading.parameters) == (alone.notes, alone.parameters)


def same(model: Model, proto: onnx.ModelProto, *given: np.ndarray[Any, Any]) -> bool:
    """Whether a model in parts has consistent types, and gives the same to rounding."""
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    fed = {info.name: array for info, array in zip(proto.graph.input, given, strict=False)}
    pairs = zip(*(ReferenceEvaluator(each).run(None, fed) for each in (model.proto(), proto)), strict=True)
    return all(np.allclose(one, other, rtol=1e-5, atol=1e-5) for one, other in pairs)


def numbers(*dims: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(dims).astype(np.float32)


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_a_network_in_parts_needs_less_and_gives_the_same(parts: int, tmp_path: Path) -> None:
    whole = read_graph(network().save(tmp_path), ReadOptions(mode="inference", dims={"batch": 8})).graph
    proto = split_as(network(), tmp_path, {"conv": f"{parts},wide"}, dims={"batch": 8})
    assert same(network(), proto, numbers(8, 3, 8, 8))
    options = ReadOptions(mode="inference", dims={"batch": 8}, parts={"conv": f"{parts},wide"})
    graph = read_graph(network().save(tmp_path), options).graph
    assert largest_working_set(graph).bytes - graph.fixed_bytes < 0.6 * largest_working_set(whole).bytes
    assert graph.outputs == whole.outputs
    rows = [node.output[0] for node in proto.graph.node if node.op_type == "Concat"]
    assert rows == ["y"], "all that is large stays within its part"


def test_sums_over_rows_are_added_up(tmp_path: Path) -> None:
    model = Model(
        [
            node("MatMul", ["x", "w"], ["a"], "up"),
            node("Tanh", ["a"], ["b"], "tanh"),
            node("MatMul", ["b", "v"], ["y"]),
        ],
        inputs=[float_input("x", 1, 5)],
        stored=[weights("w", 5, 64), weights("v", 64, 3)],
    )
    proto = split_as(model, tmp_path, {"up": "4,wide"})
    assert [node.op_type for node in proto.graph.node].count("Add") == 3
    assert same(model, proto, numbers(1, 5))


@pytest.mark.parametrize("opset", [9, 13, 21])
def test_slices_are_written_as_each_operator_set_has_them(opset: int, tmp_path: Path) -> None:
    model = Model(
        [node("MatMul", ["x", "w"], ["a"], "up"), node("Relu", ["a"], ["y"], "relu")],
        inputs=[float_input("x", 8, 5)],
        stored=[weights("w", 5, 6)],
        opset=opset,
        ir_version=8,
    )
    assert same(model, split_as(model, tmp_path, {"relu": "3"}), numbers(8, 5))


def test_ops_beside_a_region_keep_their_place(tmp_path: Path) -> None:
    model = Model(
        [
            node("Relu", ["x"], ["a"], "first"),
            node("Neg", ["x"], ["beside"], "beside"),
            node("Exp", ["x"], ["added"], "added"),
            node("Add", ["a", "added"], ["b"], "second"),
            node("ReduceMax", ["a"], ["largest"], "largest", keepdims=0),
            node("CumSum", ["b", "one"], ["c"], "last"),
            node("Sub", ["c", "largest"], ["d"], "minus"),
            node("Add", ["d", "beside"], ["y"], "join"),
        ],
        inputs=[float_input("x", 6, 4)],
        stored=[scalar("one", 1)],
    )
    proto = split_as(model, tmp_path, {"second": "2"})
    assert same(model, proto, numbers(6, 4))
    order = [node.name for node in proto.graph.node]
    assert order.index("beside") > order.index("second_part1"), "what the region does not need stays behind"


def test_two_regions_share_no_node_and_the_larger_op_comes_first(tmp_path: Path) -> None:
    model = Model(
        [
            node("MatMul", ["x", "w"], ["a"], "a_small"),
            node("MatMul", ["a", "v"], ["b"], "z_large"),
            node("Relu", ["b"], ["c"], "relu"),
            node("MatMul", ["c", "u"], ["y"], "down"),
        ],
        inputs=[float_input("x", 8, 5)],
        stored=[weights("w", 5, 6), weights("v", 6, 64), weights("u", 64, 5)],
    )
    proto = split_as(model, tmp_path, {"a_small": "2,wide", "z_large": "4"})
    assert same(model, proto, numbers(8, 5))
    names = [node.name for node in proto.graph.node]
    assert {"relu_part3", "a_small_part1"} <= set(names)
    assert "a_small_part2" not in names


def test_parts_of_a_model_in_parts_have_names_of_their_own(tmp_path: Path) -> None:
    proto = split_as(network(), tmp_path, {"conv": "2,wide"}, dims={"batch": 8})
    path = tmp_path / "again.onnx"
    path.write_bytes(proto.SerializeToString())
    options = ReadOptions(mode="inference", dims={"batch": 8}, parts={"conv_part0": "2,wide"})
    again = read_sized(Source(path), options, keep_data=True).model.proto
    names = [name for node in again.graph.node for name in node.output]
    assert len(names) == len(set(names))
    assert same(network(), again, numbers(8, 3, 8, 8))


def test_a_branch_that_reads_a_region_gets_the_joined_rows(tmp_path: Path) -> None:
    then = body([node("Neg", ["a"], ["t"])], outputs=["t"])
    otherwise = body([node("Identity", ["a"], ["e"])], outputs=["e"])
    model = Model(
        [
            node("Exp", ["x"], ["a"], "exp"),
            node("ReduceSum", ["x"], ["s"], "sum", keepdims=0),
            node("Greater", ["s", "zero"], ["is"], "is"),
            node("If", ["is"], ["y"], "if", then_branch=then, else_branch=otherwise),
        ],
        inputs=[float_input("x", 6, 4)],
        stored=[numpy_helper.from_array(np.array(0, np.float32), "zero")],
    )
    assert same(model, split_as(model, tmp_path, {"exp": "3"}), numbers(6, 4))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"nothing": "2"}, "there is no op 'nothing' to split"),
        ({"cum": "2"}, "remat has no rule for it"),
        ({"exp": "7"}, "its region has 6 rows"),
    ],
)
def test_what_cannot_be_split_is_refused_in_words(parts: dict[str, str], message: str, tmp_path: Path) -> None:
    model = Model(
        [node("Exp", ["x"], ["a"], "exp"), node("CumSum", ["a", "one"], ["y"], "cum")],
        inputs=[float_input("x", 6, 1)],
        stored=[scalar("one", 0)],
    )
    with pytest.raises(UsageError, match=message):
        split_as(model, tmp_path, parts)


def test_parts_are_of_inference_alone(tmp_path: Path) -> None:
    path = network().save(tmp_path)
    with pytest.raises(UsageError, match="goes with inference"):
        read_graph(path, ReadOptions(mode="training", dims={"batch": 8}, parts={"conv": "2"}))
    assert read_graph(
        path, ReadOptions(mode="inference", dims={"batch": 8}, aliasing=Aliasing.NONE, parts={"conv": "2"})
    )


def test_given_shapes_of_values_that_are_split_are_not_asked_for(tmp_path: Path) -> None:
    given = {"b": (8, 16, 8, 8)}
    proto = split_as(network(), tmp_path, {"conv": "2,wide"}, dims={"batch": 8}, value_shapes=given)
    assert same(network(), proto, numbers(8, 3, 8, 8))
    assert all(info.name != "b" for info in (*proto.graph.value_info, value("y")))
