"""The optimizer's update in the graph: residents, updates and their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Graph, Kind, Phase, Residency
from remat_cli.core.solve import baseline_of
from remat_cli.errors import GraphError, UsageError
from remat_cli.formats.native import graph_bytes
from remat_cli.generate.llama import Llama
from remat_cli.prepare import prepare
from remat_cli.synthesis import synthesize
from remat_cli.training import Update, updates_by, with_update
from tests.graphs import graph_of, op, training_chain
from tests.unit.formats.onnx.models import Model, float_input, node, weight

SMALL = Llama(layers=2, width=64, heads=4, groups=2, hidden=128, sequence=32, vocabulary=100)


def stepped(**options: Any) -> Graph:
    return with_update(
        graph_of(
            op("f", "x w v", "y", time=4),
            op("b", "y x w", "dw", time=4, phase=Phase.BACKWARD),
            sizes={"w": 8, "dw": 8, "x": 2, "y": 2},
            kind=Kind.TRAINING,
            outputs=["y", "dw"],
        ),
        [Update("w", "dw", 16, 24)],
        **options,
    )


def test_update_reads_parameter_gradient_and_state_and_writes_in_place() -> None:
    graph = stepped(frozen=["v"])
    update = graph.op["w.update"]
    assert (update.inputs, update.writes, update.outputs) == (("w", "w.state", "dw"), ("w", "w.state"), ("w.updated",))
    assert (update.phase, update.recomputable, update.workspace_bytes) == (Phase.UPDATE, False, 24)
    assert {name: graph.tensors[name].resident for name in graph.residents} == {
        "w": Residency.PARAMETER,
        "v": Residency.PARAMETER,
        "w.state": Residency.STATE,
    }
    assert (graph.tensors["w.state"].bytes, graph.tensors["w.updated"].bytes) == (16, 0)
    assert graph.outputs == ("y", "w.updated")


def test_gradient_is_free_after_its_update() -> None:
    trace = baseline_of(stepped())
    # x and v stay beside w and its state; y is an output.
    assert trace.memory_bytes == (27, 29, 37, 61, 29)


def test_after_the_backward_pass_every_update_waits_for_all_gradients() -> None:
    graph = stepped(after_backward=True)
    assert graph.op["gradients.ready"].inputs == ("dw",)
    assert graph.op["w.update"].inputs[-1] == graph.op["gradients.ready"].outputs[0]


def test_optimizer_without_state_has_no_tensor_for_it() -> None:
    graph = with_update(stepped_without(), updates_by("sgd", stepped_without(), {"w": "dw"}))
    assert graph.op["w.update"].writes == ("w",)


def stepped_without() -> Graph:
    ops = op("f", "w", "y"), op("b", "y w", "dw", phase=Phase.BACKWARD)
    return graph_of(*ops, kind=Kind.TRAINING)


@pytest.mark.parametrize(
    ("optimizer", "state", "temporaries"), [("sgd", 0, 0), ("momentum", 8, 0), ("adamw", 16, 16), ("adafactor", 8, 16)]
)
def test_updates_by_name(optimizer: str, state: int, temporaries: int) -> None:
    step = graph_of(op("f", "w", "y"), op("b", "y", "dw"), sizes={"w": 8}, kind=Kind.TRAINING)
    assert updates_by(optimizer, step, {"w": "dw"}) == (Update("w", "dw", state, temporaries),)


def test_state_of_another_optimizer_is_shared_out_by_size() -> None:
    step = graph_of(op("f", "w v", "y"), op("b", "y", "dw dv"), sizes={"w": 6, "v": 2}, kind=Kind.TRAINING)
    updates = updates_by("Shampoo", step, {"w": "dw", "v": "dv"}, all_state_bytes=24)
    assert [update.state_bytes for update in updates] == [18, 6]


def test_step_has_its_updates_once_and_its_gradients() -> None:
    with pytest.raises(GraphError, match="has updates already"):
        with_update(stepped(), [])
    with pytest.raises(GraphError, match="no op of graph 'test' produces 'dq', the gradient of 'w'"):
        with_update(stepped_without(), [Update("w", "dq", 0, 0)])


def test_model_counts_the_same_bytes_with_updates_as_without() -> None:
    without = synthesize(SMALL, GraphOptions(device="h100", optimizer="adam"))
    whole = synthesize(SMALL, GraphOptions(device="h100", optimizer="adam", update=True))
    graph = whole.graph
    residents = sum(graph.tensors[name].bytes for name in graph.residents)
    assert whole.parameter_bytes == without.parameter_bytes
    # Gradients are made by the step.
    assert graph.resident_bytes + residents == without.graph.resident_bytes - whole.parameter_bytes
    gradients = {name for update in graph.ops if update.writes for name in update.inputs if name in graph.producer}
    assert sum(graph.tensors[name].bytes for name in gradients) == whole.parameter_bytes


def test_update_takes_the_time_to_move_its_bytes() -> None:
    graph = synthesize(SMALL, GraphOptions(device="h100", optimizer="adam", update=True)).graph
    updates = [each for each in graph.ops if each.writes]
    largest = max(updates, key=lambda each: each.moved_bytes or 0)
    assert largest.moved_bytes == 7 * graph.tensors[largest.writes[0]].bytes
    assert largest.time > 0


def test_transposed_weight_is_a_view_of_the_parameter(tmp_path: Path) -> None:
    nodes = [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])]
    model = Model(nodes, inputs=[float_input("x", 2, 4)], stored=[weight("w", 8, 4)]).save(tmp_path)
    graph = prepare(model, GraphOptions(update=True, optimizer="adam")).graph
    readers = [each.name for each in graph.consumers["w"] if each.phase is not Phase.UPDATE]
    assert graph.tensors["t"].view_of == "w"
    assert readers == ["Transpose_0", "MatMul_1"], "the product reads the view, so the parameter, too"
    (update,) = (each for each in graph.ops if each.writes)
    assert sum(graph.tensors[name].bytes for name in update.inputs if name in graph.producer) == 8 * 4 * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "inference"}, "update is part of a training step"),
        ({"accumulate": True}, "update and accumulate do not go together"),
        ({"ranks": 2, "device": "h100"}, "update and ranks 2 do not go together"),
    ],
)
def test_what_has_no_update_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    model = Model(nodes, inputs=[float_input("x", 2, 4)], stored=[weight("w", 4, 8)]).save(tmp_path)
    with pytest.raises(UsageError) as caught:
        prepare(model, GraphOptions(update=True, **options))
    assert message in str(caught.value).replace("--", "")


def test_json_graph_with_residents_gets_updates(tmp_path: Path) -> None:
    forward = graph_of(
        op("f", "x w v", "y", grad_inputs=("w",)),
        sizes={"w": 8},
        residents={"w": Residency.PARAMETER, "v": Residency.PARAMETER},
        kind=Kind.FORWARD,
    )
    path = tmp_path / "g.json"
    path.write_bytes(graph_bytes(forward))
    graph = prepare(path, GraphOptions(update=True, optimizer="adam")).graph
    assert [each.writes for each in graph.ops if each.writes] == [("w", "w.state")]
    assert graph.tensors["v"].resident is Residency.PARAMETER


def test_json_graph_without_residents_has_nothing_to_update(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_bytes(graph_bytes(training_chain(2)))
    with pytest.raises(UsageError, match="nothing to update"):
        prepare(path, GraphOptions(update=True))
