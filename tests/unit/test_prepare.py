"""From a file to the graph that is planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.config import GraphOptions
from remat_cli.core import graph as graph_module
from remat_cli.core.graph import Graph
from remat_cli.prepare import prepare
from remat_cli.reports.phrasing import kind_and_size
from remat_cli.training import Kernels
from tests.places import ROOT
from tests.unit.formats.onnx.models import Model, float_input, node, weight


@pytest.fixture
def folded(tmp_path: Path) -> Path:
    """A convolution with a batch norm folded into it, SiLU, a constant that nodes compute, and a convolution."""
    nodes = [
        node("Conv", ["x", "w", "w_bias"], ["c"]),
        node("Sigmoid", ["c"], ["s"]),
        node("Mul", ["c", "s"], ["silu"], name="silu"),
        node("Neg", ["one"], ["minus_one"]),
        node("Mul", ["silu", "minus_one"], ["turned"]),
        node("Conv", ["turned", "v"], ["y"]),
    ]
    stored = [weight("w", 4, 4, 1, 1), weight("w_bias", 4), weight("v", 4, 4, 1, 1), weight("one", 1)]
    return Model(nodes, inputs=[float_input("x", 2, 4, 8, 8)], stored=stored).save(tmp_path)


def test_what_is_missing_for_training_is_said_first_and_only_for_training(folded: Path) -> None:
    first, *others = prepare(folded, GraphOptions()).notes
    assert first.startswith("the exporter folded a batch norm into 1 of 2")
    assert others[0] == "1 of 6 nodes only compute constants or shapes, and are no ops"
    assert prepare(folded, GraphOptions(mode="inference")).notes == (others[0],)


@pytest.mark.parametrize(
    ("which", "silu_ops", "kept"), [(None, 1, 2), (Kernels.ORIGINAL, 1, 2), (Kernels.WRITTEN, 2, 3)]
)
def test_the_kernels_say_which_nodes_count_as_one_op(
    folded: Path, which: Kernels | None, silu_ops: int, kept: int
) -> None:
    prepared = prepare(folded, GraphOptions(kernels=which))
    assert sum(op.phase == "forward" for op in prepared.graph.ops) == 3 + silu_ops
    assert prepared.kept is not None
    assert prepared.kept.float_bytes == kept * 2 * 4 * 8 * 8 * 4
    assert ("2 nodes count as the ops that training runs: 1 Swish" in prepared.notes) is (silu_ops == 1)


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (None, "training by default (or --mode inference) · 9 ops"),
        ("training", "training · 9 ops"),
        ("inference", "inference · 5 ops"),
    ],
)
def test_a_title_says_where_training_was_not_asked_for(folded: Path, mode: str | None, said: str) -> None:
    assert kind_and_size(prepare(folded, GraphOptions(mode=mode))) == said


def test_a_graph_for_inference_is_left_as_its_runtime_runs_it(folded: Path) -> None:
    assert len(prepare(folded, GraphOptions(mode="inference", kernels=Kernels.FUSED)).graph.ops) == 5


@pytest.mark.parametrize(
    ("file", "options", "derive_training", "checks"),
    [
        ("unet.onnx", GraphOptions(dims={"batch": 2}), True, 2),
        ("unet.json", GraphOptions(), True, 2),
        ("unet.json", GraphOptions(), False, 1),
    ],
)
def test_a_graph_is_checked_where_it_is_read_and_where_it_is_ready(
    file: str, options: GraphOptions, derive_training: bool, checks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Graph] = []
    check = graph_module._check

    def counted(graph: Graph) -> None:
        checked.append(graph)
        check(graph)

    monkeypatch.setattr(graph_module, "_check", counted)
    prepared = prepare(ROOT / "graphs" / file, options, derive_training=derive_training)
    assert len(checked) == checks
    assert prepared.graph is checked[-1]
