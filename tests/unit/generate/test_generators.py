"""Generators: each family makes what its docstring says, the same bytes for the same options."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from math import ceil, floor, sqrt
from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Graph, Kind, Op
from remat_cli.core.solve import baseline_of
from remat_cli.errors import UsageError
from remat_cli.formats.native import from_document, graph_bytes
from remat_cli.generate import GENERATORS, Generator
from remat_cli.generate.chain import Chain
from remat_cli.generate.layered import Layered
from remat_cli.generate.llama import Llama
from remat_cli.generate.transformer import Transformer
from remat_cli.generate.unet import UNet
from remat_cli.prepare import prepare
from remat_cli.reports.terminal.planner_cards import planner_cards
from remat_cli.synthesis import synthesize
from tests.documents import to_document
from tests.places import GRAPHS

FLOAT_BYTES = 4


def grown(generator: Generator, value: int) -> Generator:
    changed: Mapping[str, int] = {generator.grows_by: value}
    return dataclasses.replace(generator, **changed)


class TestEveryFamily:
    @pytest.mark.parametrize("family", GENERATORS)
    def test_describes_itself_and_all_its_options(self, family: str) -> None:
        (card,) = planner_cards({family: GENERATORS[family]})
        assert card.summary.endswith(".")
        assert list(card.facts) == ["Source", "Makes", "Size"]
        assert all(option.meaning for option in card.options)
        assert all(option.default != "required" for option in card.options)
        assert GENERATORS[family].grows_by in {option.name for option in card.options}

    @pytest.mark.parametrize("family", GENERATORS)
    def test_the_same_options_make_the_same_bytes_in_every_process(self, family: str) -> None:
        script = (
            "import hashlib; from remat_cli.generate import GENERATORS; from remat_cli.synthesis import synthesize;"
            "from remat_cli.formats.native import graph_bytes;"
            f"print(hashlib.sha256(graph_bytes(synthesize(GENERATORS[{family!r}]()).graph)).hexdigest())"
        )
        hashes = {
            subprocess.run(
                [sys.executable, "-c", script],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                check=True,
                text=True,
            ).stdout
            for seed in ("1", "2")
        }
        assert len(hashes) == 1

    @pytest.mark.parametrize("family", GENERATORS)
    def test_is_read_back_as_it_was_made(self, family: str) -> None:
        graph = synthesize(GENERATORS[family]()).graph
        assert graph_bytes(from_document(to_document(graph), "file").graph) == graph_bytes(graph)

    @pytest.mark.parametrize("family", GENERATORS)
    def test_grows_by_the_same_number_of_ops_each_time(self, family: str) -> None:
        counts = [len(synthesize(grown(GENERATORS[family](), length)).graph.ops) for length in range(4, 8)]
        assert len({later - earlier for earlier, later in pairwise(counts)}) == 1
        assert counts[1] > counts[0]

    @pytest.mark.parametrize("generator", [Layered(), Chain(spread=2.0)])
    def test_the_seed_decides_what_is_drawn(self, generator: Generator) -> None:
        graphs = [synthesize(dataclasses.replace(generator, **{"seed": seed})).graph for seed in (0, 1)]
        assert len({graph.name for graph in graphs}) == 2
        assert [t.bytes for t in graphs[0].tensors.values()] != [t.bytes for t in graphs[1].tensors.values()]


@pytest.mark.parametrize(
    ("family", "options", "named"),
    [
        (Layered, {"nodes": 2}, "nodes"),
        (Layered, {"width": 0.0}, "width"),
        (Layered, {"edge_density": 1.5}, "edge_density"),
        (Layered, {"skip_density": 1.0}, "skip_density"),
        (Transformer, {"layers": 0}, "layers"),
        (Transformer, {"width": 100}, "width"),
        (Llama, {"hidden": 0}, "hidden"),
        (Llama, {"width": 100}, "width"),
        (Llama, {"groups": 5}, "groups"),
        (UNet, {"levels": 0}, "levels"),
        (UNet, {"image": 100}, "image"),
        (Chain, {"length": 0}, "length"),
        (Chain, {"spread": 0.5}, "spread"),
        (Chain, {"bytes": -1}, "bytes"),
    ],
)
def test_an_option_out_of_its_range_is_named(family: type, options: Mapping[str, float], named: str) -> None:
    with pytest.raises(UsageError, match=f"^{named} is") as error:
        family(**options)
    assert error.value.hint


class TestLayered:
    @staticmethod
    def layers(graph: Graph) -> dict[str, int]:
        """Return the layer of each op, its longest path to the source: each op reads one of the layer before."""
        layer: dict[str, int] = {}
        for op in graph.ops:
            layer[op.name] = 1 + max((layer[name] for name in op.inputs), default=-1)
        return layer

    @given(
        nodes=st.integers(3, 120),
        width=st.floats(0.05, 0.9),
        variability=st.floats(0, 1),
        density=st.floats(0, 1),
        skips=st.floats(0, 0.5),
        seed=st.integers(0, 9),
    )
    def test_has_one_source_one_sink_and_everything_between(
        self, nodes: int, width: float, variability: float, density: float, skips: float, seed: int
    ) -> None:
        graph = Layered(nodes, width, variability, density, skips, seed).generate().graph
        assert len(graph.ops) == nodes
        assert graph.kind is Kind.INFERENCE
        assert [op.name for op in graph.ops if not op.inputs] == ["0"]
        assert graph.outputs == (str(nodes - 1),)
        assert {graph.op[name].time for name in ("0", str(nodes - 1))} == {0}
        assert all(tensor.bytes > 0 and tensor.bytes % 10 == 0 for tensor in graph.tensors.values())

    @pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
    @pytest.mark.parametrize("seed", [0, 1])
    def test_neighbouring_layers_have_as_many_edges_as_the_density_says(self, density: float, seed: int) -> None:
        graph = Layered(nodes=150, edge_density=density, seed=seed).generate().graph
        layer = self.layers(graph)
        widths = Counter(layer.values())
        edges = Counter(
            (layer[name], layer[op.name]) for op in graph.ops for name in op.inputs if layer[op.name] - layer[name] == 1
        )
        for (upper, lower), found in edges.items():
            narrow, wide = sorted((widths[upper], widths[lower]))
            assert found == round(density * narrow * wide + (1 - density) * wide)

    def test_layers_are_as_wide_and_as_many_as_the_options_say(self) -> None:
        options = Layered(nodes=1000, width=0.31)
        widths = Counter(self.layers(options.generate().graph).values())
        between = [widths[layer] for layer in range(1, max(widths))]
        average = 998 / ceil(sqrt(998 * (1 / 0.31 - 1)))
        assert widths[0] == widths[max(widths)] == 1
        assert min(between[:-1]) >= ceil(0.25 * average)
        assert max(between) <= floor(1.75 * average)
        assert len(between) == pytest.approx(998 / average, rel=0.25)

    def test_skips_pass_over_a_layer_and_are_their_share_of_the_edges(self) -> None:
        graph = Layered(nodes=1000, skip_density=0.3).generate().graph
        layer = self.layers(graph)
        spans = [layer[op.name] - layer[name] for op in graph.ops for name in op.inputs]
        share = sum(span > 1 for span in spans) / len(spans)
        assert 0.26 < share <= 0.3  # those that were drawn twice are missing

    def test_without_skips_every_edge_goes_to_the_next_layer(self) -> None:
        graph = Layered(nodes=200, skip_density=0.0).generate().graph
        layer = self.layers(graph)
        assert {layer[op.name] - layer[name] for op in graph.ops for name in op.inputs} == {1}

    def test_the_ops_stand_in_a_random_order(self) -> None:
        orders = {tuple(op.name for op in Layered(seed=seed).generate().graph.ops) for seed in range(5)}
        assert len(orders) == 5
        assert tuple(map(str, range(100))) not in orders


FIGURES = (
    "edges", "layers", "skips", "inputs", "readers", "size", "size deviation", "time", "time deviation", "peak",
)  # fmt: skip
# Measured of the random layered graphs that were published with MOCCASIN (rl_n100.json and others).
PUBLISHED = {
    100: (236, 20, 0.1398, 1.4458, 1.3905, 2041.08, 1591.089, 487.4388, 293.2425, 0.2269),
    250: (944, 23, 0.1367, 3.2047, 2.0011, 2043.436, 1699.2037, 506.3266, 278.1619, 0.2874),
    500: (2461, 32, 0.1345, 2.7026, 2.477, 2017.652, 1615.4564, 512.6546, 289.8999, 0.282),
    1000: (5875, 50, 0.1384, 2.9451, 2.8179, 1953.852, 1576.8074, 498.2665, 297.3419, 0.3115),
}


class TestLayeredAgainstThePublicFiles:
    """Each figure of a public file lies within four standard deviations of what the seeds give."""

    @staticmethod
    def figures(graph: Graph) -> dict[str, float]:
        layer = TestLayered.layers(graph)
        reads = [len(op.inputs) for op in graph.ops]
        readers = Counter(name for op in graph.ops for name in op.inputs)
        sizes = [tensor.bytes for tensor in graph.tensors.values()]
        skips = sum(layer[op.name] - layer[name] > 1 for op in graph.ops for name in op.inputs)
        times = [op.time for op in graph.ops if op.time]
        return {
            "edges": sum(reads),
            "layers": max(layer.values()),
            "skips": skips / sum(reads),
            "inputs": pstdev(reads),
            "readers": pstdev(readers.values()),
            "size": mean(sizes),
            "size deviation": pstdev(sizes),
            "time": mean(times),
            "time deviation": pstdev(times),
            "peak": baseline_of(graph).peak_bytes / sum(sizes),
        }

    @pytest.mark.parametrize(("nodes", "width"), [(100, 0.27), (250, 0.43), (500, 0.36), (1000, 0.31)])
    def test_figures_of_the_file_are_those_of_a_draw(self, nodes: int, width: float) -> None:
        public = dict(zip(FIGURES, PUBLISHED[nodes], strict=True))
        drawn = [self.figures(Layered(nodes, width, seed=seed).generate().graph) for seed in range(12)]
        off = {
            name: (value - mean(each[name] for each in drawn)) / pstdev(each[name] for each in drawn)
            for name, value in public.items()
        }
        assert {name: round(deviations, 1) for name, deviations in off.items() if abs(deviations) > 4} == {}


class TestTransformer:
    def test_does_the_work_of_the_same_model_read_from_onnx(self) -> None:
        ours = synthesize(Transformer(layers=6, width=512, heads=8, sequence=512, batch=8, vocabulary=32_000))
        onnx = prepare(GRAPHS / "gpt.onnx", GraphOptions(dims={"batch": 8, "seq": 512}))
        assert sum(op.flops or 0 for op in ours.graph.ops) == sum(op.flops or 0 for op in onnx.graph.ops)
        assert ours.kept is not None
        assert onnx.kept is not None
        assert ours.kept.float_bytes == onnx.kept.float_bytes
        # The file holds 1024 positions, of which ours has the 512 that are used, and computes its mask.
        assert onnx.parameter_bytes - ours.parameter_bytes == 512 * 512 * FLOAT_BYTES
        assert baseline_of(ours.graph).time == pytest.approx(baseline_of(onnx.graph).time, rel=0.01)

    def test_gpt2_has_the_parameters_that_it_is_known_for(self) -> None:
        model = Transformer(layers=12, width=768, heads=12, sequence=1024, batch=1, vocabulary=50_257).generate()
        untied = [parameter.elements for parameter in model.parameters if parameter.name != "head.weight"]
        assert sum(untied) == 124_439_808

    def test_attention_weights_are_kept_unless_attention_is_fused(self) -> None:
        square = 2 * 4 * 64 * 64 * FLOAT_BYTES

        def kept(fused: bool) -> list[int]:
            options = Transformer(2, width=32, heads=4, sequence=64, batch=2, vocabulary=10, fused_attention=fused)
            prepared = synthesize(options)
            assert prepared.kept is not None
            return [prepared.graph.tensors[name].bytes for name in prepared.kept.tensors]

        assert kept(False).count(square) == 2
        assert square not in kept(True)

    def test_splitting_and_turning_make_views(self) -> None:
        graph = Transformer(layers=1).generate().graph
        views = {op.type for op in graph.ops if all(graph.tensors[name].view_of for name in op.outputs)}
        assert views == {"Split", "Reshape", "Transpose"}


class TestLlama:
    @pytest.mark.parametrize(
        ("model", "parameters"),
        [(Llama(), 8_030_261_248), (Llama(layers=80, width=8192, heads=64, hidden=28_672), 70_553_706_496)],
    )
    def test_has_the_parameters_that_it_is_known_for(self, model: Llama, parameters: int) -> None:
        assert sum(parameter.elements for parameter in model.generate().parameters) == parameters

    def test_grows_by_the_ops_that_it_says(self) -> None:
        for kind, each in ((Kind.FORWARD, 16), (Kind.TRAINING, 37)):
            one, two = (len(synthesize(Llama(layers=layers), kind=kind).graph.ops) for layers in (1, 2))
            assert two - one == each


class TestUNet:
    def test_needs_what_the_same_model_read_from_onnx_needs(self) -> None:
        ours = synthesize(UNet(levels=4, convolutions=2, width=64, image=256, batch=8, classes=2))
        onnx = prepare(GRAPHS / "unet.onnx", GraphOptions(dims={"batch": 8}))
        assert Counter(op.type for op in ours.graph.ops) == Counter(op.type for op in onnx.graph.ops)
        assert baseline_of(ours.graph).peak_bytes == baseline_of(onnx.graph).peak_bytes
        assert sum(op.flops or 0 for op in ours.graph.ops) == sum(op.flops or 0 for op in onnx.graph.ops)
        assert (ours.kept, ours.parameter_bytes) == (onnx.kept, onnx.parameter_bytes)

    def test_each_level_halves_the_image_and_doubles_the_channels(self) -> None:
        graph = UNet(levels=3, convolutions=1, width=8, image=32, batch=2).generate().graph
        shapes = [graph.tensors[f"{name}.conv1"].shape for name in ("down1", "down2", "down3", "bottom", "up3", "up1")]
        assert shapes == [(2, 8, 32, 32), (2, 16, 16, 16), (2, 32, 8, 8), (2, 64, 4, 4), (2, 32, 8, 8), (2, 8, 32, 32)]


class TestChain:
    @staticmethod
    def ops(chain: Chain) -> tuple[Op, ...]:
        return chain.generate().graph.ops

    def test_uniform_ops_are_all_alike(self) -> None:
        graph = Chain(length=5, bytes=7, time=3).generate().graph
        assert {tensor.bytes for tensor in graph.tensors.values()} == {7}
        assert {op.time for op in graph.ops} == {3}
        assert [op.inputs for op in graph.ops] == [(f"x{number}",) for number in range(5)]

    def test_spread_ops_lie_within_their_factor_of_the_middle(self) -> None:
        graph = Chain(length=400, bytes=1000, time=1000, spread=4.0).generate().graph
        for values in ([t.bytes for t in graph.tensors.values()], [op.time for op in graph.ops]):
            assert 250 <= min(values) < 300
            assert 3500 < max(values) <= 4000
            assert 0.4 < mean(value > 1000 for value in values) < 0.6

    def test_its_backward_reads_what_the_op_read_and_takes_twice_as_long(self) -> None:
        graph = synthesize(Chain(length=3, time=5)).graph
        assert [op.name for op in graph.ops[3:]] == ["loss", "f3.backward", "f2.backward", "f1.backward"]
        assert graph.op["f2.backward"].inputs == ("x2.grad", "x1")
        assert graph.op["f2.backward"].time == 10
