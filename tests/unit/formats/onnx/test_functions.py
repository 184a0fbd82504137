"""Model-local functions are inlined, within bounds."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from remat_cli.errors import GraphError
from tests.unit.formats.onnx.models import Model, node, op_types, tensor


def function(name: str, nodes: list[onnx.NodeProto]) -> onnx.FunctionProto:
    """Return a function of domain "local" from a to b."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["a"], ["b"], nodes, opsets)


def call(name: str, source: str, result: str) -> onnx.NodeProto:
    return node(name, [source], [result], domain="local")


def model(calls: list[onnx.NodeProto], functions: list[onnx.FunctionProto]) -> Model:
    return Model(calls, functions=functions, other_opsets={"local": 1})


def test_calls_become_the_nodes_of_the_function(tmp_path: Path) -> None:
    twice = function("Twice", [node("Relu", ["a"], ["r"]), node("Neg", ["r"], ["b"])])
    reading = model([call("Twice", "x", "h"), call("Twice", "h", "y")], [twice]).read(tmp_path)
    assert op_types(reading) == ["Relu", "Neg", "Relu", "Neg"]
    assert tensor(reading, "y").shape == (2, 3)


def test_a_call_with_too_many_inputs_is_refused(tmp_path: Path) -> None:
    once = function("Once", [node("Relu", ["a"], ["b"])])
    with pytest.raises(GraphError, match="local functions cannot be inlined"):
        model([node("Once", ["x", "x"], ["y"], domain="local")], [once]).read(tmp_path)


def test_functions_may_call_functions(tmp_path: Path) -> None:
    inner = function("Inner", [node("Relu", ["a"], ["b"])])
    outer = function("Outer", [call("Inner", "a", "r"), node("Neg", ["r"], ["b"])])
    assert op_types(model([call("Outer", "x", "y")], [outer, inner]).read(tmp_path)) == ["Relu", "Neg"]


def test_recursive_function_is_refused_with_its_circle(tmp_path: Path) -> None:
    circle = [function("A", [call("B", "a", "b")]), function("B", [call("C", "a", "b")])]
    circle.append(function("C", [call("A", "a", "b")]))
    with pytest.raises(GraphError, match="in a circle: ") as caught:
        model([call("A", "x", "y")], circle).read(tmp_path)
    start = caught.value.message.partition("circle: ")[2].split(" -> ")
    assert "".join(name[-1] for name in start) in ("ABCA", "BCAB", "CABC")


def test_functions_that_double_at_every_level_are_refused(tmp_path: Path) -> None:
    functions = [function("F0", [node("Relu", ["a"], ["b"])])]
    for level in range(1, 31):
        below = f"F{level - 1}"
        functions.append(function(f"F{level}", [call(below, "a", "m"), call(below, "m", "b")]))
    with pytest.raises(GraphError, match=f"makes {2**30} nodes"):
        model([call("F30", "x", "y")], functions).read(tmp_path)


def chain_of_functions(length: int) -> Model:
    functions = [function("F0", [node("Relu", ["a"], ["b"])])]
    functions += [function(f"F{level}", [call(f"F{level - 1}", "a", "b")]) for level in range(1, length)]
    return model([call(f"F{length - 1}", "x", "y")], functions)


def test_deep_chain_of_functions(tmp_path: Path) -> None:
    assert op_types(chain_of_functions(50).read(tmp_path)) == ["Relu"]


def test_chain_of_functions_beyond_any_recursion_limit(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="2000 levels deep"):
        chain_of_functions(2000).read(tmp_path)


def test_function_for_another_opset_stays_an_unknown_op(tmp_path: Path) -> None:
    old = helper.make_function(
        "local", "Old", ["a"], ["b"], [node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    reading = model([call("Old", "x", "y")], [old]).read(tmp_path)
    assert op_types(reading) == ["local.Old"]
    assert reading.estimated == (reading.graph.ops[0].name,)
