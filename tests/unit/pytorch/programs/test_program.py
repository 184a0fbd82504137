"""Steps whose schedules move tensors to the host: the bits of eager, also where copies are made as late as can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import fx, nn

from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.core.schedule import Compute, Free, Offload, Prefetch, Schedule, Step, Wait, plain_run
from remat_cli.core.simulate import simulate
from remat_cli.errors import InvalidSchedule, UsageError
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.memory import transfers
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.source import ScheduleSource
from remat_cli.pytorch.programs import slots
from remat_cli.pytorch.programs.program import halves
from remat_cli.pytorch.programs.self_test import self_test
from remat_cli.pytorch.run.call import PlannedCall
from remat_cli.pytorch.run.planned import plan_of, planned
from tests.streams import LateCopies
from tests.torch_steps import MLP, Case, ChangingBuffer, Moved, awkward, changing_buffer, conv, gpt, mlp, outcome


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateCopies:
    copies = LateCopies()
    monkeypatch.setitem(transfers.COPIES, "cpu", copies)
    return copies


@dataclass
class Edited(ScheduleSource):
    """The plain run with other steps.

    Attributes:
        edit: makes the steps of those of the plain run.
    """

    edit: Callable[[Graph, list[Step]], list[Step]]

    def planned(self, piece: Piece) -> tuple[Piece, GraphRecord]:
        graph = graph_of(piece.joint, "step")
        schedule = Schedule(tuple(self.edit(graph, list(plain_run(graph).steps))))
        return piece, GraphRecord.of(graph, schedule, simulate(graph, schedule, link=Link(Fraction(1))))


def at(steps: list[Step], op: str) -> int:
    """Return the place of the first run of an op."""
    return steps.index(Compute(op))


def out(tensor: str) -> list[Step]:
    return [Offload(tensor), Wait(tensor), Free(tensor)]


def back(tensor: str) -> list[Step]:
    return [Prefetch(tensor), Wait(tensor)]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[fx.GraphModule]:
    """All graphs that are written."""
    graphs: list[fx.GraphModule] = []

    def noted(*arguments: Any) -> Any:
        made = halves(*arguments)
        graphs.extend((made.forward, made.backward))
        return made

    self_test()  # which would be noted, too
    monkeypatch.setattr(slots, "halves", noted)
    return graphs


def copies(graphs: list[fx.GraphModule]) -> Counter[str]:
    names = ("offload", "prefetch", "wait", "in_memory_of")
    targets = (getattr(node.target, "__name__", "") for module in graphs for node in module.graph.nodes)
    return Counter(name for name in targets if name in names)


CASES_MOVED = (gpt, conv, changing_buffer, awkward)


@pytest.mark.parametrize("case", CASES_MOVED, ids=lambda case: case.__name__)
def test_all_that_is_kept_goes_to_the_host_and_no_bit_changes(case: Case, written: list[fx.GraphModule]) -> None:
    assert outcome(case, Moved()).differences(outcome(case)) == []
    assert copies(written)["prefetch"] >= copies(written)["offload"] > 3


@pytest.mark.parametrize("case", [gpt, conv])
def test_bits_are_the_same_where_copies_are_made_late(case: Case, late: LateCopies) -> None:
    assert outcome(case, Moved(), steps=3).differences(outcome(case, steps=3)) == []
    assert late.pinned
    assert not late._arriving


@pytest.mark.parametrize("case", [mlp, gpt])
def test_wait_that_is_left_out_gives_wrong_gradients(
    case: Case, late: LateCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(host: torch.Tensor, value: torch.Tensor) -> None:
        pass

    monkeypatch.setattr(transfers, "wait", wait)
    assert outcome(case, Moved()).differences(outcome(case)) != []


def test_tensor_that_is_given_back_while_it_is_copied_gives_wrong_gradients(
    late: LateCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names_nothing(*arguments: Any) -> Any:
        made = halves(*arguments)
        for node in (node for module in (made.forward, made.backward) for node in module.graph.nodes):
            if node.target is transfers.wait:
                node.args = (node.args[0], node.args[0])
        return made

    self_test()
    monkeypatch.setattr(slots, "halves", names_nothing)
    assert outcome(mlp, Moved()).differences(outcome(mlp)) != []


def test_backward_twice_accumulated_and_several_forward_passes_first(late: LateCopies) -> None:
    torch.manual_seed(0)
    model = ChangingBuffer()
    torch.manual_seed(0)
    twin = ChangingBuffer()
    batches = [torch.randn(8, 16) for _ in range(3)]
    results = []
    for module, call in ((model, PlannedCall(model, Moved())), (twin, twin)):
        losses = [call(batch) for batch in batches]
        losses[1].backward(retain_graph=True)
        (losses[0] + 2 * losses[1]).backward()
        losses[2].backward()
        call(batches[0])  # nobody asks for this one's gradients
        call(batches[1]).backward()
        results.append([parameter.grad for parameter in module.parameters()] + list(module.buffers()))
    assert all(map(torch.equal, *results))


def test_waits_of_the_forward_pass_that_come_in_the_backward_pass(
    late: LateCopies, written: list[fx.GraphModule]
) -> None:
    """One tensor is still on its way out, and another one on its way back, when the forward pass ends."""

    def edit(graph: Graph, steps: list[Step]) -> list[Step]:
        steps = [step for step in steps if step not in (Free("addmm"), Free("gelu"))]
        boundary = at(steps, "boundary")
        before = [Offload("addmm"), *out("gelu"), Prefetch("gelu")]
        after = [Wait("addmm"), Free("addmm"), Wait("gelu"), *back("addmm")]
        return [*steps[:boundary], *before, steps[boundary], *after, *steps[boundary + 1 :]]

    assert outcome(mlp, Edited(edit), steps=3).differences(outcome(mlp, steps=3)) == []
    forward, backward = written
    assert (copies([forward]), copies([backward])) == (
        {"offload": 2, "wait": 1, "prefetch": 1},
        {"wait": 3, "prefetch": 1},
    )
    model = MLP()
    call = PlannedCall(model, Edited(edit))
    call(torch.ones(8, 16))  # a copy comes back for nobody
    loss = call(torch.ones(8, 16))
    loss.backward(retain_graph=True)
    once = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    loss.backward()
    twice = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(torch.equal(two, 2 * one) for two, one in zip(twice, once, strict=True))


def test_tensor_that_goes_out_and_back_more_than_once(late: LateCopies, written: list[fx.GraphModule]) -> None:
    """It comes back from one copy twice, is made again, goes out again and comes back twice more."""

    def edit(graph: Graph, steps: list[Step]) -> list[Step]:
        boundary = at(steps, "boundary")
        again = [*out("addmm"), *back("addmm"), Free("addmm"), *back("addmm")]
        return [*steps[:boundary], *again, Free("addmm"), Compute("addmm"), *again, *steps[boundary:]]

    assert outcome(mlp, Edited(edit)).differences(outcome(mlp)) == []
    assert copies(written) == {"offload": 2, "prefetch": 4, "wait": 6}


def test_copies_that_nobody_reads_are_not_made(written: list[fx.GraphModule]) -> None:
    def edit(graph: Graph, steps: list[Step]) -> list[Step]:
        token = next(name for name in graph.tensors if name.endswith(".random"))
        steps = [step for step in steps if step not in (Free("embedding"), Free("add"), Free(token))]
        of_an_input: list[Step] = [Offload(graph.inputs[0]), Wait(graph.inputs[0])]
        of_no_bytes = [*out(token), *back(token)]
        made_again = [*out("embedding"), Compute("embedding")]
        never_there = [*out("add"), Prefetch("add")]
        boundary = at(steps, "boundary")
        before = [*of_an_input, *of_no_bytes, *made_again]
        return [*steps[:boundary], *before, *steps[boundary:], *never_there, Offload("embedding")]

    assert outcome(gpt, Edited(edit)).differences(outcome(gpt)) == []
    assert copies(written) == {}


def test_wait_keeps_nothing_that_has_been_freed(written: list[fx.GraphModule]) -> None:
    def edit(graph: Graph, steps: list[Step]) -> list[Step]:
        boundary = at(steps, "boundary")
        wait = Wait("addmm")
        return [*steps[:boundary], *out("addmm"), wait, wait, *back("addmm"), wait, *steps[boundary:]]

    assert outcome(mlp, Edited(edit)).differences(outcome(mlp)) == []
    assert copies(written) == {"offload": 1, "prefetch": 1, "wait": 2}


def test_what_was_returned_cannot_leave_the_device_in_the_backward_pass() -> None:
    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = torch.tanh(self.layer(x))
            return hidden, hidden.square().sum()

    def edit(graph: Graph, steps: list[Step]) -> list[Step]:
        return [*steps, *out("tanh"), *back("tanh")]

    with pytest.raises(InvalidSchedule, match="tensor 'tanh' is held from outside of the graph"):
        PlannedCall(Returning(), Edited(edit))(torch.ones(2, 4))
    model = planned(Returning(), budget="min", offload=True, link_bandwidth="100GB/s", options={"time_limit": 1})
    model(torch.ones(512, 4))[1].backward()
    graph = plan_of(model).graphs[0].graph
    assert [tensor.name for tensor in graph.tensors.values() if tensor.held] == ["tanh", "sum_1"]


def test_device_without_copies_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(transfers.COPIES, "cpu")
    with pytest.raises(UsageError, match="cannot be done from device 'cpu'"):
        outcome(mlp, Moved())


def test_the_self_test_leaves_random_numbers_to_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat_cli.pytorch.programs.self_test._compare", lambda: torch.rand(1))
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    self_test.__wrapped__()
    assert torch.equal(torch.rand(2), expected)
