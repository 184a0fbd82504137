"""Ops that are run by themselves: on the right tensors, each kind once, with the memory that kernels take."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from remat_cli.costs import Measurements
from remat_cli.errors import GraphError, UsageError
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.ops import short_name
from remat_cli.pytorch.capture.reader import capture
from remat_cli.pytorch.capture.step import Step
from remat_cli.pytorch.memory import measure as measure_module
from remat_cli.pytorch.memory.measure import measure_joint, measure_once, workspace_of


def joint_of(model: Any, *inputs: Any) -> Joint:
    _, captured = capture(Step(model, inputs), "cpu", "the test")
    return Joint.of(captured)


class Indexing(nn.Module):
    """Indices that point beyond the first row of what they index."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        picked = x[rows].gather(1, rows[:, None].expand(-1, 8)[:, :2])
        pooled = F.max_pool2d(x[None], 2).sum() + F.max_pool3d(x.view(1, 2, 3, 8), (1, 1, 2)).sum()
        loss: torch.Tensor = F.cross_entropy(x, targets) + picked.sum() + pooled + x.expand(3, -1, -1).sum()
        return loss


def test_every_op_of_a_step_runs_by_itself() -> None:
    tokens, targets, rows = torch.zeros(6).long(), torch.zeros(6).long(), torch.zeros(4).long()
    joint = joint_of(Indexing(), tokens, targets, rows)
    measured = measure_joint(joint, "cpu")
    assert measured.times_ns.keys() == {op.name for op in joint.ops}
    assert all(time > 0 for name, time in measured.times_ns.items() if name != "boundary")
    measured.check(graph_of(joint, "g"), {}, "m.json")


def test_a_check_of_values_does_not_run_on_random_ones() -> None:
    scale = torch.ones(5, 3, requires_grad=True)
    joint = joint_of(lambda y: (scale * F.one_hot(y, 3)).sum(), torch.zeros(5).long())
    checks = {op.name for op in joint.ops if "assert" in op.name}
    measured = [measure_joint(joint, "cpu"), *(measure_once(joint, "cpu", {}) for _ in range(4))]
    assert checks
    assert all(times.times_ns.keys() == {op.name for op in joint.ops} - checks for times in measured)


def test_ops_that_are_alike_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    joint = joint_of(lambda x: model(x).sum(), torch.ones(4, 8))
    ran: Counter[str] = Counter()
    real = measure_module._measured
    monkeypatch.setattr(measure_module, "_measured", lambda op, *rest: (ran.update([op.name]), real(op, *rest))[1])
    measured = measure_joint(joint, "cpu")
    assert sum(name.startswith("addmm") for name in measured.times_ns) == 6
    assert sum(name.startswith("addmm") for name in ran) == 1
    assert len({measured.times_ns[name] for name in measured.times_ns if name.startswith("addmm")}) == 1


def test_memory_of_a_first_run_alone_is_not_a_kernels_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    joint = joint_of(nn.Conv2d(4, 8, 3, padding=1), torch.ones(1, 4, 8, 8))
    (name,) = (op.name for op in joint.ops if op.name == "convolution")
    ran: Counter[str] = Counter()
    held: list[torch.Tensor] = []
    real = measure_module._call

    def call_with_set_up(node: fx.Node, *, drawn: bool = True) -> Any:
        call = real(node, drawn=drawn)

        def run() -> Any:
            ran.update([node.name])
            if ran[node.name] == 1:
                held.append(torch.empty(1 << 24))
            return call()

        return run

    monkeypatch.setattr(measure_module, "_call", call_with_set_up)
    assert measure_once(joint, "cpu", {}).workspace_bytes[name] < 1 << 24
    assert ran[name] == 3


def test_memory_that_a_kernel_takes_for_itself_is_measured() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU())
    joint = joint_of(lambda x: model(x).sum(), torch.ones(2, 4, 64, 64))
    measured = measure_joint(joint, "cpu")
    # oneDNN sums in a layout of its own, and copies from there.
    assert measured.workspace_bytes["convolution"] >= 2 * 8 * 64 * 64 * 4
    assert measured.workspace_bytes["relu"] == 0
    graph = measured.with_workspace(graph_of(joint, "g"))
    assert graph.op["convolution"].workspace_bytes == measured.workspace_bytes["convolution"]


def test_op_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    joint = joint_of(lambda x: nn.functional.relu(x).sum(), torch.ones(4, requires_grad=True))

    def no_memory(call: Any, device: str) -> int:
        raise RuntimeError("not enough memory: you tried to allocate 5 bytes.\nmore")

    monkeypatch.setattr(measure_module, "peak_of", no_memory)
    with pytest.raises(GraphError, match=r"'relu' \(.*test_measure.py:\d+\) does not run by itself: not enough"):
        measure_joint(joint, "cpu")


def test_measurements_of_other_ops_are_refused() -> None:
    joint = joint_of(lambda x: nn.functional.relu(x).sum(), torch.ones(4, requires_grad=True))
    graph = graph_of(joint, "g")
    with pytest.raises(UsageError, match="op 'relu' had other inputs"):
        Measurements({}, signatures={"relu": "x"}).check(graph, {}, "m.json")
    with pytest.raises(UsageError, match="with batch=2, not batch=3"):
        Measurements({}, dims={"batch": 2}).check(graph, {"batch": 3}, "m.json")


def test_indices_are_drawn_from_all_that_they_point_into() -> None:
    joint = joint_of(Indexing(), torch.zeros(6).long(), torch.zeros(6).long(), torch.zeros(4).long())
    bounds = {
        short_name(op.node): {bound for _, bound in measure_module._index_bounds(op.node)}
        for op in joint.ops
        if op.node is not None
    }
    assert {name: found for name, found in bounds.items() if found} == {
        "aten.embedding": {50},
        "aten.embedding_dense_backward": {50},
        "aten.index": {6},
        "aten.gather": {8},
        "aten.max_pool2d_with_indices_backward": {6 * 8},
        "aten.max_pool3d_with_indices_backward": {2 * 3 * 8},
        "aten.nll_loss_forward": {8},
        "aten.nll_loss_backward": {8},
        "aten.index_put": {6},
        "aten.scatter_add": {8},
    }


def test_workspace_is_that_of_these_strides() -> None:
    """A convolution reorders operands that are not channels last, into memory of its own."""
    weight = torch.empty(8, 8, 3, 3, device="meta")
    taken = {}
    for layout in (torch.contiguous_format, torch.channels_last):
        images = torch.empty(4, 8, 32, 32, device="meta").to(memory_format=layout)
        call = (images, weight.to(memory_format=layout), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        taken[layout] = workspace_of(torch.ops.aten.convolution.default, call, {}, "cpu")
    assert taken[torch.contiguous_format] >= 4 * 8 * 32 * 32 * 4 > 4 * taken[torch.channels_last]


def test_results_and_operands_are_no_workspace() -> None:
    matrix = torch.empty(64, 64, device="meta")
    before = torch.get_rng_state()
    out = {"out": torch.empty(64, 64, device="meta")}
    assert workspace_of(torch.ops.aten.bernoulli.default, (matrix,), {}, "cpu") == 0
    assert workspace_of(torch.ops.aten.neg.out, (matrix,), out, "cpu") == 0
    assert workspace_of(torch.ops.aten.mm.default, (matrix, matrix[:3]), {}, "cpu") == 0  # which does not run
    assert torch.equal(torch.get_rng_state(), before)


def test_what_ranks_do_together_is_not_run_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_module, "peak_of", lambda call, _: pytest.fail("it ran"))
    op = torch.ops._c10d_functional.all_reduce.default
    assert workspace_of(op, (torch.ones(4), "sum", "0"), {}, "cpu") == 0
