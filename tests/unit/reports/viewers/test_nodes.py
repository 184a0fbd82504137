"""A plan on the user's own graph: what each node is told, and Model Explorer's own classes take the file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from remat_cli.core.link import Duplex
from remat_cli.core.simulate import simulate
from remat_cli.reports.timeline import Run
from remat_cli.reports.viewers.decisions import Decision, decided
from remat_cli.reports.viewers.nodes import COLOURS, node_facts, nodes_bytes
from tests.graphs import training_chain
from tests.unit.reports.rendering import moving, two_again


@pytest.fixture
def run() -> Run:
    graph = training_chain(6)
    schedule = two_again(graph)
    return Run(graph, schedule, simulate(graph, schedule))


def nodes_of(run: Run) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(nodes_bytes(run))
    return document


def test_each_op_of_the_forward_pass_has_a_decision(run: Run) -> None:
    found = {item.op: item for item in decided(run)}
    forward = [op.name for op in run.graph.ops if op.phase.value == "forward"]
    assert list(found) == forward
    assert [item.op for item in found.values() if item.main is Decision.RECOMPUTE] == ["f1", "f2"]
    for name in ("f1", "f2"):
        (step,) = found[name].recomputed_at
        assert getattr(run.schedule.steps[step], "op", None) == name
    assert found["f3"].main is Decision.KEEP


def test_what_is_moved_to_the_host_says_so() -> None:
    found = {item.op: str(item) for item in decided(moving(Duplex.FULL))}
    assert found["f1"] == "offload"


@pytest.mark.parametrize(("name", "is_split"), [("f1_part0", True), ("f1_part12_1", True), ("f1_partial", False)])
def test_ops_of_a_part_say_so(name: str, is_split: bool) -> None:
    def renamed(signature: str | None) -> Run:
        ops = []
        for op in training_chain(4).ops:
            if op.name == "f1":
                op = op.edited(name=name, signature=signature)
            ops.append(op.edited(grad_of=name) if op.grad_of == "f1" else op)
        return Run.plain(training_chain(4).edited(ops=tuple(ops)).checked())

    of_torch = {item.op: item for item in decided(renamed("aten"))}
    assert (Decision.SPLIT in of_torch[name].decisions) == is_split
    assert Decision.SPLIT not in of_torch["f2"].decisions
    # The same name in another graph is somebody else's.
    assert Decision.SPLIT not in next(decided(renamed(None))).decisions


def test_node_has_the_colour_of_its_decision_and_its_bytes(run: Run) -> None:
    results = nodes_of(run)["results"]
    for item in decided(run):
        for key in (item.op, *item.outputs):
            assert results[key]["value"] == item.bytes
            assert results[key]["bgColor"] == COLOURS[item.main]


def test_facts_are_text_by_tensor(run: Run) -> None:
    facts = node_facts(run)
    (tensor,) = run.graph.op["f1"].outputs
    assert facts[tensor]["decision"] == "recompute"
    assert facts[tensor]["recomputed_at"].startswith("step ")
    assert "recomputed_at" not in facts[run.graph.op["f3"].outputs[0]]


def test_model_explorer_loads_it(run: Run) -> None:
    builder = pytest.importorskip("model_explorer.node_data_builder")
    document = nodes_of(run)
    results = {key: builder.NodeDataResult(**entry) for key, entry in document["results"].items()}
    data = builder.GraphNodeData(results=results, name=document["name"])
    again = json.loads(data.to_json_string())
    assert {key: again[key] for key in document} == document
