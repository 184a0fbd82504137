"""Ops that onnxruntime has no kernel for: expanded here, they give the same bits in the order of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from remat_cli.formats.onnx.expansion import WITHOUT_KERNEL
from remat_cli.formats.reader import Aliasing
from tests.unit.formats.onnx.models import Model, float_input, integers, node, scalar
from tests.unit.runtime.onnx.rewriting import assert_same_bits, drawn, planned, rewritten, run, stored

LABELS = onnx.numpy_helper.from_array(np.random.default_rng(0).integers(0, 4, (2, 6, 6)), "labels")


# Op: the opsets to try it at, its inputs after the first, its attributes, and what is stored.
CASES: Mapping[str, tuple[Sequence[int], Sequence[str], dict[str, Any], Sequence[onnx.TensorProto]]] = {
    "CastLike": ((17, 20, 22), ["one"], {}, [scalar("one", 1)]),
    "CenterCropPad": ((18, 21), ["size"], {"axes": [2, 3]}, [integers("size", 3, 9)]),
    "GroupNormalization": ((21, 22), ["scale", "bias"], {"num_groups": 2}, [stored("scale", 4), stored("bias", 4)]),
    "HardSwish": ((14, 20, 22), [], {}, []),
    "Mish": ((18, 22), [], {}, []),
    "NegativeLogLikelihoodLoss": ((13, 22), ["labels"], {}, [LABELS]),
    "SoftmaxCrossEntropyLoss": ((13, 22), ["labels"], {}, [LABELS]),
    "Swish": ((24,), [], {"alpha": 1.5}, []),
}


def test_all_of_them_are_tried() -> None:
    assert set(CASES) == WITHOUT_KERNEL[Aliasing.ORT_CPU]


@pytest.mark.parametrize(("op", "opset"), [(op, opset) for op, case in CASES.items() for opset in case[0]])
def test_the_bits_are_the_same_and_the_order_is_the_file_s(tmp_path: Path, op: str, opset: int) -> None:
    _, operands, attributes, constants = CASES[op]
    model = Model(
        [
            node("Sin", ["x"], ["a"], "before"),
            node(op, ["a", *operands], ["b"], "op", **attributes),
            node("Identity", ["b"], ["c"], "between"),
            node("Cos", ["a"], ["d"], "after"),
        ],
        inputs=[float_input("x", 2, 4, 6, 6)],
        outputs=["c", "d"],
        stored=constants,
        opset=opset,
    )
    if op == "CastLike":
        model.outputs = ["d"]
        model.nodes = [
            *model.nodes[:2],
            node("Cast", ["b"], ["f"], "back", to=1),
            node("Add", ["f", "a"], ["d"], "after"),
        ]
    path = model.save(tmp_path)
    ops = [one.name for one in planned(path).ops]
    result = rewritten(path, [*ops[:-1], *ops])
    feeds = drawn(result.proto)
    before, executed = run(model.proto(), feeds, tmp_path)
    after, order = run(result.proto, feeds, tmp_path)
    assert_same_bits(before, after)
    assert order == result.order
    # Should onnxruntime have a kernel one day, there would be nothing to expand.
    assert "op" not in executed
