"""The graphs of the seven networks of Kusumoto et al. 2019 have the paper's numbers of vertices and known sizes.

Figures beyond the paper's own number of vertices come from graphs that were built independently of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import pytest

from remat_cli.core.graph import Graph, Kind
from remat_cli.formats import read_graph
from remat_cli.planners.published.lower_sets.dp import LowerSetDP
from remat_cli.planners.published.lower_sets.families import pruned_family
from remat_cli.planners.shared.forward_part import ForwardPart
from remat_cli.training.derive import training_graph
from tests.places import GRAPHS

TABLE1 = GRAPHS / "table1"


@dataclass(frozen=True)
class Figures:
    """What is known of one network; GB and MB are powers of ten, to the digits given."""

    input_shape: tuple[int, ...]
    vertices: int
    edges: int
    values_gb: float
    parameters_mb: float
    lower_sets: int
    smallest_budget_gb: float  # of the approximate DP


FIGURES = {
    "pspnet": Figures((2, 3, 713, 713), 385, 422, 14.70, 282.1, 12533, 2.454),
    "unet": Figures((8, 1, 572, 572), 60, 63, 11.46, 124.1, 331, 5.225),
    "resnet50": Figures((96, 3, 224, 224), 176, 191, 13.82, 102.2, 241, 3.931),
    "resnet152": Figures((48, 3, 224, 224), 516, 565, 14.96, 240.8, 581, 2.197),
    "vgg19": Figures((64, 3, 224, 224), 46, 45, 8.01, 574.7, 47, 4.213),
    "densenet161": Figures((32, 3, 224, 224), 568, 645, 11.66, 114.7, 569, 1.676),
    "googlenet": Figures((256, 3, 224, 224), 134, 162, 10.19, 53.5, 27358, 3.905),
}
every_network = pytest.mark.parametrize("name", FIGURES)

# What Chainer 5 retains of an op's inputs and outputs.
SAVES_INPUT = {"Conv", "Gemm", "BatchNormalization", "MaxPool", "AveragePool", "LRN"}
SAVES_OUTPUT = {"Relu", "MaxPool", "AveragePool", "LRN"}


@cache
def network(name: str) -> Graph:
    return read_graph(TABLE1 / f"{name}.json").graph


def predecessors(graph: Graph) -> list[list[int]]:
    """Return for each op the numbers of those it reads; the graph input is no vertex."""
    number = {op.name: v for v, op in enumerate(graph.ops)}
    return [[number[name] for name in op.inputs if name in number] for op in graph.ops]


@every_network
def test_the_input_has_the_papers_batch_and_size(name: str) -> None:
    graph = network(name)
    assert graph.inputs == ("x",)
    assert graph.tensors["x"].shape == FIGURES[name].input_shape


@every_network
def test_vertices_and_edges_have_the_known_numbers(name: str) -> None:
    graph = network(name)
    assert len(graph.ops) == FIGURES[name].vertices
    assert sum(map(len, predecessors(graph))) == FIGURES[name].edges


@every_network
def test_every_op_makes_one_float32_value_of_its_own_name(name: str) -> None:
    graph = network(name)
    assert graph.kind is Kind.FORWARD
    assert all(op.outputs == (op.name,) for op in graph.ops)
    for tensor in graph.tensors.values():
        assert tensor.shape is not None
        assert (tensor.dtype, tensor.bytes) == ("float32", 4 * prod(tensor.shape)), tensor.name


@every_network
def test_the_only_sink_is_a_scalar_loss(name: str) -> None:
    graph = network(name)
    read = {source for sources in predecessors(graph) for source in sources}
    assert [op.name for v, op in enumerate(graph.ops) if v not in read] == ["loss"]
    assert graph.outputs == ("loss",)
    assert graph.tensors["loss"].bytes == 4


@every_network
def test_values_add_up_to_the_known_size(name: str) -> None:
    graph = network(name)
    assert round(sum(graph.tensors[op.name].bytes for op in graph.ops) / 1e9, 2) == FIGURES[name].values_gb


@every_network
def test_resident_are_statistics_and_twice_the_parameters(name: str) -> None:
    graph = network(name)
    norms = [graph.tensors[op.name] for op in graph.ops if op.type == "BatchNormalization"]
    statistics = sum(2 * 4 * norm.shape[1] for norm in norms if norm.shape)
    assert round((graph.resident_bytes - statistics) / 2 / 1e6, 1) == FIGURES[name].parameters_mb


@every_network
def test_a_convolution_takes_ten_units_and_anything_else_one(name: str) -> None:
    graph = network(name)
    assert graph.time_unit == "unit"
    assert all(op.time == (10 if op.type == "Conv" else 1) for op in graph.ops)


@every_network
def test_ops_save_what_chainer_retains(name: str) -> None:
    for op in network(name).ops:
        saves = (*(op.inputs if op.type in SAVES_INPUT else ()), *(op.outputs if op.type in SAVES_OUTPUT else ()))
        assert op.saves == saves, op.name


@every_network
def test_the_number_of_lower_sets_is_the_known_one(name: str) -> None:
    assert count_lower_sets(predecessors(network(name))) == FIGURES[name].lower_sets


def count_lower_sets(reads: Sequence[Sequence[int]]) -> int:
    """Count by size, from the empty set up: each set as the bits of its vertices, beside those that may join next."""
    needs = [sum(1 << source for source in sources) for sources in reads]
    readers = [[v for v, sources in enumerate(reads) if u in sources] for u in range(len(reads))]
    layer = {0: [v for v, mask in enumerate(needs) if mask == 0]}
    count = 0
    while layer:
        count += len(layer)
        larger: dict[int, list[int]] = {}
        for members, ready in layer.items():
            for v in ready:
                joined = members | 1 << v
                if joined not in larger:
                    freed = [w for w in readers[v] if needs[w] & ~joined == 0]
                    larger[joined] = [w for w in ready if w != v] + freed
        layer = larger
    return count


@pytest.mark.parametrize(
    ("reads", "count"),
    [([[], [0], [1]], 4), ([[], [], []], 8), ([[], [0], [0], [1, 2]], 6)],
    ids=["chain", "independent", "diamond"],
)
def test_counting_lower_sets_is_right_on_graphs_counted_by_hand(reads: list[list[int]], count: int) -> None:
    assert count_lower_sets(reads) == count


@pytest.mark.parametrize("name", ["vgg19", "densenet161"])
def test_the_order_is_total_where_each_op_reads_the_one_before(name: str) -> None:
    assert all(v - 1 in sources for v, sources in enumerate(predecessors(network(name))) if v > 0)


@every_network
def test_the_approximate_dp_needs_the_known_smallest_budget(name: str) -> None:
    forward = ForwardPart.of(training_graph(network(name)), "approx_dp")
    smallest = LowerSetDP(pruned_family(forward), slots=1000).smallest_budget()
    assert round(smallest / 1e9, 3) == FIGURES[name].smallest_budget_gb
