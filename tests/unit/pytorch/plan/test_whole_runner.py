"""Calls of many sizes run by few plans: the bits of eager, and a peak within the budget at each size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from remat_cli.core.schedule import plain_run
from remat_cli.core.simulate import simulate
from remat_cli.errors import DoesNotFit, GraphError
from remat_cli.pytorch.capture import sizes
from remat_cli.pytorch.memory.memory import peak_of
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.sized_memory import ResizedGraph, resized
from remat_cli.pytorch.plan.whole_runner import _larger
from remat_cli.pytorch.run.call import PlannedCall
from remat_cli.pytorch.unstable import front_end
from remat_cli.torch import plan_of, planned
from tests.torch_steps import GPT, MLP, Again, ChangingBuffer, ManyOutputs
from tests.unit.pytorch.run.test_planned import gradients, same, twins


class AgainAtAllSizes(Again):
    """All that may run again runs again, at any size."""

    takes_sizes = True

    def carried(self, there: GraphRecord, graph: ResizedGraph) -> GraphRecord | None:
        return None if there.schedule == plain_run(graph.graph) else there


class Enlarged(nn.Sequential):
    """What torch traces as Python code, rounded otherwise than by eager's kernel."""

    def __init__(self, **enlarged: Any) -> None:
        super().__init__(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Upsample(**enlarged, mode="bilinear"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square().sum()  # type: ignore[no-any-return, no-untyped-call]


def tokens(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(20, (2, length)), torch.randint(20, (2, length))


@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (lambda: GPT(depth=2), tokens),
        (ChangingBuffer, lambda size: (torch.randn(size, 16),)),
        (MLP, lambda size: (torch.randn(size, 16),)),
    ],
    ids=["gpt", "changing_buffer", "mlp"],
)
def test_one_capture_and_one_plan_run_at_all_sizes_with_the_bits_of_eager(
    make: Callable[[], nn.Module], batch: Callable[[int], tuple[torch.Tensor, ...]]
) -> None:
    model, twin = twins(make)
    call = PlannedCall(model, AgainAtAllSizes())
    losses: dict[Any, list[torch.Tensor]] = {call: [], twin: []}
    inputs = [batch(size) for size in (6, 9, 4, 12, 9, 30)]
    for run in (call, twin):
        torch.manual_seed(1)
        for number, given in enumerate(inputs):
            losses[run].append(run(*given))
            if number % 2:  # two forward passes at different sizes before their backward passes
                for loss in losses[run][-2:]:
                    torch.autograd.backward(loss)
    assert same(losses[call], losses[twin])
    assert same(gradients(model), gradients(twin))
    assert same([*model.buffers()], [*twin.buffers()])
    first, second = call.record.graphs
    assert (first.calls, second.calls, sum(plan.calls for plan in second.carried)) == (1, 2, 3)


@pytest.mark.parametrize(
    ("enlarged", "layout"),
    [
        ({"scale_factor": 1.7}, torch.contiguous_format),
        ({"scale_factor": (2, 1.5)}, torch.channels_last),
        ({"size": (13, 7)}, torch.contiguous_format),
    ],
    ids=["factor", "factors", "size"],
)
def test_interpolation_has_the_bits_of_eager_at_all_sizes(
    enlarged: dict[str, Any], layout: torch.memory_format
) -> None:
    model, twin = twins(lambda: Enlarged(**enlarged))
    call = PlannedCall(model, AgainAtAllSizes())
    for batch, *size in ((6, 9, 5), (9, 11, 7), (4, 8, 6)):
        x = torch.randn(batch, 3, *size).to(memory_format=layout)
        found, expected = call(x), twin(x)
        torch.autograd.backward([found, expected])
        assert same([found], [expected])
    assert same(gradients(model), gradients(twin))
    assert len(call.record.graphs) == 2


def test_outputs_that_are_inputs_views_and_sizes() -> None:
    class Sized(ManyOutputs):
        def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
            return *super().forward(x), x.shape[0]

    model, twin = twins(Sized)
    call = PlannedCall(model, AgainAtAllSizes())
    for size in (3, 5, 7, 5):
        x = torch.randn(size, 6)
        found, expected = call(x), twin(x)
        assert found[0] is x
        assert found[1].data_ptr() == x[1:].data_ptr()
        assert (found[4], found[6]) == (7, size)
        for outputs in (found, expected):
            (outputs[2].sum() + (outputs[3] * 3).sum() + outputs[5].square().sum()).backward()
    assert same(gradients(model), gradients(twin))


def test_backward_twice_and_what_changed_in_between_is_an_error() -> None:
    model, twin = twins(MLP)
    call = PlannedCall(model, AgainAtAllSizes())
    for size in (4, 6, 8):
        x = torch.randn(size, 16)
        for run in (call, twin):
            loss = run(x)
            torch.autograd.backward(loss, retain_graph=True)
            torch.autograd.backward(loss)
    assert same(gradients(model), gradients(twin))
    loss = call(x)
    with torch.no_grad():
        model.layers[1].weight.mul_(2)  # type: ignore[index, union-attr]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_first_plan_of_many_sizes_is_for_the_largest_that_came_before() -> None:
    torch.manual_seed(0)
    model = planned(GPT(depth=1, width=8), budget="90%", planner="min_cut", options={"work_limit": 1})
    for length in (40, 12, 37, 30):
        model(*tokens(length)).backward()
        model.zero_grad()
    alone, sized = plan_of(model).graphs
    assert alone.inputs["tokens"] == sized.inputs["tokens"] == (2, 40)
    assert [plan.inputs["tokens"] for plan in sized.carried if plan.calls] == [(2, 12), (2, 37), (2, 30)]


@pytest.mark.parametrize("budget", ["85%", 330_000])
def test_peak_is_within_the_budget_at_every_length(budget: int | str) -> None:
    model = planned(GPT(depth=2, width=32), budget=budget, planner="min_cut", options={"work_limit": 1})
    peaks = {}
    for length in (24, 17, 40, 9, 33, 38, 24, 12, 2, 37):
        x, y = tokens(length)
        peak = peak_of(lambda x=x, y=y: model(x, y).backward(), "cpu")  # type: ignore[misc]
        if length in peaks:
            continue  # the first call of a length makes plans
        model.zero_grad()
        peak = peak_of(lambda x=x, y=y: model(x, y).backward(), "cpu")  # type: ignore[misc]
        model.zero_grad()
        ran = plan_of(model).last
        assert ran is not None
        assert ran.budget_bytes is not None
        assert ran.inputs == {"tokens": (2, length), "targets": (2, length)}
        assert ran.predicted_peak_bytes <= ran.budget_bytes
        # The workspace of kernels is not measured here.
        assert peak <= ran.predicted_peak_bytes - ran.fixed_bytes + 8_192
        peaks[length] = peak
    record = plan_of(model)
    assert len(record.graphs) <= 5
    assert "carried over to" in str(record)
    if isinstance(budget, int):
        assert {graph.budget_bytes for graph in record.graphs} == {budget}


@pytest.mark.parametrize(("size", "roomier"), [(0, 0), (7, 9), (100, 128), (64, 128), (4096, 5120), (4097, 5122)])
def test_plans_have_room_for_a_quarter_more_at_sizes_as_round(size: int, roomier: int) -> None:
    assert _larger(size) == roomier


@pytest.mark.parametrize("budget", ["80%", "80% of activations", "400kB", "min"])
def test_carried_plans_are_as_the_judge_measures_them(budget: str) -> None:
    model = planned(GPT(depth=2, width=32), budget=budget, planner="min_cut", options={"time_limit": 0.2})
    for length in (24, 17, 40, 9, 33, 2):
        model(*tokens(length)).backward()
    carried = [plan for graph in plan_of(model).graphs for plan in graph.carried]
    assert len(carried) >= 3
    for plan in carried:
        judged = GraphRecord.of(plan.graph, plan.schedule, simulate(plan.graph, plan.schedule), plan.budget_bytes)
        for figure in ("fixed_bytes", "predicted_peak_bytes", "plain_peak_bytes", "overhead"):
            assert getattr(plan, figure) == getattr(judged, figure), figure


def test_size_at_which_nothing_fits_says_so_and_others_go_on() -> None:
    model = planned(MLP(depth=4), budget=40_000, options={"time_limit": 1}, strict=True)
    for size in (16, 20):
        model(torch.randn(size, 16)).backward()
    with pytest.raises(DoesNotFit, match="No plan that runs every op whole needs less than"):
        model(torch.randn(2000, 16))
    model(torch.randn(18, 16)).backward()
    assert "  refused, as no plan fits: 1 call" in str(plan_of(model))


def test_plan_of_the_least_peak_runs_at_a_size_at_which_nothing_fits(caplog: pytest.LogCaptureFixture) -> None:
    model = planned(MLP(depth=4), budget=40_000, options={"time_limit": 1})
    twin = MLP(depth=4)
    twin.load_state_dict(model.state_dict())
    for size in (16, 20, 2000, 1900, 18):
        x = torch.randn(size, 16)
        model(x).backward()
        twin(x).backward()
    gradients = [[p.grad for p in m.parameters() if p.grad is not None] for m in (model, twin)]
    assert len(gradients[0]) > 1
    assert all(map(torch.equal, *gradients))
    assert caplog.text.count("the one of the least peak runs") == 1
    assert max(plan.predicted_peak_bytes for plan in plan_of(model).graphs) > 40_000


def test_numbers_that_change_are_no_new_captures() -> None:
    class Scaled(MLP):
        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return super().forward(x * scale)

    model, twin = twins(Scaled)
    planned(model, budget="100%")
    x = torch.randn(8, 16)
    for step in range(6):
        for module in (model, twin):
            module(x, 0.3 + step / 7).backward()
    assert same(gradients(model), gradients(twin))
    assert len(plan_of(model).graphs) <= 2


def test_models_do_not_share_captures_nor_what_is_known_of_sizes() -> None:
    for size in (4, 6):
        model = planned(MLP(), budget="100%")
        model(torch.randn(size, 16)).backward()
        (graph,) = plan_of(model).graphs
        assert graph.calls == 1  # and not carried over from larger sizes
        assert graph.inputs == {"x": (size, 16)}


def test_kernels_memory_grows_with_their_tensors() -> None:
    from dataclasses import replace

    model = planned(MLP(), budget="100%")
    model(torch.randn(4, 16)).backward()
    graph = plan_of(model).graphs[0].graph
    graph = replace(graph, ops=tuple(replace(op, workspace_bytes=100) for op in graph.ops))
    sizes = {name: tensor.bytes for name, tensor in graph.tensors.items()}
    twice = resized(graph, {**sizes, "addmm": 2 * sizes["addmm"]})
    assert {op.name: op.workspace_bytes for op in twice.ops if op.workspace_bytes != 100} == {
        op.name: 200 for op in graph.ops if "addmm" in (*op.inputs, *op.outputs)
    }
    smaller = resized(graph, {name: size // 2 for name, size in sizes.items()})
    assert all(op.workspace_bytes == 100 for op in smaller.ops)


def test_sizes_that_cannot_be_symbols_are_captured_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sizes, "_with_size_nodes", Mock(side_effect=GraphError("no plan for these sizes")))
    model, twin = twins(MLP)
    planned(model, budget=100_000)
    for size in (4, 6, 5, 4):
        x = torch.randn(size, 16)
        for module in (model, twin):
            module.zero_grad()  # gradients that are there would make another graph
            torch.autograd.backward(module(x))
    assert same(gradients(model), gradients(twin))
    assert [graph.calls for graph in plan_of(model).graphs] == [2, 1, 1]
    assert len([line for line in caplog.records if "captured and planned by itself" in line.message]) == 1


def test_captures_of_one_model_do_not_count_against_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch counts them by code, and all modules are called by the same."""
    monkeypatch.setitem(front_end._OPTIONS, "recompile_limit", 2)
    for _ in range(3):
        part = planned(nn.Linear(4, 4), budget="100%")
        part(torch.ones(2, 4)).sum().backward()
        assert plan_of(part).calls == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_inputs_that_are_views_of_what_is_no_input_are_captured_with_symbols(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    before = nn.Linear(8, 8)
    eager, inner = twins(lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)))
    model = planned(inner, budget="1MB")
    for length in (10, 14, 12, 18):
        x = before(torch.randn(length + 3, 8))[2:-1]
        loss = model(x).sum()
        assert same(
            torch.autograd.grad(loss, (x, *inner.parameters())),
            torch.autograd.grad(eager(x).sum(), (x, *eager.parameters())),
        )
        ran = plan_of(model).last
        assert ran is not None
        # Of the memory that x is in: all where it was captured itself, later its begin to the last number of x.
        seen = x.new_empty(length + (3 if length == 10 else 2), 8)
        assert ran.fixed_bytes == sum(tensor.nbytes for tensor in (seen, *inner.parameters()))
    record = plan_of(model)
    assert record is not None
    assert len(record.graphs) == 2, "the others run by the second"
    assert "cannot be captured as symbols" not in caplog.text


def test_a_plan_that_moves_tensors_to_the_host_runs_at_all_sizes() -> None:
    model, twin = twins(lambda: MLP(depth=4, width=32))
    options: dict[str, Any] = {"planner": "pofo", "device": "h100", "link_bandwidth": "1000GB/s"}
    planned(model, budget="60%", offload=True, **options)
    for size in (64, 48, 40, 20, 61):
        x = torch.randn(size, 32)
        for each in (model, twin):
            each.zero_grad()
            torch.autograd.backward(each(x))
        assert same(gradients(model), gradients(twin))
        model.zero_grad()
        peak = peak_of(lambda x=x: model(x).backward(), "cpu")  # type: ignore[misc]
        ran = plan_of(model).last
        assert ran is not None
        assert ran.predicted_peak_bytes <= (ran.budget_bytes or 0)
        assert peak == pytest.approx(ran.predicted_peak_bytes - ran.fixed_bytes, abs=64)
    first, second = plan_of(model).graphs
    moved = [first, *(plan for plan in second.carried if plan.calls)]
    assert [plan.schedule.has_transfers for plan in moved] == [True, True, True, False, True]
