"""Computing one node while reading: with its own data, whichever other nodes were computed before."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from remat_cli.formats.onnx.folding import compute

DATA = {"a": np.array([5, 7]), "b": np.array([1, 2]), "most": np.array(6), "first": np.array(0)}


def computed(op_type: str, inputs: str, opset: int = 17, **attributes: Any) -> Any:
    """Compute a node; inputs are separated by spaces, and "-" is one that is absent."""
    names = [name.replace("-", "") for name in inputs.split()]
    node = helper.make_node(op_type, names, ["result"], **attributes)
    results = compute(node, {"": opset}, {name: DATA[name] for name in names if name})
    return None if results is None else results["result"].tolist()


def test_nodes_of_one_kind_are_computed_each_with_its_own_inputs() -> None:
    assert [computed("Sub", inputs) for inputs in ("a b", "b a", "a a", "a b")] == [[4, 5], [-4, -5], [0, 0], [4, 5]]


def test_nodes_that_differ_in_attributes_are_told_apart() -> None:
    assert [computed("Concat", "a b", axis=0), computed("Gather", "a first", axis=0)] == [[5, 7, 1, 2], 5]
    assert [computed("ReduceMax", "a", keepdims=keep) for keep in (0, 1, 0)] == [7, [7], 7]


def test_nodes_that_differ_in_which_inputs_are_absent_are_told_apart() -> None:
    assert [computed("Clip", inputs) for inputs in ("a most", "a - most", "a most -")] == [[6, 7], [5, 6], [6, 7]]


def test_the_same_node_means_what_its_operator_set_says() -> None:
    # The axes of Unsqueeze became an input in version 13.
    assert [computed("Unsqueeze", "a", opset, axes=[0]) for opset in (12, 17, 12)] == [[[5, 7]], None, [[5, 7]]]


def test_a_node_that_cannot_be_computed_stays_one_however_often_it_is_tried() -> None:
    assert [computed("Gather", "a a", axis=0) for _ in range(2)] == [None, None]
    assert computed("Gather", "a first", axis=0) == 5
