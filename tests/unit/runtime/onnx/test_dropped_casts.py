"""Casts that onnxruntime leaves out: what is predicted, against what it does for every pair of types."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from remat_cli import session_options
from remat_cli.formats import Aliasing, ReadOptions
from remat_cli.formats.onnx.dropped_casts import dropped_casts
from remat_cli.formats.onnx.reader import read_sized
from remat_cli.formats.source import Source
from tests.unit.formats.onnx.models import Model, node, value
from tests.unit.runtime.onnx.test_execution import run

# fmt: off
TYPES = {
    name: getattr(TensorProto, name) for name in (
        "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FLOAT16", "BFLOAT16",
        "FLOAT", "DOUBLE",
    )
}
# fmt: on


def run_by_onnxruntime(path: Path, folder: Path) -> set[str]:
    """Return the names of the nodes that onnxruntime keeps of a model."""
    options, kept = session_options(), folder / "kept.onnx"
    options.optimized_model_filepath, options.log_severity_level = str(kept), 4
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return {one.name for one in onnx.load(kept).graph.node}


def assert_drops_what_onnxruntime_drops(model: Model, folder: Path) -> set[str]:
    """Return the names of the casts that are dropped; each is called like what it makes."""
    path, proto = folder / "model.onnx", model.proto()
    for output in proto.graph.output:
        output.ClearField("type")
    onnx.save(proto, path)
    sized = read_sized(Source(path), ReadOptions(aliasing=Aliasing.ORT_CPU)).graph
    dropped = set(dropped_casts((one.node for one in sized.nodes), sized.values, sized.outputs))
    casts = {one.name for one in model.nodes if one.op_type == "Cast"}
    assert dropped == casts - run_by_onnxruntime(path, folder)
    return dropped


def cast(source: str, target: str, to: int) -> onnx.NodeProto:
    return node("Cast", [source], [target], target, to=to)


def test_two_casts_in_a_row_of_every_type(tmp_path: Path) -> None:
    nodes = [node("Concat", [f"x.{one}"], [one], one, axis=0) for one in TYPES]
    outputs = []
    for one, other, last in product(TYPES, repeat=3):
        name = f"{one}.{other}.{last}"
        nodes += [cast(one, f"{name}.1", TYPES[other]), cast(f"{name}.1", f"{name}.2", TYPES[last])]
        nodes.append(node("Concat", [f"{name}.2"], [name], name, axis=0))
        outputs.append(name)
    inputs = [value(f"x.{name}", [2], element) for name, element in TYPES.items()]
    dropped = assert_drops_what_onnxruntime_drops(Model(nodes, inputs, outputs), tmp_path)
    assert 0 < len(dropped) < len(TYPES) ** 3


FLOAT, DOUBLE, INT = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32
TENSOR = 4 * 4 * 2**20
COPY = node("Concat", ["x"], ["h"], "copy", axis=0)


@pytest.mark.parametrize(
    ("casts", "outputs", "dropped"),
    [
        ([cast("h", "a", FLOAT), cast("a", "b", DOUBLE)], ["b"], {"a"}),
        ([cast("h", "a", FLOAT)], ["a"], set()),
        ([cast("h", "a", DOUBLE), cast("a", "b", FLOAT)], ["b"], {"a"}),
        ([cast("h", "a", DOUBLE), cast("a", "b", FLOAT), node("Neg", ["b"], ["y"])], ["y"], {"a", "b"}),
        ([cast("h", "a", DOUBLE), cast("a", "b", FLOAT), node("Neg", ["b"], ["y"])], ["y", "a"], {"b"}),
        ([cast("h", "a", DOUBLE), cast("a", "b", FLOAT), node("Add", ["b", "b"], ["y"]), node("Neg", ["a"], ["z"])],
         ["y", "z"], {"b"}),
        ([cast("h", "a", INT), cast("a", "b", INT), cast("b", "c", FLOAT), node("Neg", ["c"], ["y"])], ["y"], {"a"}),
        ([cast("h", "a", DOUBLE), cast("a", "b", DOUBLE), cast("b", "c", FLOAT), node("Neg", ["c"], ["y"])], ["y"],
         {"a", "b", "c"}),
        ([cast("h", "a", FLOAT), cast("a", "b", DOUBLE), cast("a", "c", INT)], ["b", "c"], {"a"}),
        ([cast("x", "a", DOUBLE), cast("a", "b", FLOAT), cast("b", "c", DOUBLE), node("Neg", ["c"], ["y"])], ["y"],
         {"a", "b"}),
    ],
    ids=range(10),
)  # fmt: skip
def test_what_else_reads_a_cast_counts(
    casts: list[onnx.NodeProto], outputs: list[str], dropped: set[str], tmp_path: Path
) -> None:
    model = Model([COPY, *casts], outputs=outputs)
    assert assert_drops_what_onnxruntime_drops(model, tmp_path) == dropped


def test_a_model_with_casts_that_do_not_run_is_run_as_planned(tmp_path: Path) -> None:
    nodes = [
        COPY,
        cast("h", "same", FLOAT),
        cast("same", "wide", DOUBLE),
        cast("wide", "back", FLOAT),
        node("Exp", ["back"], ["e"], "exp"),
        node("Neg", ["back"], ["n"], "neg"),
        node("Mul", ["e", "n"], ["m"], "mul"),
        node("ReduceSum", ["m"], ["y"], "sum"),
    ]
    path = Model(nodes, [value("x", [4, 1024, 1024])]).save(tmp_path)
    again = ["copy", "same", "wide", "back"]
    found = run(path, [*again, "exp", *again, "neg", "mul", "sum"])
    assert found.holds
    assert found.plain.agrees
    # At the product: what is multiplied, and the result.
    assert (found.plan.predicted, found.plain.predicted) == (3 * TENSOR, 3 * TENSOR)
