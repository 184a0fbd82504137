"""From a generator to the graph that is planned: kinds, sizes and costs."""

from __future__ import annotations

import json

import pytest

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Kind, Phase
from remat_cli.errors import UsageError
from remat_cli.formats.native import from_document, graph_bytes
from remat_cli.generate import GENERATORS
from remat_cli.generate.chain import Chain
from remat_cli.generate.layered import Layered
from remat_cli.generate.transformer import Transformer
from remat_cli.generate.unet import UNet
from remat_cli.synthesis import synthesize
from remat_cli.training import training_graph

SMALL = UNet(levels=2, convolutions=1, width=4, image=16, batch=2)


def test_a_forward_graph_is_trained_unless_another_kind_is_asked_for() -> None:
    assert synthesize(SMALL).graph.kind is Kind.TRAINING
    assert any(op.phase is Phase.BACKWARD for op in synthesize(SMALL).graph.ops)
    for kind in Kind:
        assert synthesize(SMALL, kind=kind).graph.kind is kind


def test_a_graph_for_inference_has_no_training_graph() -> None:
    assert synthesize(Layered()).graph.kind is Kind.INFERENCE
    assert synthesize(Layered(), kind=Kind.INFERENCE).graph.kind is Kind.INFERENCE
    for kind in (Kind.FORWARD, Kind.TRAINING):
        with pytest.raises(UsageError, match="made for inference"):
            synthesize(Layered(), kind=kind)


@pytest.mark.parametrize("generator", [SMALL, Chain(length=5, spread=3.0)])
def test_the_forward_graph_as_a_file_gives_the_same_training_graph(generator: UNet | Chain) -> None:
    forward = from_document(json.loads(graph_bytes(synthesize(generator, kind=Kind.FORWARD).graph)), "file").graph
    direct, derived = synthesize(generator).graph, training_graph(forward)
    assert derived.tensors == direct.tensors
    assert [(op.name, op.inputs, op.outputs, op.time) for op in derived.ops] == [
        (op.name, op.inputs, op.outputs, op.time) for op in direct.ops
    ]


@pytest.mark.parametrize("family", GENERATORS)
@pytest.mark.parametrize("ops", [10, 500, 2_000])
def test_the_length_is_chosen_for_the_number_of_ops(family: str, ops: int) -> None:
    generator = GENERATORS[family]()
    one = len(synthesize(generator, ops=1_000).graph.ops)
    step = {"layered": 1, "transformer": 56, "llama": 37, "unet": 54, "chain": 2}[family]
    found = len(synthesize(generator, ops=ops).graph.ops)
    shortest = {"layered": 3, "transformer": 65, "llama": 44, "unet": 85, "chain": 3}[family]
    assert abs(found - max(ops, shortest)) <= step / 2
    assert abs(one - 1_000) <= step / 2


def test_the_length_counts_the_ops_of_the_kind_that_is_made() -> None:
    assert len(synthesize(Chain(), kind=Kind.FORWARD, ops=300).graph.ops) == 300
    assert len(synthesize(Chain(), ops=301).graph.ops) == 301


def test_costs_and_optimizer_are_those_asked_for() -> None:
    default, slow = synthesize(SMALL), synthesize(SMALL, GraphOptions(cost_model="unit"))
    assert (default.graph.time_unit, slow.graph.time_unit) == ("ns", "unit")
    adam = synthesize(SMALL, GraphOptions(optimizer="adam"))
    assert adam.graph.resident_bytes - default.graph.resident_bytes == 2 * default.parameter_bytes
    with pytest.raises(UsageError, match="an optimizer needs a file"):
        synthesize(Chain(), GraphOptions(optimizer="adam"))


def test_large_graphs_are_made_and_hold_together() -> None:
    prepared = synthesize(Transformer(), ops=10_000)
    assert len(prepared.graph.ops) == pytest.approx(10_000, abs=28)
    blocks = [op.type for op in prepared.graph.ops if op.name.startswith("layer7.")]
    assert blocks == [op.type for op in prepared.graph.ops if op.name.startswith("layer70.")]
