"""Node-link JSON, in both spellings of the public data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remat_cli.core.graph import Graph, Kind, Phase
from remat_cli.errors import GraphError
from remat_cli.formats import Reading, read_graph


def checkmate_style(**changes: Any) -> dict[str, Any]:
    return {
        "directed": True,
        "multigraph": False,
        "graph": {"name": "tiny_train"},
        "nodes": [
            {"name": "conv", "backward": False, "cost_cpu": 10, "cost_ram": 100, "id": 0},
            {"name": "loss", "backward": False, "cost_cpu": 1, "cost_ram": 4, "id": 1},
            {"name": "conv_backward", "backward": True, "cost_cpu": 20, "cost_ram": 100, "id": 2},
        ],
        "links": [{"source": 0, "target": 1}, {"source": 1, "target": 2}, {"source": 0, "target": 2}],
        **changes,
    }


def with_node(**changes: Any) -> dict[str, Any]:
    """The first node changed; None takes an attribute away."""
    document = checkmate_style()
    node = {key: value for key, value in (document["nodes"][0] | changes).items() if value is not None}
    return {**document, "nodes": [node, *document["nodes"][1:]]}


def layered_style(**changes: Any) -> dict[str, Any]:
    return {
        "graph": {"name": "layers", "order": [0, 2, 1]},
        "nodes": [
            {"out_cost": 5, "param_cost": 0, "duration": 3, "name": 0},
            {"out_cost": 6, "param_cost": 0, "duration": 4, "name": 1},
            {"out_cost": 7, "param_cost": 0, "duration": 5, "name": 2},
        ],
        "edges": [{"0": 0, "1": 1}, {"0": 0, "1": 2}],
        **changes,
    }


def read(tmp_path: Path, document: dict[str, Any]) -> Reading:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(document))
    return read_graph(path)


def graph_of(tmp_path: Path, document: dict[str, Any]) -> Graph:
    return read(tmp_path, document).graph


def test_a_node_is_an_op_with_one_output(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, checkmate_style())
    assert [(op.name, op.inputs, op.outputs, op.time) for op in graph.ops] == [
        ("conv", (), ("conv",), 10),
        ("loss", ("conv",), ("loss",), 1),
        ("conv_backward", ("loss", "conv"), ("conv_backward",), 20),
    ]
    assert graph.tensors["conv"].bytes == 100


def test_backward_nodes_make_it_a_training_graph(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, checkmate_style())
    assert graph.kind is Kind.TRAINING
    assert graph.ops[2].phase is Phase.BACKWARD
    assert graph.ops[2].grad_of == "conv"


def test_without_backward_nodes_it_is_an_inference_graph(tmp_path: Path) -> None:
    assert graph_of(tmp_path, layered_style()).kind is Kind.INFERENCE


def test_the_order_in_the_file_is_the_input_order(tmp_path: Path) -> None:
    assert [op.name for op in graph_of(tmp_path, layered_style()).ops] == ["0", "2", "1"]


def test_without_an_order_it_is_the_topological_one_nearest_to_the_nodes(tmp_path: Path) -> None:
    document = checkmate_style(links=[{"source": 2, "target": 0}])
    assert [op.name for op in graph_of(tmp_path, document).ops] == ["loss", "conv_backward", "conv"]


def test_repeated_links_count_once(tmp_path: Path) -> None:
    document = checkmate_style(links=[{"source": 0, "target": 1}, {"source": 0, "target": 1}])
    assert graph_of(tmp_path, document).ops[1].inputs == ("conv",)


def test_fractional_times_are_scaled_to_integers_and_told(tmp_path: Path) -> None:
    document = layered_style()
    document["nodes"][1]["duration"] = 0.25
    reading = read(tmp_path, document)
    assert [op.time for op in reading.graph.ops] == [300, 500, 25]
    assert "counted in 1/100 of the file's unit" in reading.notes[0]


def test_large_whole_times_stay_exact_beside_fractional_ones(tmp_path: Path) -> None:
    times = (2**55 + 1, 0.5, 1)
    nodes = [{"id": number, "cost_ram": 1, "cost_cpu": time} for number, time in enumerate(times)]
    assert [op.time for op in read(tmp_path, checkmate_style(nodes=nodes)).graph.ops] == [10 * (2**55 + 1), 5, 10]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no size": (with_node(cost_ram=None), "nodes[0]: has neither cost_ram nor out_cost"),
    "negative size": (with_node(cost_ram=-1), "nodes[0].cost_ram: -1 is not a number, 0 or more"),
    "fractional size": (with_node(cost_ram=1.5), "nodes[0]: size 1.5 is not a whole number"),
    "text as time": (with_node(cost_cpu="10"), "nodes[0].cost_cpu: '10' is not a number"),
    "size of 400 digits": (
        with_node(cost_ram=10**400),
        "sizes of graph 'tiny_train' add up to about 10^400, more than",
    ),
    "time of 400 digits": (
        with_node(cost_cpu=10**400),
        "times of graph 'tiny_train' add up to about 10^400, more than",
    ),
    "size of -400 digits": (with_node(cost_ram=-(10**400)), "is not a number, 0 or more"),
    "time that scaling makes too large": (
        checkmate_style(nodes=[{"id": i, "cost_ram": 1, "cost_cpu": time} for i, time in enumerate((1e308, 0.5, 1))]),
        "times of graph 'tiny_train' add up to about 10^309, more than 2^60",
    ),
    "no id": (with_node(id=None, name=None), "nodes[0]: has no id and no name"),
    "id twice": (with_node(id=1), "1 is defined twice"),
    "unknown end": (checkmate_style(links=[{"source": 0, "target": 9}]), "links[0]: 9 is not the id of a node"),
    "list as end": (checkmate_style(links=[{"source": 0, "target": [1]}]), "links[0]: [1] is not the id of a node"),
    "cycle": (
        checkmate_style(links=[{"source": 0, "target": 1}, {"source": 1, "target": 0}]),
        "the graph has a cycle: ",
    ),
    "no nodes": (checkmate_style(nodes=[]), "nodes is not a list of nodes, or is empty"),
    "order incomplete": (
        checkmate_style(graph={"order": [0, 1]}),
        "graph.order does not name every node exactly once",
    ),
    "order impossible": (checkmate_style(graph={"order": [2, 1, 0]}), "before 'loss' has produced it"),
    "links no list": (checkmate_style(links=3), "links is not a list"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_place_and_a_remedy(fault: str, tmp_path: Path) -> None:
    document, message = FAULTS[fault]
    with pytest.raises(GraphError) as caught:
        read(tmp_path, document)
    assert message in caught.value.message
    assert caught.value.hint
