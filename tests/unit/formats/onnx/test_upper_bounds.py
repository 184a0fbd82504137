"""Which ops are counted with the most that they may take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from remat_cli.formats.onnx.reader import read_sized
from remat_cli.formats.onnx.upper_bounds import upper_bounds
from remat_cli.formats.reader import ReadOptions
from remat_cli.formats.source import Source
from tests.unit.formats.onnx.models import Model, body, float_input, integers, node, scalar, value

SIZE = 4
X = float_input("x", SIZE)
CONDITION = value("c", [], TensorProto.BOOL)
RELU = body([node("Relu", ["x"], ["r"])], outputs=["r"])
NEG = body([node("Neg", ["x"], ["n"])], outputs=["n"])


def bounds(nodes: Sequence[onnx.NodeProto], folder: Path, **options: Any) -> tuple[str, ...]:
    """Return the bounded ops of a model with inputs x and c, and constants of several kinds."""
    model = Model(
        nodes,
        inputs=[X, CONDITION, value("times", [], TensorProto.INT64)],
        stored=[scalar("n", 3), scalar("yes", True), scalar("no", False), integers("one", 1)],
    )
    return upper_bounds(read_sized(Source(model.save(folder)), ReadOptions(**options)).graph)


def choice(condition: str = "c", then: onnx.GraphProto = RELU, other: onnx.GraphProto = NEG) -> onnx.NodeProto:
    return node("If", [condition], ["y"], "choice", then_branch=then, else_branch=other)


def loop(
    trips: str = "n", condition: str = "", again: str = "go", more: Sequence[onnx.NodeProto] = (), step: str = "Neg"
) -> onnx.NodeProto:
    """Return a loop over a state that begins as x; `again` is the body's condition."""
    made = node("Concat", ["s", "x"], ["s1"], axis=0) if step == "Concat" else node(step, ["s"], ["s1"])
    inner = body(
        [made, *more, node("Identity", [again], ["again"])],
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("s")],
        ["again", "s1"],
    )
    inner.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    return node("Loop", [trips, condition, "x"], ["y"], "loop", body=inner)


ENDS_EARLY = (node("Cast", ["s1"], ["positive"], to=TensorProto.BOOL), node("ReduceMax", ["positive"], ["some"]))


@pytest.mark.parametrize("step", [choice(), loop(again="some", more=ENDS_EARLY), loop("times"), loop(condition="c")])
def test_what_depends_on_data(step: onnx.NodeProto, tmp_path: Path) -> None:
    assert bounds([step], tmp_path) == (step.name,)


@pytest.mark.parametrize(
    "step", [choice("yes"), loop(), loop(condition="yes"), loop(again="yes"), node("Relu", "x", "y")]
)
def test_what_is_known(step: onnx.NodeProto, tmp_path: Path) -> None:
    assert bounds([step], tmp_path) == ()


def test_a_choice_within_a_loop(tmp_path: Path) -> None:
    inner = node("If", ["c"], ["q"], then_branch=RELU, else_branch=NEG)
    assert bounds([loop(more=[inner])], tmp_path) == ("loop",)


def test_a_result_whose_size_was_given(tmp_path: Path) -> None:
    assert bounds([node("NonZero", ["x"], ["y"], "found")], tmp_path, value_shapes={"y": (1, 4)}) == ("found",)


@pytest.mark.parametrize("nested", [False, True])
def test_a_state_that_grows_is_no_bound(nested: bool, tmp_path: Path) -> None:
    growing = loop("times", step="Concat")
    growing.output[0] = "all"
    branch = body([growing, node("ReduceMax", ["all"], ["t"])], outputs=["t"])
    nodes = [choice("c", branch, RELU)] if nested else [choice(), growing]
    assert bounds(nodes, tmp_path, value_shapes={"all": (40,)}) == ()
