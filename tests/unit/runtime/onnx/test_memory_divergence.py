"""Parts of a model peak as their ops do in the whole, so that halving finds the op by which memory departs."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from remat_cli.runtime.onnx.memory_divergence import first_parting, part
from remat_cli.runtime.onnx.rewrite import Rewritten
from tests.unit.formats.onnx.models import Model, float_input, integers, node
from tests.unit.runtime.onnx.memory import memory_bytes
from tests.unit.runtime.onnx.rewriting import drawn, rewritten_model, run

MODEL = Model(
    [
        node("Neg", ["x"], ["a"], "neg"),
        node("Split", ["a"], ["b", "c"], "split", axis=1, num_outputs=2),
        node("Relu", ["b"], ["d"], "relu"),
        node("Reshape", ["d", "flat"], ["e"], "view"),
        node("Exp", ["c"], ["f"], "exp"),
        node("Reshape", ["f", "flat"], ["g"], "other-view"),
        node("Add", ["e", "g"], ["h"], "add"),
        node("Sigmoid", ["h"], ["i"], "sigmoid"),
        node("Reshape", ["a", "flat"], ["j"], "late-view"),
        node("Concat", ["i", "j"], ["y"], "join", axis=0),
    ],
    inputs=[float_input("x", 2, 8)],
    outputs=["y", "f"],
    stored=[integers("flat", -1)],
)
COMPUTES = [
    "neg",
    "split",
    "relu",
    "view",
    "exp",
    "other-view",
    "split",
    "relu",
    "add",
    "sigmoid",
    "neg",
    "late-view",
    "join",
]


@pytest.fixture
def whole(tmp_path: Path) -> Rewritten:
    return rewritten_model(tmp_path, MODEL, COMPUTES)


@pytest.mark.parametrize("computes", range(1, len(COMPUTES) + 1))
def test_a_part_takes_the_memory_that_it_takes_in_the_whole(whole: Rewritten, computes: int, tmp_path: Path) -> None:
    model = part(whole, computes)
    onnx.checker.check_model(model, full_check=True)
    before, after = memory_bytes(whole.proto), memory_bytes(model)
    positions = zip(whole.proto.graph.node, whole.positions, strict=True)
    names = [one.name for one, place in positions if place is not None and place < computes]
    assert len(names) == computes
    assert [after[name] for name in names] == [before[name] for name in names]
    _, order = run(model, drawn(model), tmp_path)
    assert order[: len(names)] == whole.order[: len(names)]


@pytest.mark.parametrize("culprit", range(len(COMPUTES)))
def test_halving_finds_the_culprit(whole: Rewritten, culprit: int) -> None:
    predicted = [10 * (place + 1) for place in range(len(COMPUTES))]
    names = [one.name for one in whole.proto.graph.node]

    def departs(model: onnx.ModelProto, peak: int) -> bool:
        ran = {one.name for one in model.graph.node}
        computes = sum(name in ran for name, at in zip(names, whole.positions, strict=True) if at is not None)
        assert peak == predicted[computes - 1]
        return names[whole.positions.index(culprit)] in ran

    assert first_parting(whole, predicted, departs) == culprit


def test_nothing_is_found_where_the_parts_agree(whole: Rewritten) -> None:
    assert first_parting(whole, [1] * len(COMPUTES), lambda model, peak: False) is None
