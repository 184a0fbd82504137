"""Compiled passes with copies between their pieces: the results and the peak, also where copies are made late."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from remat_cli.core.graph import Graph, Phase
from remat_cli.core.schedule import Compute, Free, Offload, Prefetch, Step, Wait
from remat_cli.pytorch.memory import transfers
from remat_cli.pytorch.programs.pieces import CompiledPieces, _kind
from remat_cli.pytorch.run.call import PlannedCall
from remat_cli.pytorch.unstable.joint_graphs import as_captured_with
from tests.streams import LateCopies
from tests.unit.pytorch.programs.test_program import Edited


class Masked(nn.Module):
    """A mask of seeds, a view, a buffer that changes, and an output beside the loss."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = F.dropout(F.gelu(self.first(x)), 0.4).view(-1, 4)
        self.calls.add_(hidden.detach().mean())
        result = self.last(hidden)
        return result.square().sum(), result


def all_away(graph: Graph, steps: list[Step]) -> list[Step]:
    """Return a schedule in which all that the backward pass reads is on the host between the passes."""
    op = graph.op
    phase = {name: each.phase for name, each in op.items()}
    made = {name for each in graph.ops for name in each.outputs if phase[each.name] is Phase.FORWARD}
    read_back = {name for each in graph.ops for name in each.inputs if phase[each.name] is Phase.BACKWARD}
    moved = sorted(made & read_back - set(op["boundary"].inputs))
    for name in moved:
        uses = [at for at, step in enumerate(steps) if isinstance(step, Compute) and name in op[step.op].inputs]
        forward = [at for at in uses if phase[op_of(steps[at])] is Phase.FORWARD]
        backward = next(at for at in uses if phase[op_of(steps[at])] is Phase.BACKWARD)
        begins = next(at for at, step in enumerate(steps) if isinstance(step, Compute) and name in op[step.op].outputs)
        steps[backward:backward] = [Prefetch(name), Wait(name)]
        last = max([begins, *forward])
        steps[last + 1 : last + 1] = [Wait(name), Free(name)]
        steps.insert(begins + 1, Offload(name))
    assert len(moved) >= 3
    return steps


def op_of(step: Step) -> str:
    assert isinstance(step, Compute)
    return step.op


def trained(call: PlannedCall, model: Masked) -> list[torch.Tensor]:
    """Return the loss, the other output, the buffer and the gradients of a step that runs backward twice."""
    torch.manual_seed(1)
    x = torch.randn(32, 8)
    loss, result = call(x)
    loss.backward(retain_graph=True)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [loss.detach(), result.detach(), model.calls.clone(), *gradients]


def planned_call(*, moves: bool) -> tuple[PlannedCall, Masked]:
    torch.manual_seed(0)
    model = Masked()
    source = Edited(all_away if moves else lambda _, steps: steps)
    source.fused = True
    return PlannedCall(model, source), model


@pytest.mark.parametrize("are_late", [False, True], ids=["at once", "late"])
def test_copies_between_pieces_change_no_result_and_no_predicted_peak(
    monkeypatch: pytest.MonkeyPatch, are_late: bool
) -> None:
    expected = trained(*planned_call(moves=False))
    if are_late:
        monkeypatch.setitem(transfers.COPIES, "cpu", LateCopies())
    call, model = planned_call(moves=True)
    for one, other in zip(trained(call, model), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    (plan,) = call.record.graphs
    assert plan.schedule.has_transfers
    model.zero_grad()
    call(torch.randn(32, 8))  # which ends the first step's measurement
    if not are_late:
        assert plan.measured_peak_bytes[0] == pytest.approx(plan.predicted_peak_bytes, abs=64)


def test_a_pass_in_pieces_has_the_strides_of_its_outputs_and_frees_its_inputs() -> None:
    graph = torch.fx.Graph()
    taken = graph.placeholder("x")
    doubled = graph.call_function(torch.ops.aten.mul.Tensor, (taken, 2.0))
    host = graph.call_function(transfers.offload, (doubled,))
    graph.call_function(transfers.wait, (host, doubled))
    graph.output((graph.call_function(torch.ops.aten.add.Tensor, (taken, 1.0)), host))
    with FakeTensorMode() as mode:
        fake = torch.empty(4, 2).t()
    for node in graph.nodes:
        node.meta["val"] = fake
    with as_captured_with(mode):
        pieces = CompiledPieces(torch.fx.GraphModule({}, graph), user_outputs=range(1), is_backward=False)
    assert [tuple(stride or ()) for stride in pieces.output_strides] == [(1, 2), (1, 2)]
    assert len(pieces.kernels) == 2
    x = torch.arange(8.0).view(4, 2).t()
    arguments = [x]
    added, copied = pieces.run(arguments)
    assert arguments == []
    assert torch.equal(added, x + 1)
    assert torch.equal(copied, x * 2)


def test_pieces_are_equal_whose_ops_and_layouts_are() -> None:
    def kind(x: torch.Tensor, factor: int = 2) -> str:
        return _kind(make_fx(lambda given: given.cos() * factor, tracing_mode="fake")(x))

    own = kind(torch.ones(4, 4))
    assert kind(torch.ones(4, 4)) == own
    others = [torch.ones(4, 8), torch.ones(8, 4).t()[:4, :4], torch.ones(4, 8)[:, :4], torch.ones(4, 4).double()]
    assert own not in [*map(kind, others), kind(torch.ones(4, 4), 3)]
