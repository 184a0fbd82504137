"""Damaged ONNX files: whatever bytes they hold, there is a graph or an error that says what to do."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from remat_cli.errors import RematError
from remat_cli.formats.onnx import read
from remat_cli.formats.reader import ReadOptions
from remat_cli.formats.source import Source


def whole_model() -> bytes:
    """Return a model with a bit of everything: a symbol, weights, folding, a body, a function, an unknown op."""
    branch = helper.make_graph(
        [helper.make_node("Relu", ["h"], ["b"])], "branch", [], [helper.make_empty_tensor_value_info("b")]
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Shape", ["h"], ["s"]),
        helper.make_node("Reshape", ["h", "s"], ["r"]),
        helper.make_node("Twice", ["r"], ["t"], domain="local"),
        helper.make_node("Custom", ["t"], ["u"], domain="com.acme", size=3),
        helper.make_node("If", ["c"], ["i"], then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["u", "i"], ["y"]),
    ]
    twice = helper.make_function(
        "local", "Twice", ["a"], ["d"], [helper.make_node("Add", ["a", "a"], ["d"])], [helper.make_opsetid("", 21)]
    )
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])],
        [numpy_helper.from_array(np.ones((4, 5), dtype=np.float32), "w")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    content: bytes = helper.make_model(graph, opset_imports=opsets, functions=[twice]).SerializeToString()
    return content


WHOLE = whole_model()
damages = st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4)


def outcome(content: bytes) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(content)
        try:
            graph = read(Source(path), ReadOptions(dims={"batch": 2})).graph
        except RematError as error:
            return "refused" if error.message and error.hint else "refused without a hint"
    assert all(tensor.bytes >= 0 for tensor in graph.tensors.values())
    return "read"


def test_undamaged_file_is_read() -> None:
    assert outcome(WHOLE) == "read"


@given(damages=damages)
def test_damaged_bytes_never_surface_as_a_traceback(damages: list[tuple[int, int]]) -> None:
    content = bytearray(WHOLE)
    for position, byte in damages:
        content[position] = byte
    assert outcome(bytes(content)) in ("read", "refused")


@given(length=st.integers(0, len(WHOLE) - 1))
def test_truncated_file_is_refused(length: int) -> None:
    assert outcome(WHOLE[:length]) == "refused"


@given(content=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(content: bytes) -> None:
    assert outcome(content) == "refused"
