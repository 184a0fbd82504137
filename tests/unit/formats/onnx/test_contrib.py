"""Sizes of what the ops of onnxruntime's optimisers give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from remat_cli.config import GraphOptions
from remat_cli.formats.reader import Aliasing
from remat_cli.prepare import prepare
from tests.unit.formats.onnx.models import Model, float_input, node, tensor, weight

NCHWC = "com.microsoft.nchwc"


@dataclass(frozen=True)
class Case:
    """An op on x of some shape, and the shape of what it gives."""

    op: str
    x: Sequence[int]
    y: Sequence[int]
    weights: Sequence[Sequence[int]] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = "com.microsoft"
    opset: int = 21


CASES = [
    Case("FusedConv", (2, 3, 8, 8), (2, 5, 6, 6), [(5, 3, 3, 3), (5,)], {"activation": "Relu"}),
    Case("FusedGemm", (2, 3), (2, 5), [(5, 3), (5,)], {"transB": 1, "activation": "Tanh"}),
    Case("FusedMatMul", (4, 2, 3), (4, 2, 5), [(3, 5)], {"alpha": 0.5}),
    Case("FusedMatMul", (4, 3, 2), (4, 2, 5), [(5, 3)], {"transA": 1, "transB": 1}),
    Case("DynamicQuantizeMatMul", (2, 3), (2, 5), [(3, 5)]),
    Case("MatMulNBits", (4, 2, 3), (4, 2, 7), [(7, 1, 8)], {"K": 3, "N": 7, "bits": 4, "block_size": 16}),
    Case("BiasGelu", (2, 3), (2, 3), [(3,)]),
    Case("FastGelu", (2, 3), (2, 3)),
    Case("QuickGelu", (2, 3), (2, 3)),
    Case("SkipLayerNormalization", (2, 4, 3), (2, 4, 3), [(2, 4, 3), (3,), (3,)]),
    Case("Attention", (2, 4, 6), (2, 4, 5), [(6, 15), (15,)], {"num_heads": 1}),
    Case("Attention", (2, 4, 6), (2, 4, 7), [(6, 15)], {"num_heads": 1, "qkv_hidden_sizes": [4, 4, 7]}),
    Case("Conv", (1, 8, 6, 6), (1, 16, 3, 3), [(16, 8, 2, 2)], {"strides": [2, 2], "activation": "Relu"}, NCHWC),
    Case("MaxPool", (1, 8, 6, 6), (1, 8, 3, 3), (), {"kernel_shape": [2, 2], "strides": [2, 2]}, NCHWC),
    Case("AveragePool", (1, 8, 6, 6), (1, 8, 5, 5), (), {"kernel_shape": [2, 2]}, NCHWC),
    Case("GlobalAveragePool", (1, 8, 6, 6), (1, 8, 1, 1), (), {}, NCHWC),
    Case("ReorderInput", (1, 8, 6, 5), (1, 8, 6, 5), (), {}, NCHWC),
    Case("ReorderInput", (1, 6, 5, 8), (1, 8, 6, 5), (), {"channels_last": 1}, NCHWC),
    Case("ReorderOutput", (1, 8, 6, 5), (1, 7, 6, 5), (), {"channels": 7}, NCHWC),
    Case("ReorderOutput", (1, 8, 6, 5), (1, 6, 5, 7), (), {"channels": 7, "channels_last": 1}, NCHWC),
    Case("Upsample", (1, 8, 6, 5), (1, 8, 12, 15), (), {"scales": [1, 1, 2, 3]}, NCHWC),
    Case("LayerNormalization", (2, 3), (2, 3), [(3,)], {}, "", 13),
    Case("SimplifiedLayerNormalization", (2, 3), (2, 3), [(3,)], {}, ""),
]

# Ops of which onnxruntime has kernels for GPUs alone: held against its documentation.
ON_GPUS = [
    Case("BiasSplitGelu", (2, 4, 6), (2, 4, 3), [(6,)]),
    Case("GroupNorm", (2, 6, 5, 8), (2, 6, 5, 8), [(8,), (8,)], {"groups": 2, "activation": 1}),
    Case("MatMulBnb4", (4, 2, 3), (4, 2, 7), [(11,), (1,)], {"K": 3, "N": 7, "block_size": 16, "quant_type": 1}),
    Case("MoE", (2, 6, 8), (2, 6, 8), [(12, 4), (4, 16, 8), (4, 16), (4, 8, 16), (4, 8)], {"k": 2}),
    Case("PackedAttention", (10, 6), (10, 5), [(6, 15), (15,), (2, 5), (3,)], {"num_heads": 1}),
    Case("PackedMultiHeadAttention", (10, 6), (10, 9), [(10, 6), (10, 9), (15,), (2, 5), (3,)], {"num_heads": 3}),
    Case("RestorePadding", (10, 6), (2, 7, 6), [(2, 7)]),
]


def model(case: Case, outputs: Sequence[str] = ("y",)) -> Model:
    weights = [weight(f"w{i}", *dims) for i, dims in enumerate(case.weights)]
    inputs = ["x", *(one.name for one in weights)]
    return Model(
        [node(case.op, inputs, outputs, name="op", domain=case.domain, **case.attributes)],
        inputs=[float_input("x", *case.x)],
        outputs=[name for name in outputs if name],
        stored=weights,
        opset=case.opset,
        other_opsets={"com.microsoft": 1, NCHWC: 1},
    )


@pytest.mark.parametrize("case", [*CASES, *ON_GPUS], ids=lambda case: f"{case.domain}.{case.op}")
def test_the_result_is_sized_and_no_estimate(tmp_path: Path, case: Case) -> None:
    reading = model(case).read(tmp_path)
    assert not reading.estimated
    assert tensor(reading, "y").shape == tuple(case.y)
    assert reading.graph.ops[0].type == ".".join(filter(None, (case.domain, case.op)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.domain}.{case.op}")
def test_there_is_a_formula_for_its_work(tmp_path: Path, case: Case) -> None:
    if case.op == "DynamicQuantizeMatMul":
        pytest.skip("quantized: counted by the bytes moved")
    path = model(case).save(tmp_path)
    assert prepare(path, GraphOptions(mode="inference")).notes == ()


def test_what_was_added_up_before_a_normalization_is_a_result_too(tmp_path: Path) -> None:
    case = Case("SkipLayerNormalization", (2, 3), (2, 3), [(2, 3), (3,)])
    reading = model(case, ["y", "", "", "total"]).read(tmp_path)
    assert not reading.estimated
    assert tensor(reading, "total").shape == (2, 3)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("QLinearConcat", {}), ("Attention", {"num_heads": 1}), ("MatMulNBits", {}), ("Upsample", {"domain": NCHWC})],
)
def test_what_has_no_rule_or_does_not_fit_it_stays_an_estimate(
    tmp_path: Path, op: str, attributes: dict[str, Any]
) -> None:
    domain = attributes.pop("domain", "com.microsoft")
    reading = model(Case(op, (2, 3), (), [(3, 5)], attributes, domain)).read(tmp_path, aliasing=Aliasing.NONE)
    assert reading.estimated == ("op",)


def test_a_result_beyond_the_first_without_a_rule_stays_an_estimate(tmp_path: Path) -> None:
    reading = model(Case("FastGelu", (2, 3), ()), ["y", "more"]).read(tmp_path)
    assert reading.estimated == ("op",)


def test_an_unknown_op_that_makes_nothing_is_no_trouble(tmp_path: Path) -> None:
    model = Model(
        [node("Relu", ["x"], ["y"]), node("Print", ["y"], [], domain="com.acme")], inputs=[float_input("x", 4)]
    )
    prepared = prepare(model.save(tmp_path), GraphOptions(mode="inference"))
    assert prepared.graph.tensors["y"].bytes == 16
