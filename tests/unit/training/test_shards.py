"""Sharded parameters: what is gathered together, when, at what cost, and what becomes of the gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from remat_cli.config import GraphOptions, load_device
from remat_cli.core.graph import Graph, Kind, Op, Phase
from remat_cli.core.operators import Operand, Operator, Role
from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.costs import Device
from remat_cli.errors import GraphError
from remat_cli.generate.llama import Llama
from remat_cli.prepare import prepare
from remat_cli.synthesis import synthesize
from remat_cli.training import sharded_blocks, with_step_gathers
from tests.graphs import graph_of, op
from tests.places import GRAPHS
from tests.unit.formats.onnx.models import Model, float_input, node, weight

SMALL = Llama(layers=2, width=64, heads=4, groups=2, hidden=128, sequence=32, vocabulary=100)
RANKS = 3
LAYER = 2 * (2 * 64 + 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
TABLE = 2 * 64 * 100


def step(ranks: int | None = RANKS, optimizer: str = "adam") -> Graph:
    return synthesize(SMALL, GraphOptions(device="h100", ranks=ranks, optimizer=optimizer)).graph


def of_type(graph: Graph, type_: str) -> dict[str, Op]:
    return {each.name.split(".all_gather")[0]: each for each in graph.ops if each.type == type_}


def parameter(name: str, dtype: str = "float32") -> Operand:
    return Operand(name, Role.PARAMETER, (5,), dtype, 20)


def test_each_block_is_gathered_as_one_right_before_it_is_read_first() -> None:
    graph = step()
    gathers = of_type(graph, "AllGather")
    sizes = {name: graph.tensors[each.outputs[0]].bytes for name, each in gathers.items()}
    assert sizes == {"embed": TABLE, "layer1": LAYER, "layer2": LAYER, "final.norm": 2 * 64, "head": TABLE}
    names = [each.name for each in graph.ops]
    for name, each in gathers.items():
        readers = [reader.name for reader in graph.consumers[each.outputs[0]]]
        assert names.index(each.name) == names.index(readers[0]) - 1, name
        assert all(graph.tensors[made].view_of == each.outputs[0] for made in each.outputs[1:])


def test_shards_are_inputs_and_the_rest_of_the_state_is_that_of_one_rank() -> None:
    whole, graph = step(ranks=None), step()
    shards = {name: -(-size // RANKS) for name, size in {"embed": TABLE, "layer1": LAYER, "final.norm": 128}.items()}
    assert {name: graph.tensors[f"{name}.shard"].bytes for name in shards} == shards
    assert all(f"{name}.shard" in graph.inputs for name in shards)
    trained = 2 * (TABLE + LAYER) + 128
    of_one_rank = sum(tensor.bytes for name, tensor in graph.tensors.items() if name.endswith(".shard"))
    # Adam's two moments; parameters are inputs, and gradients are made.
    assert graph.resident_bytes == whole.resident_bytes - 4 * trained + 2 * of_one_rank


def test_gradients_of_a_block_are_scattered_as_soon_as_all_are_there() -> None:
    graph = step()
    scatters = of_type(graph, "ReduceScatter")
    assert list(scatters) == ["head", "final.norm", "layer2", "layer1", "embed"]
    names = [each.name for each in graph.ops]
    for name, each in scatters.items():
        assert not each.recomputable
        (shard,) = each.outputs
        assert graph.tensors[shard].bytes == graph.tensors[f"{name}.shard"].bytes
        assert shard in graph.outputs
        assert max(names.index(graph.producer[read].name) for read in each.inputs) < names.index(each.name)
    gathered = of_type(graph, "AllGather")["layer1"].outputs[1:]
    assert set(scatters["layer1"].inputs) == {f"{name}.grad" for name in gathered}
    assert sum(graph.tensors[name].bytes for name in scatters["layer1"].inputs) == LAYER


def test_all_other_ops_and_their_times_stay() -> None:
    whole, graph = step(ranks=None), step()
    collectives = {each.name for kind in ("AllGather", "ReduceScatter") for each in of_type(graph, kind).values()}
    assert {each.name: each.time for each in graph.ops if each.name not in collectives} == {
        each.name: each.time for each in whole.ops
    }
    # Two thirds of the bytes come from others, at 450 GB/s of which 80 % are reached.
    assert graph.op["layer1.all_gather"].time == 20_000 + -(-LAYER * 2 * 10**9 // (3 * 360_000_000_000))
    assert graph.op["layer1.all_gather.backward"].time == graph.op["layer1.all_gather"].time


def test_the_backward_reads_the_parameters_that_its_gradients_need_and_no_others() -> None:
    graph = step()
    reads = {each.name: [name for name in each.inputs if name.endswith(".weight")] for each in graph.ops}
    assert reads["layer1.mlp.up.backward"] == ["layer1.mlp.up.weight"]
    assert reads["layer1.mlp.norm.backward"] == ["layer1.mlp.norm.weight"]
    assert reads["embed.backward"] == []  # the gradient of a table reads which rows were taken


def test_the_plain_run_never_gathers_again_and_can_be_replayed() -> None:
    trace = simulate(graph := step(), plain_run(graph))
    assert trace.time == graph.total_time


def test_a_parameter_that_two_blocks_read_is_gathered_once_and_has_one_gradient(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "a.0.w"], ["h"]),
        node("MatMul", ["h", "a.1.w"], ["g"]),
        node("MatMul", ["g", "a.0.w"], ["y"]),
    ]
    stored = [weight("a.0.w", 8, 8), weight("a.1.w", 8, 8)]
    model = Model(nodes, inputs=[float_input("x", 4, 8)], stored=stored).save(tmp_path)
    graph = prepare(model, GraphOptions(device="a100", ranks=2)).graph
    assert list(of_type(graph, "AllGather")) == ["a.0", "a.1"]
    (summed,) = graph.op["a.0.all_gather.backward"].inputs
    assert graph.producer[summed].type == "GradientAccumulation"
    assert graph.tensors[summed].bytes == 8 * 8 * 4


@pytest.mark.parametrize(
    ("names", "blocks"),
    [
        (("model.layers.0.q", "model.layers.0.mlp.up", "model.layers.1.q"), {"model.layers.0": 2, "model.layers.1": 1}),
        (("h.3.w", "head.weight", "head.bias", "w"), {"h.3": 1, "head": 2, "w": 1}),
        (("conv1", "conv2"), {"conv1": 1, "conv2": 1}),
        (("onnx::MatMul_7", "onnx::MatMul_9"), {"layers.4": 2}),
    ],
)
def test_a_block_is_what_names_have_in_common_up_to_a_number(names: tuple[str, ...], blocks: dict[str, int]) -> None:

    module = "layers.4.mlp" if names[0].startswith("onnx") else None
    graph = graph_of(replace(op("f", "x", "y"), module=module))
    operators = {"f": Operator("Sum", tuple(map(parameter, names)), ())}
    found = sharded_blocks(graph, operators, map(parameter, names), ranks=8)
    assert {block.name: len(block.parameters) for block in found} == blocks
    assert all(block.shard.bytes == -(-20 * len(block.parameters) // 8) for block in found)


def test_parameters_of_other_element_types_are_gathered_apart() -> None:
    graph = graph_of(op("f", "x", "y"))
    given = [parameter("a.0.w"), parameter("a.0.norm", "bfloat16")]

    found = sharded_blocks(graph, {"f": Operator("Sum", tuple(given), ())}, given, ranks=2)
    assert [block.parameters for block in found] == [(given[0],), (given[1],)]


def test_a_device_profile_that_comes_with_remat_tells_how_nodes_are_joined() -> None:

    device = load_device("h100")
    assert isinstance(device, Device)
    # 8 nodes of 8: 400 GB/s a node, which its NVLink exceeds.
    assert device.collective_time(10**9, 64) == 20_000 + -(-(10**9) * 63 * 10**9 // (64 * 320 * 10**9))


class TestStepWithItsBackward:
    """x -> a.0 -> h -> a.1 -> y and back; `w` and `b` are parameters of a.0, `v` is one of a.1."""

    FORWARD = (op("f0", "x a.0.w a.0.b", "h"), op("f1", "h a.1.v", "y"), op("loss", "y", "dy", phase=Phase.BACKWARD))
    BACKWARD = (
        op("b1", "dy a.1.v", "dh", phase=Phase.BACKWARD),
        op("w1", "dy h", "dv", phase=Phase.BACKWARD),
        op("w0", "dh x", "dw db", phase=Phase.BACKWARD),
    )
    GRADIENTS: ClassVar = {"a.0.w": "dw", "a.0.b": "db", "a.1.v": "dv"}

    def sharded(self, *ops: Op, gradients: Mapping[str, str] = GRADIENTS) -> Graph:
        outputs = ("y", *dict.fromkeys(gradients.values()))
        sizes = {"a.0.w": 20, "a.0.b": 20, "a.1.v": 20, "dw": 20, "db": 20, "dv": 20}
        step = graph_of(*ops, sizes=sizes, outputs=outputs, kind=Kind.TRAINING)
        operators = {each.name: Operator("Test", (), ()) for each in step.ops}
        blocks = sharded_blocks(step, operators, map(parameter, gradients), ranks=4)
        return with_step_gathers(step, gradients, blocks, lambda size: size // 2).checked()

    def test_gathers_come_before_the_first_reader_and_scatters_after_the_last_gradient(self) -> None:
        graph = self.sharded(*self.FORWARD, *self.BACKWARD)
        names = "a.0.all_gather f0 a.1.all_gather f1 loss b1 w1 a.1.all_gather.backward w0 a.0.all_gather.backward"
        assert [each.name for each in graph.ops] == names.split()
        assert graph.op["a.0.all_gather.backward"].inputs == ("dw", "db")
        assert [graph.op[f"a.{block}.all_gather"].time for block in (0, 1)] == [20, 10]
        assert graph.outputs == ("y", "a.0.shard.grad", "a.1.shard.grad")
        assert {name: graph.tensors[name].bytes for name in graph.inputs} == {"x": 1, "a.0.shard": 10, "a.1.shard": 5}
        assert graph.op["b1"].inputs == ("dy", "a.1.v", "a.1.gathered")

    def test_a_gradient_that_the_step_does_not_make_is_named(self) -> None:
        given = {"a.0.w": "dw", "a.0.b": "x", "a.1.v": "dv"}
        with pytest.raises(GraphError, match=r"block 'a.0' cannot be sharded: .* gradient 'x'"):
            self.sharded(*self.FORWARD, *self.BACKWARD, gradients=given)


def test_a_pytorch_step_has_the_collectives_of_its_modules() -> None:
    options = GraphOptions(device="h100", dims={"batch": 2}, optimizer="adam", ranks=2)
    prepared = prepare(GRAPHS / "train.py:step", options)
    graph = prepared.graph
    gathered = {name: graph.tensors[each.outputs[0]].bytes for name, each in of_type(graph, "AllGather").items()}
    elements = {"features.0": 10 * 32, "features.1": 64, "features.4": 289 * 64, "features.5": 128, "head.2": 31_370}
    assert gathered == {name: 4 * count for name, count in elements.items()}
    for name, each in of_type(graph, "ReduceScatter").items():
        assert sum(graph.tensors[read].bytes for read in each.inputs) == gathered[name]
        assert graph.tensors[f"{name}.shard"].bytes == gathered[name] // 2
    assert prepared.parameter_bytes == sum(gathered.values()) // 2
    assert graph.resident_bytes == 2 * prepared.parameter_bytes  # the two moments
    assert simulate(graph, plain_run(graph)).time == graph.total_time
